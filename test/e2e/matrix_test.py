#!/usr/bin/env python3
"""However a model is cut, it computes the same bits.

For each model and number of micro-batches a run on one stage is the reference:
losses, gradient norms, first gradients and final parameters of every other cut,
schedule, transport and number of threads must equal it bit by bit. The models:
LoRA (a1), projection only (a2), a whole language model (a3), padded text (a5),
trained parts below frozen ones (a9), tied weights (b1, GPT-2), an
encoder-decoder (b2, Whisper).

A sample runs by default; --full runs every combination (half an hour).
"""

import itertools
import shutil

import numpy as np
from harness import DATA, TRAINABLE, Test, read_folder, read_log

import st  # harness adds its folder to the path

MODELS = ("a1", "a2", "a3", "a5", "a9", "b1_gpt2", "b2_whisper")
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zero_bubble", "auto")
# Micro-batches, stages, schedule, compute threads, transport.
SAMPLE = (
    (1, 4, "gpipe", 1, "threads"),
    (2, 3, "zero_bubble", 2, "threads"),
    (4, 2, "one_f_one_b", 1, "threads"),
    (4, 4, "interleaved", 1, "mpi"),
    (8, 3, "auto", 1, "threads"),
)
STEPS = 10
RECORDS = 24  # not a multiple of 8 micro-batches: epochs end within the run


def write_data(model, path, rng):
    """Records from the model's own, each with other bits."""
    tensors = st.read(DATA / model / "inputs.safetensors")
    leading = {array.shape[0] for array in tensors.values()}
    assert len(leading) == 1, leading
    index = np.arange(RECORDS * 2) % leading.pop()
    out = {}
    for name, array in tensors.items():
        many = array[index]
        if many.dtype == np.float32:
            many = many * (1 + rng.uniform(0, 0.1, size=many.shape).astype(np.float32))
        out[name] = many
    st.write(path, out)


class Matrix:
    def __init__(self, test, *flags):
        self.test = test
        self.flags = flags  # of every compilation
        self.executables = {}
        self.references = {}

    def executable(self, model, micro_batches, stages, schedule):
        key = (model, micro_batches, stages, schedule)
        if key not in self.executables:
            name = "-".join(map(str, (*key, *self.flags))).replace("=", "")
            self.executables[key] = self.test.compile(
                DATA / model / "model.onnx", TRAINABLE[model.split("_")[0]],
                f"--micro-batches={micro_batches}", f"--stages={stages}",
                f"--schedule={schedule}", *self.flags, name=name,
            )  # fmt: skip
        return self.executables[key]

    def results(self, executable, model, stages, threads, transport):
        """Log and files of a run."""
        folder = self.test.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        launcher = ["mpirun", "-n", stages] if transport == "mpi" else []
        self.test.run(
            *launcher, executable, "--data", self.test.work / f"{model}.safetensors",
            "--steps", STEPS, "--learning-rate", 1e-2, "--max-grad-norm", 1,
            "--threads", threads, "--output-dir", folder / "out",
            "--log-file", folder / "log", "--dump-gradients", folder / "gradients",
        )  # fmt: skip
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return log, read_folder(folder)

    def check(self, model, micro_batches, stages, schedule, threads, transport):
        key = (model, micro_batches)
        if key not in self.references:
            one = self.executable(model, micro_batches, 1, "one_f_one_b")
            self.references[key] = self.results(one, model, 1, 1, "threads")
        log, files = self.references[key]
        executable = self.executable(model, micro_batches, stages, schedule)
        got = self.results(executable, model, stages, threads, transport)
        what = f"{model} {micro_batches}x {stages} stages {schedule} {threads} {transport}"
        what += " " + " ".join(self.flags)
        self.test.check(len(log) == STEPS and log[0] != log[-1], f"{what}: trains")
        self.test.check(got[0] == log, f"{what}: same losses and norms")
        self.test.check(got[1] == files, f"{what}: same gradients and parameters")


def main():
    test = Test("matrix", __doc__, flags=("full",))
    rng = np.random.default_rng(7)
    matrix = Matrix(test)
    for model in MODELS:
        write_data(model, test.work / f"{model}.safetensors", rng)
    cases = SAMPLE
    if test.args.full:
        cases = itertools.product(
            (1, 2, 4, 8), (1, 2, 3, 4), SCHEDULES, (1, 2), ("threads", "mpi")
        )
    for case, model in itertools.product(cases, MODELS):
        matrix.check(model, *case)
    test.end()


if __name__ == "__main__":
    main()
