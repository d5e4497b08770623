"""Prints a module as it was before it was planned.

usage: unplanned.py FILE.mlir
"""

import re
import sys

with open(sys.argv[1]) as file:
    text = file.read()
text = re.sub(r",? ?pipe\.chunk = \d+ : i64", "", text)
text = re.sub(r"  pipe\.plan .*?\n  }\n", "", text, flags=re.DOTALL)
print(text.replace(" {}", ""))
