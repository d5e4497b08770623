#!/usr/bin/env python3
"""How many answers are right, word by word: `accuracy.py RECORDS.json NAME=ANSWERS.jsonl ...`."""

import json
import sys
from pathlib import Path


def accuracy(records, answers):
    """The share of `answers` that equal the records' own."""
    if len(records) != len(answers):
        sys.exit(f"{len(answers)} answers to {len(records)} questions")
    return sum(a == record["output"] for a, record in zip(answers, records)) / len(records)


def main():
    records = json.loads(Path(sys.argv[1]).read_text())
    for argument in sys.argv[2:]:
        name, _, path = argument.partition("=")
        lines = Path(path).read_text().splitlines()
        answers = [json.loads(line)["answer"] for line in lines]
        print(f"{name}: {100 * accuracy(records, answers):.1f} % of {len(records)} answers right")


if __name__ == "__main__":
    main()
