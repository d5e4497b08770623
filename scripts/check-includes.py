#!/usr/bin/env python3
"""Checks that includes follow the direction in which folders may use each other.

The repository root is the one include root, so an include's first folder says
what it reaches. Prints `file:line: message` for each that does not; the exit
status is 1 when there is one. Tests may include anything.
"""

import re
import subprocess
import sys
from pathlib import Path

# Folder -> prefixes of project includes that its files may use.
ALLOWED = {
    "dialects": ("dialects/",),
    "passes": ("dialects/", "passes/", "runtime/include/rt.h", "runtime/include/rt_cuda.h"),
    "frontends": ("dialects/", "frontends/"),
    "compiler": ("dialects/", "passes/", "frontends/", "compiler/", "runtime/include/"),
    "runtime": ("runtime/",),
    "tools": ("compiler/",),
}
INCLUDE = re.compile(r'^\s*#?\s*include\s+["<]([^">]+)[">]')
PROTOBUF = re.compile(r"^google/protobuf/|\.pb\.h$")


def fault(path, target):
    """What is wrong with `path` including `target`, or None."""
    folder, aimed_at = path.parts[0], target.split("/")[0]
    if PROTOBUF.search(target) and folder != "frontends":
        return f"only frontends/ may include protobuf's {target}"
    if aimed_at in ALLOWED and not target.startswith(ALLOWED[folder]):
        return f"{folder}/ may not include {target}"
    if aimed_at not in ALLOWED and (path.parent / target).is_file():
        return f"spell {target} from the repository's root"
    return None


def includes(path):
    """Yields the line number and target of each include in `path`."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def main():
    patterns = [f"{folder}/*.{kind}" for folder in ALLOWED for kind in ("h", "c", "cpp", "td")]
    listing = subprocess.run(
        ["git", "ls-files", *patterns], capture_output=True, text=True, check=True
    )
    faults = 0
    for path in map(Path, listing.stdout.splitlines()):
        for number, target in includes(path) if path.is_file() else ():
            message = fault(path, target)
            if message:
                print(f"{path}:{number}: {message}")
                faults += 1
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
