#!/usr/bin/env python3
"""Compressed gradients: bytes on the transport, equal bits, checkpoints.

A small language model on two and four replicas. What the collective computes is
checked in test/runtime; here, that programs use it as documented.
"""

import json
import shutil

import onnx
from harness import Test, read_folder, read_log

import mlp  # noqa: I001  (harness has set the path)
import st

FORMATS = ("none", "bf16", "sparse24", "sparse24-int8")
STEPS = 6
SIZES = dict(batch=2, length=8, vocabulary=32, width=64, hidden=128, rank=8, blocks=2)


class Runs:
    def __init__(self, test):
        self.test = test
        self.executables = {}
        onnx.save(mlp.build(**SIZES), test.work / "model.onnx")
        data = mlp.data(48, batch=2, length=8, vocabulary=SIZES["vocabulary"])
        st.write(test.work / "data.st", data)

    def executable(self, compression, replicas, stages=1):
        key = (compression, replicas, stages)
        if key not in self.executables:
            self.executables[key] = self.test.compile(
                self.test.work / "model.onnx", mlp.TRAINABLE, f"--stages={stages}",
                f"--replicas={replicas}", f"--micro-batches={4 // replicas}",
                f"--gradient-compression={compression}",
                name=f"{compression}-{replicas}-{stages}",
            )  # fmt: skip
        return self.executables[key]

    def run(self, name, key, *options, steps=STEPS, warmup=0, rate=1e-2, clip=1, threads=1,
            launcher=(), keep=False):  # fmt: skip
        """Log, last checkpoint and text of a run."""
        folder = self.test.work / name
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        printed = self.test.run(
            *launcher, self.executable(*key), "--data", self.test.work / "data.st",
            "--steps", steps, "--learning-rate", rate, "--max-grad-norm", clip, "--threads", threads,
            "--compression-warmup", warmup, "--output-dir", folder / "out",
            "--log-file", folder / "log", "--summary", folder / "summary.json", *options,
        )  # fmt: skip
        return (
            read_log(folder / "log"),
            read_folder(folder / "out" / f"checkpoint-{steps}"),
            printed,
        )

    def gradient_bytes(self, name):
        ranks = json.loads((self.test.work / name / "summary.json").read_text())["ranks"]
        return [rank["bytes_sent"]["gradient"] for rank in ranks]


def check_bytes(test, runs):
    for replicas in (2, 4):
        sent = {}
        for compression in FORMATS:
            log, _, _ = runs.run("bytes", (compression, replicas))
            test.check(log[-1]["loss"] < log[0]["loss"], f"{compression} on {replicas} trains")
            sent[compression] = sum(runs.gradient_bytes("bytes"))
        dense, half = sent["none"], sent["bf16"]
        shares = {
            "bf16 of f32": (half / dense, 0.5),
            "sparse24 of bf16": (sent["sparse24"] / half, 0.57),
            "sparse24 of f32": (sent["sparse24"] / dense, 0.29),
            "int8 of bf16": (sent["sparse24-int8"] / half, 0.4),
        }
        for name, (share, most) in shares.items():
            test.check(share <= most, f"{replicas} replicas send {name}: {share:.4f}")
        # Twice the gradients, less what stays at home.
        elements = 2 * (64 * 8 + 8 * 128)
        expected = 2 * (replicas - 1) * elements * 288 // 256 * STEPS
        test.check(sent["sparse24"] == expected, f"{replicas} replicas send {expected} bytes")


def check_bits(test, runs):
    dense = runs.run("dense", ("none", 2))
    warm = runs.run("warm", ("sparse24", 2), warmup=STEPS)
    test.check(warm[0] == dense[0], "warm-up steps are dense")
    test.check(
        warm[1]["model.safetensors"] == dense[1]["model.safetensors"], "warm-up trains the same"
    )
    residuals = [
        values
        for name, values in st.read(test.work / f"warm/out/checkpoint-{STEPS}/optimizer.safetensors").items()
        if name.startswith("residual/")
    ]  # fmt: skip
    test.check(len(residuals) == 3 * 4, "residuals of an owner and two workers are saved")
    test.check(all(not values.any() for values in residuals), "warm-up leaves residuals zero")
    for compression in FORMATS[1:]:
        one = runs.run("one", (compression, 2))
        test.check(one[0] != dense[0], f"{compression} is something else than f32")
        two = runs.run("two", (compression, 2, 2))
        test.check(two[0] == one[0], f"{compression}: stages change no loss")
        test.check(two[1] == one[1], f"{compression}: stages change no checkpoint")
        threads = runs.run("threads", (compression, 2), threads=2)
        test.check(threads[:2] == one[:2], f"{compression}: threads change nothing")
    scaled = runs.run("scaled", ("sparse24-int8", 2), "--loss-scale", 1024)
    for line in scaled[0]:
        del line["loss_scale"]
    test.check(scaled[0] == one[0], "a loss scale of 1024 changes no loss")
    test.check(
        scaled[1]["optimizer.safetensors"] == one[1]["optimizer.safetensors"],
        "a loss scale of 1024 changes no residual",
    )
    mpi = runs.run("mpi", ("sparse24-int8", 2), launcher=("mpirun", "-n", 2))
    test.check(mpi[:2] == one[:2], "processes change nothing")


def check_resume(test, runs):
    latest = ("--resume-from-checkpoint", "latest")
    whole = runs.run("whole", ("sparse24", 2))
    runs.run("parts", ("sparse24", 2), steps=3)
    parts = runs.run("parts", ("sparse24", 2, 2), *latest, keep=True)
    test.check(parts[:2] == whole[:2], "a resumed run goes on, on other stages")
    before = st.read(test.work / "parts/out/checkpoint-3/optimizer.safetensors")
    test.check(
        any(values.any() for name, values in before.items() if "residual/worker.1" in name),
        "workers keep something",
    )
    # On four replicas: all that workers keep is shared out again.
    shutil.copytree(test.work / "parts", test.work / "four", dirs_exist_ok=True)
    shutil.rmtree(test.work / "four/out/checkpoint-6")
    four = runs.run("four", ("sparse24", 4), *latest, steps=4, keep=True)
    test.check(
        abs(four[0][3]["loss"] / whole[0][3]["loss"] - 1) < 1e-5, "four replicas go on from two"
    )
    names = [name for name in before if "residual/owner/" in name]
    after = st.read(test.work / "four/out/checkpoint-4/optimizer.safetensors")
    test.check(len(after) == len(before) + 2 * len(names), "four workers are saved")
    # Without compression they are left out, with a note.
    shutil.copytree(test.work / "parts", test.work / "without", dirs_exist_ok=True)
    shutil.rmtree(test.work / "without/out/checkpoint-6")
    _, files, printed = runs.run("without", ("none", 2), *latest, steps=4, keep=True)
    test.check("has residuals of compressed gradients, which" in printed, "they are left out")
    test.check(b"residual/" not in files["optimizer.safetensors"], "they are not saved again")
    # A checkpoint without any starts with none.
    shutil.rmtree(test.work / "without/out/checkpoint-3")
    again = runs.run("without", ("sparse24", 2), *latest, steps=5, keep=True)
    test.check(b"residual/" in again[1]["optimizer.safetensors"], "a dense run is gone on with")


def check_skipped(test, runs):
    """The first update makes all that follows not finite."""
    run = runs.run("skipped", ("sparse24", 2), "--on-nonfinite", "skip", "--save-steps", 1,
                   steps=3, rate=1e38, clip=0)  # fmt: skip
    test.check([("skipped" in line) for line in run[0]] == [False, True, True], "steps are skipped")
    files = [
        (test.work / f"skipped/out/checkpoint-{i}/optimizer.safetensors").read_bytes()
        for i in (1, 2, 3)
    ]
    test.check(files[0] == files[1] == files[2], "skipped steps leave residuals alone")


def main():
    test = Test("compression", __doc__)
    runs = Runs(test)
    check_bytes(test, runs)
    check_bits(test, runs)
    check_resume(test, runs)
    check_skipped(test, runs)
    test.end()


if __name__ == "__main__":
    main()
