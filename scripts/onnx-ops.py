#!/usr/bin/env python3
"""Writes docs/OnnxOps.md from the importer's table of operators.

  onnx-ops.py --mgq-run PATH            writes the page
  onnx-ops.py --mgq-run PATH --check    exit status 1 if the page is out of date

The importer names its operators (`mgq-run --list-ops`) and its newest operator
set; ONNX's own history tells which versions of an operator these sets contain.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import onnx.defs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "OnnxOps.md"

# What of an operator is refused, with a message of its own. Words of the importer.
LIMITS = {
    "Cast": "no float8, int4, complex or string types",
    "Constant": "no strings, no sparse tensors",
    "Dropout": "in training mode its masks are the run's own (--seed), not the attribute's",
    "If": "its condition must be known at compile time",
    "NonZero": "where the graph goes on as a masked scatter (image tokens)",
    "Range": "bounds known at compile time",
    "Resize": "no antialias, no `tf_crop_and_resize`; sizes known at compile time",
    "SequenceAt": "of a sequence that SplitToSequence made in the graph",
    "SplitToSequence": "read by SequenceAt",
}


def run(command):
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def newest_opset():
    """The newest operator set that the importer takes."""
    source = (ROOT / "frontends" / "onnx" / "Graph.cpp").read_text()
    return int(re.search(r"kNewestOpset = (\d+);", source).group(1))


def versions(newest):
    """(domain, operator) -> versions of its definition, up to operator set `newest`."""
    found = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version <= newest:
            found.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    return found


def page(mgq_run):
    """The text of docs/OnnxOps.md."""
    newest = newest_opset()
    history = versions(newest)
    lines = [
        "# Supported ONNX operators",
        "",
        "Made by scripts/onnx-ops.py from the importer's own table; do not edit.",
        "",
        f"Operator sets up to {newest}. A version is the operator set in which a definition of the operator first",
        "appeared; all of them are read. What a model says that an operator here cannot do is refused with a message",
        "that names the node. Operators that are functions in ONNX's standard, and functions of the model itself, are",
        "expanded where no operator of their name is listed.",
        "",
        "| operator | versions | limits |",
        "|---|---|---|",
    ]
    names = run([mgq_run, "--list-ops"]).split()
    for name in names:
        domain, _, operator = name.rpartition(":")
        known = sorted(history.get((domain, operator), ()))
        listed = ", ".join(map(str, known)) or "not ONNX's own"
        lines.append(f"| {name} | {listed} | {LIMITS.get(name, '')} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-run", required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = page(args.mgq_run)
    if not args.check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is out of date: run scripts/onnx-ops.py")


if __name__ == "__main__":
    main()
