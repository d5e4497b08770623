"""Checks a plan written by mgq-compile --plan=FILE.json.

usage: plan.py PLAN.json STAGES [SUMMARY.json]

Prints `ok` if every key that docs/Usage.md promises is there and fits; with the
summary of a run, `same memory` if the ranks had what was planned.
"""

import json
import sys

LAYER = {
    "name", "stage", "parameters", "trainable_parameters", "forward_flops",
    "backward_flops", "recomputed",
}  # fmt: skip
RANK = {"stage", "device", "memory_bytes", "forward_seconds", "backward_seconds", "bytes_sent"}


def main():
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    stages = int(sys.argv[2])
    if len(sys.argv) > 3:
        with open(sys.argv[3]) as file:
            ranks = json.load(file)["ranks"]
        planned = [rank["memory_bytes"]["total"] for rank in plan["ranks"]]
        assert planned == [rank["planned_bytes"] for rank in ranks], (planned, ranks)
        print("same memory")
        return
    assert plan["stages"] == stages and plan["replicas"] == 1 and plan["micro_batches"] == 4
    assert plan["schedule"] == "one_f_one_b" and plan["step_seconds"] > 0
    assert 0 <= plan["bubble"] < 1
    names = [layer["name"] for layer in plan["layers"]]
    assert all(cut in names for cut in plan["cuts"]) and len(plan["cuts"]) >= stages - 1
    assert all(LAYER <= set(layer) for layer in plan["layers"])
    assert sum(layer["trainable_parameters"] for layer in plan["layers"]) == 64 * 32 + 64
    assert len(plan["ranks"]) == stages and all(RANK <= set(rank) for rank in plan["ranks"])
    for rank in plan["ranks"]:
        parts = dict(rank["memory_bytes"])
        assert parts.pop("total") == sum(parts.values()), rank
    # Nothing trains below the projection: no gradient goes there.
    first = next(l["stage"] for l in plan["layers"] if l["trainable_parameters"])
    for rank in plan["ranks"]:
        sent = rank["bytes_sent"]
        assert rank["stage"] > first or sent["gradient"] == 0, rank
    wanted = {"uniform", "parameters", "flops", "data_parallel"}
    assert wanted <= set(plan["alternatives"]) or wanted <= {
        other["name"] for other in plan["alternatives"]
    }
    print("ok")


main()
