"""Checks that plans fit their devices without recomputation, and how evenly.

usage: plan_memory.py PLAN.json...
"""

import json
import os
import sys

for path in sys.argv[1:]:
    with open(path) as file:
        plan = json.load(file)
    memory = [rank["memory_bytes"]["total"] for rank in plan["ranks"]]
    assert not any(layer["recomputed"] for layer in plan["layers"]), path
    fits = all(rank["memory_bytes"]["total"] <= rank["device_memory_bytes"] for rank in plan["ranks"])
    even = max(memory) <= 1.15 * sum(memory) / len(memory)
    print(f"{os.path.basename(path)}: {'fits' if fits else memory}, {'even' if even else memory}")
