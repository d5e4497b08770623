#!/usr/bin/env python3
"""Pipelines at the edges of what plans allow compute the bits of one stage.

A small language model (mlp.py), cut where hardly anything is left on a stage: a
loss whose chunk has weight gradients alone, with another weight for each
micro-batch; three replicas of parameters with fewer values than replicas have
lanes, on stages that own none; layers alike but in precision, evaluated, too; progressive precision.
"""

import onnx
from harness import Test, read_folder, read_log

import mlp  # harness adds its folder to the path
import st


class Odd:
    def __init__(self):
        self.test = Test("odd-pipelines", __doc__)
        self.model = self.test.work / "model.onnx"
        onnx.save(mlp.build(), str(self.model))
        data = mlp.data(24)
        labels = data["labels"]
        labels[::3] = -100  # whole micro-batches without a label
        labels[1::3, :, 1:] = -100
        self.data = self.test.work / "data.safetensors"
        st.write(self.data, data)

    def results(self, name, trainable, options, run_options):
        executable = self.test.compile(self.model, trainable, *options, name=name)
        folder = self.test.work / f"run {name}"
        folder.mkdir()
        self.test.run(
            executable, "--data", self.data, "--steps", 3, "--learning-rate", 1e-2,
            "--output-dir", folder / "out", "--log-file", folder / "log",
            "--dump-gradients", folder / "gradients", *run_options,
        )  # fmt: skip
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return log, read_folder(folder)

    def check(self, what, trainable, options, cuts, run_options=()):
        """`options`: of all; `cuts`: of the other than the reference."""
        one = self.results(f"{what} one", trainable, options, run_options)
        for cut in cuts:
            name = f"{what} {' '.join(cut)}"
            other = self.results(name.replace("/", "."), trainable, (*options, *cut), run_options)
            self.test.check(other[0] == one[0], f"{name}: same losses and norms")
            self.test.check(other[1] == one[1], f"{name}: same gradients and parameters")


def main():
    odd = Odd()
    odd.check(
        "weight gradients of the loss", "head", ["--micro-batches=4"],
        [["--stages=2", "--schedule=zero_bubble", "--cuts=blocks.1"]],
        ["--loss-reduction", "micro-batch"],
    )  # fmt: skip
    odd.check(
        "small replicas", "blocks.0.lora_A", ["--micro-batches=2", "--replicas=3"],
        [["--stages=2", "--cuts=blocks.0"], ["--stages=3", "--cuts=blocks.1,loss"]],
    )  # fmt: skip
    odd.check(
        "layers alike but in precision", "blocks.1.lora_[AB],head",
        ["--micro-batches=2", "--precision=layered"],
        [["--stages=2", "--cuts=blocks.1"], ["--stages=3", "--cuts=blocks.0,loss"]],
        ["--eval-data", odd.data],
    )  # fmt: skip
    # The gradient that the lowest layer takes is read by its weight gradients alone.
    odd.check(
        "weight gradients of another phase", "blocks.0.up,blocks.1.down",
        ["--micro-batches=2", "--precision=layered", "--fp32-steps=1", "--bf16-ramp=2"],
        [["--stages=2", "--schedule=zero_bubble", "--cuts=blocks.1"]],
    )  # fmt: skip
    odd.test.end()


if __name__ == "__main__":
    main()
