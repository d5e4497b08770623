"""Removes every event edge of a program in turn.

usage: remove_events.py MGQ_OPT PROGRAM.mlir

For each event in an `after` list of the planned ranks the program without it is
given to pipe-check-hazards. Either the check finds the hazard, or another path
must order the two ops: the same happens-before is computed here, from the text.
Prints how many edges were of each kind; exit status 1 if one was neither.
"""

import re
import subprocess
import sys

OP = re.compile(r"^\s*(%\d+) = pipe\.(\w+)(.*)$")
AFTER = re.compile(r" after\(([^)]*)\)")
CALL = re.compile(r" call\((\d+)\)")


def events(line):
    found = AFTER.search(line)
    return [e.strip() for e in found.group(1).split(",")] if found else []


def without(line, event):
    rest = [e for e in events(line) if e != event]
    if event == events(line)[0]:
        line = CALL.sub("", line)  # a call of that op
    return AFTER.sub(f" after({', '.join(rest)})" if rest else "", line)


def is_ordered(lines, first, last, source, target):
    """Whether `source` happens before `target` in lines [first, last)."""
    before, compute = {}, None
    for line in lines[first:last]:
        op = OP.match(line)
        if not op:
            continue
        name, kind = op.group(1), op.group(2)
        direct = set(events(line))
        if kind not in ("send", "recv", "all_reduce", "all_gather"):
            if compute:
                direct.add(compute)
            compute = name
        before[name] = set(direct)
        for event in direct:
            before[name] |= before.get(event, set())
        if CALL.search(line):  # part of the op has run, not all of it
            before[name].discard(events(line)[0])
        if name == target:
            return source in before[name]
    return False


def main():
    tool, path = sys.argv[1:]
    with open(path) as file:
        lines = file.read().split("\n")
    starts = [i for i, line in enumerate(lines) if "pipe.rank" in line] + [len(lines)]
    reported = ordered = 0
    for first, last in zip(starts, starts[1:]):
        for i in range(first, last):
            op = OP.match(lines[i])
            for event in events(lines[i]) if op else []:
                changed = list(lines)
                changed[i] = without(lines[i], event)
                check = subprocess.run(
                    [tool, "--pipe-check-hazards", "-o", "/dev/null"],
                    input="\n".join(changed), capture_output=True, text=True,
                )
                if check.returncode != 0:
                    assert "may run while an earlier op" in check.stderr, check.stderr
                    reported += 1
                elif is_ordered(changed, first, last, event, op.group(1)):
                    ordered += 1
                else:
                    print(f"missed: {event} before {lines[i].strip()}")
                    return 1
    print(f"{reported} reported, {ordered} ordered by another path")
    return 0 if reported else 1


if __name__ == "__main__":
    sys.exit(main())
