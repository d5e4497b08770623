#!/usr/bin/env python3
"""Runs a command that must fail, and fail well.

  fails.py [--kept DIR]... [--lines N] [--file-size BYTES] STATUS COMMAND...

Checks that the exit status is STATUS (a crash never is), that standard error
has N lines (1), and that every file below each DIR is the same after as before.
Prints standard error for FileCheck. --file-size limits the files it may write
(RLIMIT_FSIZE), which stands in for a full disk.
"""

import argparse
import hashlib
import resource
import subprocess
import sys
from pathlib import Path


def contents(folder):
    """Every path below `folder` with a digest of its bytes."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        data = path.read_bytes() if path.is_file() else b"folder"
        found[str(path)] = hashlib.sha256(data).hexdigest()
    return found


def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", action="append", default=[])
    parser.add_argument("--lines", type=int, default=1)
    parser.add_argument("--file-size", type=int)
    parser.add_argument("status", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()

    before = [contents(folder) for folder in args.kept]
    limit = args.file_size
    done = subprocess.run(
        args.command, capture_output=True, text=True, timeout=120,
        preexec_fn=(lambda: limit_files(limit)) if limit is not None else None,
    )  # fmt: skip
    print(done.stderr, end="")
    faults = []
    if done.returncode != args.status:
        faults.append(f"exit status {done.returncode}, expected {args.status}")
    if len(done.stderr.splitlines()) != args.lines:
        faults.append(f"{len(done.stderr.splitlines())} lines, expected {args.lines}")
    for folder, old in zip(args.kept, before):
        new = contents(folder)
        changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
        if changed:
            faults.append(f"changed: {', '.join(changed)}")
    for fault in faults:
        print(f"fails.py: {fault}\n{done.stderr}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
