#!/usr/bin/env python3
"""Gradients that are summed over replicas beside backward are the same bits.

Each program is compiled with and without --overlap; losses, norms, evaluations,
the first gradients and parameters must be equal: replicas alone and of pipelines,
with a frozen prefix that runs ahead of its step, tied parameters, one bucket a
parameter and the default, micro-batches without a label (whole replicas of them,
a last one, a whole step), over an artificial link, as processes, and when a run
is resumed.
"""

import os

import onnx
from harness import DATA, LORA, Test, read_folder, read_log

import mlp  # harness adds its folder to the path
import st

LINK = "delay=3e-4,bandwidth=2e8"


class Overlap:
    def __init__(self):
        self.test = Test("overlap", __doc__)
        self.mlp = self.test.work / "mlp.onnx"
        onnx.save(mlp.build(width=16, hidden=32, blocks=3), str(self.mlp))
        data = mlp.data(26)
        labels = data["labels"]
        labels[1::4] = -100  # whole micro-batches without a label
        labels[8:12] = -100  # a step of a replica
        labels[12:20] = -100  # a step
        labels[3::5, :, 1:] = -100
        self.data = self.test.work / "data.safetensors"
        st.write(self.data, data)

    def results(self, executable, data, steps, launcher=(), stops=(), **environment):
        """`stops`: steps at which the run ends, to be resumed."""
        folder = self.test.work / "run"
        self.test.run("rm", "-rf", folder)
        folder.mkdir()
        for stop in (*stops, steps):
            dump = ("--dump-gradients", folder / "gradients")
            first = dump if stop == min((*stops, steps)) else ()
            self.test.run(
                *launcher, executable, "--data", data, "--steps", stop, "--learning-rate", 1e-2,
                "--max-grad-norm", 1, "--threads", 1, "--shuffle", "off", "--eval-data", data,
                "--eval-steps", 2, "--output-dir", folder / "out", "--save-steps", 2,
                "--resume-from-checkpoint", "latest", "--log-file", folder / "log", *first,
                env={**os.environ, **environment},
            )  # fmt: skip
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return log, read_folder(folder)

    def check(self, what, model, trainable, data, options, steps=4, buckets=((),), mpi=0):
        """`options`: of both; `buckets`: further ones with overlap; `mpi`: ranks."""
        off = self.test.compile(model, trainable, *options, "--overlap=off", name=f"{what} off")
        expected = self.results(off, data, steps)
        for number, more in enumerate(buckets):
            on = self.test.compile(model, trainable, *options, *more, name=f"{what} on{number}")
            got = self.results(on, data, steps)
            self.test.check(got == expected, f"{what} {' '.join(more)}")
            if number == 0:
                linked = self.results(on, data, steps, MGQ_TEST_LINK=LINK)
                self.test.check(linked == expected, f"{what}: over a link")
            if number == 0:
                resumed = self.results(on, data, steps, stops=(2,))
                self.test.check(resumed == expected, f"{what}: resumed")
            if number == 0 and mpi:
                processes = self.results(on, data, steps, ("mpirun", "-n", mpi))
                self.test.check(processes == expected, f"{what}: processes")
        log = expected[0]
        self.test.check(log[0]["loss"] != log[-1]["loss"], f"{what}: trains")


def main():
    overlap = Overlap()
    each = ("--bucket-size=1",)
    train = "blocks.*.lora_[AB],head"
    overlap.check(
        "mlp 2 replicas", overlap.mlp, train, overlap.data, ["--replicas=2", "--micro-batches=4"],
        buckets=(each, (), ("--bucket-size=3000",)), mpi=2,
    )  # fmt: skip
    overlap.check(
        "mlp 3 replicas 2 stages", overlap.mlp, train, overlap.data,
        ["--replicas=3", "--stages=2", "--micro-batches=2", "--schedule=zero_bubble"],
        buckets=(each,),
    )  # fmt: skip
    # A prefix of several layers, alone on its stage, with one micro-batch.
    a1 = DATA / "a1"
    overlap.check(
        "prefix alone", a1 / "model.onnx", LORA, a1 / "inputs.safetensors",
        ["--replicas=2", "--stages=2", "--cuts=llm_proj", "--frozen=stage"], buckets=(each,),
    )  # fmt: skip
    overlap.check(
        "a1 interleaved", DATA / "a1" / "model.onnx", LORA, DATA / "a1" / "inputs.safetensors",
        ["--replicas=2", "--stages=2", "--micro-batches=2", "--schedule=interleaved", "--chunks=2"],
        buckets=(each,), mpi=4,
    )  # fmt: skip
    # Token embedding and head are one parameter.
    gpt2 = DATA / "b1_gpt2"
    overlap.check(
        "tied", gpt2 / "model.onnx", "*", gpt2 / "inputs.safetensors",
        ["--replicas=2", "--stages=2", "--micro-batches=2"], buckets=(each, ()),
    )  # fmt: skip
    overlap.test.end()


if __name__ == "__main__":
    main()
