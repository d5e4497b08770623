#!/usr/bin/env python3
"""Prints the lines of tracked source per folder, and files over 600 lines."""

import subprocess
from collections import Counter
from pathlib import Path

SUFFIXES = {".cpp", ".h", ".c", ".td", ".mlir", ".py", ".sh", ".cmake", ".txt"}
EXPLAIN_AT = 600  # lines
DEPTH = 2  # folders


def tracked_sources():
    """Tracked source files, test data left out."""
    done = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.splitlines()]
    return [
        path for path in paths
        if path.suffix in SUFFIXES and path.is_file() and path.parts[:2] != ("test", "data")
    ]


def main():
    per_folder = Counter()
    large = []
    for path in tracked_sources():
        lines = path.read_bytes().count(b"\n")
        per_folder["/".join(path.parts[:-1][:DEPTH]) or "."] += lines
        if lines > EXPLAIN_AT:
            large.append((lines, path))
    for folder, lines in sorted(per_folder.items()):
        print(f"{lines:7} {folder}")
    print(f"{per_folder.total():7} in all")
    for lines, path in sorted(large, reverse=True):
        print(f"over {EXPLAIN_AT} lines: {path}: {lines}")


if __name__ == "__main__":
    main()
