#!/usr/bin/env python3
"""No heap allocation and no mapping happens inside a step.

A preloaded object counts calls of malloc, mmap and their kin of a whole run:
fifty more steps must add none, also on three ranks that are threads. All runs log,
shuffle anew each epoch and clip.
"""

import os

from harness import DATA, LORA, Test

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

    for model, stages, replicas in (("a1", 1, 1), ("a9", 1, 1), ("a1", 3, 1), ("a1", 2, 2)):
        what = f"{model} on {stages} x {replicas}"
        executable = test.compile(
            DATA / model / "model.onnx", MODELS[model], "--micro-batches=2",
            f"--stages={stages}", f"--replicas={replicas}", name=what,
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
