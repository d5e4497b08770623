#!/usr/bin/env python3
"""The plan's memory is what a run takes, within 5 %.

A hand-written model of 50 MB of weights and 100 MB of activations: its plan
(planned_bytes) against anonymous resident bytes since the arena was made
(peak_bytes). It also shows that hand-written ONNX trains: the loss falls.
"""

import json

import onnx

from harness import Test, read_log

import mlp  # noqa: I001  (harness has set the path)
import st

SIZE = {"batch": 4, "length": 256, "vocabulary": 2048}
LAYERS = {"width": 512, "hidden": 2048, "rank": 8, "blocks": 4}
STEPS = 8


def main():
    test = Test("memory", __doc__)
    onnx.save(mlp.build(**SIZE, **LAYERS), test.work / "model.onnx")
    st.write(test.work / "data", mlp.data(4, **SIZE))
    for recompute in ("none", "full"):
        executable = test.compile(
            test.work / "model.onnx", mlp.TRAINABLE, f"--recompute={recompute}", name=recompute
        )
        summary, log = (test.work / f"{recompute}.{end}" for end in ("json", "jsonl"))
        test.run(
            executable, "--data", test.work / "data", "--steps", STEPS,
            "--learning-rate", 0.01, "--summary", summary, "--log-file", log,
        )  # fmt: skip
        rank = json.loads(summary.read_text())["ranks"][0]
        planned, peak = rank["planned_bytes"], rank["peak_bytes"]
        test.check(planned > 50e6, f"{recompute} plans {planned / 1e6:.0f} MB, a size that counts")
        test.check(
            abs(peak - planned) <= 0.05 * planned, f"{recompute} takes {peak / 1e6:.0f} MB"
        )
        test.check(sum(rank["memory"].values()) == planned, f"{recompute} parts add up")
        losses = [line["loss"] for line in read_log(log)]
        test.check(losses[-1] < losses[0] - 0.1, f"{recompute} trains: {losses[0]:.3f} {losses[-1]:.3f}")
    test.end()


if __name__ == "__main__":
    main()
