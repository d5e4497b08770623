"""What the tests of CUDA executables on the test device share.

An executable is compiled for sm_80 with its twins (test/device/README.md), runs
as it would on a GPU, and must leave the test device silent.
"""

import os
import shutil

import numpy as np
from harness import DATA, TRAINABLE, Test, read_log

import st  # harness adds its folder to the path

MODELS = {model: TRAINABLE[model] for model in ("a1", "a2", "a3", "a5", "a9")}
LOSSES, GRADIENTS = 1e-5, 1e-4  # relative to the CPU executable
RATE = 1e-2
# Where the whole language model trains, AdamW at RATE carries a change of one unit in the last
# place of one element of each weight to 8e-6 of the ninth loss, on one CPU executable; at this
# rate to 1e-7.
RATES = {"a3": 1e-3}


def rate_of(model):
    """The learning rate at which losses of `model` tell a fault from rounding."""
    return RATES.get(model, RATE)


class CudaTest(Test):
    """A test with the arguments --mgq-twin, --device (a folder), and `paths`."""

    def __init__(self, name, doc, *paths, flags=()):
        super().__init__(name, doc, "mgq-twin", "device", *paths, flags=flags)
        self.twins = self.work / "twins"
        self.twins.mkdir()

    def compile_cuda(self, model, trainable, *options, name="cuda"):
        """Compiles `model` for CUDA and makes the twins of its kernels."""
        executable = self.compile(
            model, trainable, "--target=cuda", "--gpu-arch=sm_80",
            f"--emit-twins={self.twins}", *options, name=name,
        )  # fmt: skip
        fresh = [path for path in self.twins.glob("*.bc") if not path.with_suffix(".so").exists()]
        if fresh:  # Programs may have the same kernels.
            self.run(self.args.mgq_twin, *fresh)
        return executable

    def environment(self, **changes):
        """Of a run on the test device, whose delays cost time only here."""
        return {
            **os.environ,
            "MGQ_TWIN_DIR": str(self.twins),
            "LD_LIBRARY_PATH": str(self.args.device),
            "MGQ_FAKE_DELAY": "20",
            **changes,
        }

    def train(self, executable, data, *options, name, rate=RATE, env=None, launcher=()):
        """Runs 10 steps; returns losses, gradient norms and first gradients."""
        log, gradients = self.work / f"{name}.jsonl", self.work / f"{name}.gradients"
        self.run(
            *launcher, executable, "--data", data, "--steps", 10, "--learning-rate", rate,
            "--threads", 1, "--log-file", log, "--dump-gradients", gradients, *options,
            **({"env": env} if env else {}),
        )  # fmt: skip
        return read_log(log), st.read(gradients)

    def train_cuda(self, executable, data, *options, name, rate=RATE, launcher=(), **changes):
        return self.train(
            executable, data, *options, name=name, rate=rate, launcher=launcher,
            env=self.environment(**changes),
        )  # fmt: skip

    def check_close(self, what, got, expected):
        """Losses and gradients of a run against those of the CPU executable."""
        worst = max(
            abs(line["loss"] - right["loss"]) / abs(right["loss"])
            for line, right in zip(got[0], expected[0], strict=True)
        )
        self.check(worst <= LOSSES, f"{what}: losses within {LOSSES}, found {worst:.1e}")
        name, worst = "", 0.0
        for name_of, right in expected[1].items():
            # True zeros, of a bias before a softmax, are rounding noise.
            allowed = GRADIENTS * np.linalg.norm(right) + 1e-7 * np.sqrt(right.size)
            error = np.linalg.norm(got[1][name_of] - right) / allowed * GRADIENTS
            if error > worst:
                name, worst = name_of, error
        self.check(
            worst <= GRADIENTS and got[1].keys() == expected[1].keys(),
            f"{what}: gradients within {GRADIENTS}, found {worst:.1e} {name}",
        )


def write_data(model, path, records=24, seed=7):
    """Records from the model's own, each with other bits."""
    rng = np.random.default_rng(seed)
    tensors = st.read(DATA / model / "inputs.safetensors")
    index = np.arange(records * 2) % len(next(iter(tensors.values())))
    out = {}
    for name, array in tensors.items():
        many = array[index]
        if many.dtype == np.float32:
            many = many * (1 + rng.uniform(0, 0.1, size=many.shape).astype(np.float32))
        out[name] = many
    st.write(path, out)
    return path


def fresh(folder):
    """`folder`, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
