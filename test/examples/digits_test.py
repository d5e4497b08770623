#!/usr/bin/env python3
"""The digits example holds what it promises: `digits_test.py WORK`.

Under 30 % of the held-out answers are right before training, at least 90 % after, and
PyTorch + PEFT, trained the same way on the same data in the same order, ends within two
points. MGQ_BUILD names the build folder.
"""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits" / "run.sh"


def main():
    done = subprocess.run([SCRIPT, "--compare", sys.argv[1]], capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="")
    if done.returncode:
        sys.exit(f"exit status {done.returncode}")
    pattern = re.compile(r"^(\w+): ([\d.]+) % of (\d+) answers right$", re.MULTILINE)
    found = pattern.findall(done.stdout)
    share = {name: float(percent) for name, percent, _ in found}
    checks = {
        "397 answers each": all(count == "397" for _, _, count in found),
        "before: under 30 %": share["before"] < 30,
        "after: at least 90 %": share["after"] >= 90,
        "PyTorch within two points": abs(share["pytorch"] - share["mgq"]) <= 2,
    }
    for name, good in checks.items():
        print(f"{name}: {'ok' if good else 'FAILED'}")
    sys.exit(not all(checks.values()))


if __name__ == "__main__":
    main()
