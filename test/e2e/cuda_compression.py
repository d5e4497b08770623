"""Compressed gradients of CUDA executables, for cuda_ranks_test.py.

On the test device they must do what the CPU's do: send as many bytes, lose the
same, and give the same bits over launchers, stages and resumes.
"""

import json
import shutil

import numpy as np
import onnx
from cuda import fresh
from harness import read_folder, read_log

import mlp  # harness adds its folder to the path
import st

# Parameters of several blocks, one of which is no whole block: 576, and 1152 values.
SIZES = dict(batch=2, length=4, vocabulary=16, width=64, hidden=128, rank=9, blocks=2)
STEPS, WARMUP = 5, 2
CLOSE = 1e-5  # relative to the CPU executable


class Runs:
    def __init__(self, test):
        self.test, self.work = test, fresh(test.work / "compressed")
        self.model, self.data = self.work / "model.onnx", self.work / "data"
        onnx.save(mlp.build(**SIZES), self.model)
        st.write(self.data, mlp.data(48, batch=2, length=4))

    def executable(self, target, compression, replicas, stages=1):
        """Where that is, if it has been compiled."""
        return self.test.work / f"{target}-{compression}-{replicas}-{stages}"

    def compile(self, target, compression, replicas, stages=1):
        words = (
            f"--replicas={replicas}", f"--micro-batches={4 // replicas}", f"--stages={stages}",
            f"--gradient-compression={compression}",
        )  # fmt: skip
        name = self.executable(target, compression, replicas, stages).name
        if target == "cuda":
            return self.test.compile_cuda(self.model, mlp.TRAINABLE, *words, name=name)
        return self.test.compile(self.model, mlp.TRAINABLE, *words, name=name)

    def run(self, name, executable, *options, steps=STEPS, warmup=WARMUP, rate=3e-4, launcher=(),
            keep=False):  # fmt: skip
        """Log, tensors and bytes of the last checkpoint, and bytes sent by each rank."""
        folder = self.work / name
        if not keep:
            fresh(folder)
        self.test.run(
            *launcher, executable, "--data", self.data, "--steps", steps, "--learning-rate", rate,
            "--threads", 1, "--compression-warmup", warmup, "--output-dir", folder,
            "--log-file", folder / "log", "--summary", folder / "summary.json", *options,
            env=self.test.environment(MGQ_FAKE_DEVICES="4"),
        )  # fmt: skip
        last = folder / f"checkpoint-{steps}"
        tensors = {
            name: array
            for file in ("model.safetensors", "optimizer.safetensors")
            for name, array in st.read(last / file).items()
        }
        ranks = json.loads((folder / "summary.json").read_text())["ranks"]
        sent = [rank["bytes_sent"]["gradient"] for rank in ranks]
        return read_log(folder / "log"), tensors, read_folder(last), sent


def check_close(test, what, got, right, part=""):
    """Losses and the tensors whose names begin with `part`; parameters by default. (What
    the optimizer keeps of a gradient may differ by what one is rounded to.)"""
    losses = max(
        abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(got[0], right[0], strict=True)
    )
    worst, name = max(
        (np.abs(got[1][name] - array).max() / max(np.abs(array).max(), 1e-30), name)
        for name, array in right[1].items()
        if (name.startswith(part) if part else "/" not in name)
    )
    test.check(losses <= CLOSE, f"{what}: losses within {CLOSE}, found {losses:.1e}")
    test.check(worst <= CLOSE, f"{what}: tensors within {CLOSE}, found {worst:.1e} {name}")
    test.check(got[1].keys() == right[1].keys(), f"{what}: same tensors")


def check_cuts(runs, name, one):
    """The same on two stages, in processes, and resumed."""
    test, cut = runs.test, runs.compile("cuda", name, 2, stages=2)
    two = runs.run("cut", cut, launcher=("mpirun", "-n", 4))
    test.check(two[0] == one[0] and two[2] == one[2], "compressed: stages and processes")
    runs.run("parts", cut, steps=3)
    latest = ("--resume-from-checkpoint", "latest")
    parts = runs.run("parts", runs.executable("cuda", name, 2), *latest, keep=True)
    test.check(parts[0] == one[0] and parts[2] == one[2], "compressed: a resume on another cut")
    # What four workers of another target keep is shared out to two.
    runs.run("four", runs.compile("cpu", name, 4), steps=3)
    both = {}
    for target in ("cpu", "cuda"):
        shutil.copytree(runs.work / "four", runs.work / f"two-{target}")
        both[target] = runs.run(
            f"two-{target}", runs.executable(target, name, 2), *latest, steps=4, keep=True
        )
    for part in ("", "residual/worker.", "residual/owner/"):
        check_close(test, f"four workers on two GPUs {part}", both["cuda"], both["cpu"], part)


def check_skipped(runs, name):
    """The first update makes all that follows not finite."""
    options = ("--on-nonfinite", "skip", "--max-grad-norm", 0, "--save-steps", 1)
    executable = runs.executable("cuda", name, 2)
    log, *_ = runs.run("skipped", executable, *options, steps=3, warmup=0, rate=1e38)
    files = [
        (runs.work / f"skipped/checkpoint-{i}/optimizer.safetensors").read_bytes()
        for i in (1, 2, 3)
    ]
    good = ["skipped" in line for line in log] == [False, True, True] and len(set(files)) == 1
    runs.test.check(good, "compressed: skipped steps leave residuals alone")


def check_compression(test):
    runs = Runs(test)
    for compression in ("bf16", "sparse24", "sparse24-int8"):
        right = runs.run("cpu", runs.compile("cpu", compression, 2))
        one = runs.run(compression, runs.compile("cuda", compression, 2))
        check_close(test, compression, one, right)
        test.check(one[3] == right[3], f"{compression}: {sum(one[3])} bytes are sent")
        kept = [one[1][name] for name in one[1] if name.startswith("residual/")]
        good = len(kept) == 3 * 4 and all(array.any() for array in kept)
        test.check(good, f"{compression}: residuals are kept")
    check_cuts(runs, compression, one)
    check_skipped(runs, compression)
