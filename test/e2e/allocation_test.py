#!/usr/bin/env python3
"""No heap allocation and no mapping happens inside a step.

A preloaded object counts calls of malloc, mmap and their kin of a whole run:
fifty more steps must add none, also on three ranks that are threads. All runs log,
shuffle anew each epoch and clip.
"""

import itertools
import json
import os

import onnx
from harness import DATA, LORA, Test

import mlp  # harness adds its folder to the path
import st

MODELS = {"a1": LORA, "a9": "query_tokens,visual_encoder.encoder.layers.1.*,llm_proj.*"}


def main():
    test = Test("allocation", __doc__, "count-allocations")

    def count(executable, data, steps, *options):
        report = test.work / "count"
        report.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(test.args.count_allocations),
            "MGQ_ALLOCATIONS": str(report),
        }
        test.run(
            executable, "--data", data, "--steps", steps, "--threads", 2,
            "--log-file", test.work / "log.jsonl", "--max-grad-norm", "history",
            *options, env=environment,
        )  # fmt: skip
        return int(report.read_text())

    # Each step has another number of micro-batches than the one before.
    numbers = itertools.cycle((1, 4, 2))
    lines = [{"step": i, "micro_batches": next(numbers)} for i in range(1, 161)]
    replay = test.work / "replay.jsonl"
    replay.write_text("".join(json.dumps(line) + "\n" for line in lines))
    onnx.save(mlp.build(batch="batch"), test.work / "mlp.onnx")
    st.write(test.work / "mlp.st", {k: v.reshape(-1, 4) for k, v in mlp.data(9).items()})
    executable = test.compile(
        test.work / "mlp.onnx", mlp.TRAINABLE, "--micro-batches=1:4", "--global-batch=4",
        "--stages=2", name="adaptive",
    )  # fmt: skip
    few, many = (
        count(executable, test.work / "mlp.st", steps, "--replay", replay) for steps in (110, 160)
    )
    test.check(few == many, f"changes: {few} calls in 110 steps, {many} in 160")
    for model, stages, replicas, *options in (
        ("a1", 1, 1), ("a9", 1, 1), ("a1", 3, 1), ("a1", 2, 2),
        ("a1", 1, 2, "--gradient-compression=sparse24"), ("a1", 2, 1, "--frozen=sharded"),
        ("a1", 1, 1, "--precision=bf16", "--fp32-steps=105"),
    ):  # fmt: skip
        what = " ".join([f"{model} on {stages} x {replicas}", *options])
        executable = test.compile(
            DATA / model / "model.onnx", MODELS[model], "--micro-batches=2",
            f"--stages={stages}", f"--replicas={replicas}", *options, name=f"{model}-{len(what)}",
        )  # fmt: skip
        data = DATA / model / "inputs.safetensors"
        few, many = (count(executable, data, steps) for steps in (110, 160))
        test.check(few > 100, f"{what}: the counter counts: {few}")
        test.check(few == many, f"{what}: {few} calls in 110 steps, {many} in 160")
        saved = count(executable, data, 110, "--output-dir", test.work / "out")
        test.check(saved > few, f"{what}: the counter sees a checkpoint: {saved}")
    test.end()


if __name__ == "__main__":
    main()
