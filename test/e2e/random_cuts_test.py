#!/usr/bin/env python3
"""Random small models, trained parts, options and cuts compute the bits of one stage.

Losses, norms, evaluations, gradients and checkpoints of three steps are compared. What
the compiler refuses must be refused with one sentence. MGQ_CASES (5) cases from
MGQ_SEED (1) on; each seed is a case.
"""

import os
import random
import subprocess

import numpy as np
import onnx
from harness import Test, read_folder, read_log

import mlp  # harness adds its folder to the path
import st


class Case:
    """What a seed stands for."""

    def __init__(self, seed):
        self.random = draw = random.Random(seed)
        self.seed = seed
        self.sizes = {
            "batch": draw.choice((1, 2, 3)),
            "length": draw.choice((1, 2, 4, 6)),
            "vocabulary": draw.choice((7, 16, 18)),
        }
        blocks = draw.randint(1, 5)
        self.shape = {
            "blocks": blocks, "width": draw.choice((4, 6, 8, 12, 17)),
            "hidden": draw.choice((8, 13, 40)), "rank": draw.choice((1, 2, 3)),
            "dropout": draw.choice((0.0, 0.0, 0.25)),
        }  # fmt: skip
        self.trainable = self.choose_trainable(blocks)
        self.replicas = draw.choice((1, 1, 1, 2, 3))
        self.micro_batches = draw.randint(1, 4)
        self.common = [f"--micro-batches={self.micro_batches}", f"--replicas={self.replicas}"]
        self.choose_precision()
        formats = ("bf16", "sparse24", "sparse24-int8")
        self.compressed = self.replicas > 1 and draw.random() < 0.4
        if self.compressed:
            self.common.append(f"--gradient-compression={draw.choice(formats)}")
        self.choose_cut(blocks)

    def choose_trainable(self, blocks):
        draw = self.random
        names = [
            f"blocks.{block}.{part}"
            for block in range(blocks)
            for part in ("lora_A", "lora_B", "up", "down")
            if draw.random() < 0.25
        ]
        names += [name for name, share in (("head", 0.3), ("embed", 0.15)) if draw.random() < share]
        return ",".join(names or [f"blocks.{blocks - 1}.lora_[AB]"])

    def choose_precision(self):
        draw = self.random
        precision = draw.choice(("f32", "layered", "layered", "bf16"))
        self.common.append(f"--precision={precision}")
        if precision != "f32" and draw.random() < 0.4:
            self.common.append(f"--fp32-steps={draw.choice((1, 2))}")
            if draw.random() < 0.5:
                self.common.append("--bf16-ramp=2")
        # What is computed again is not rounded as what is kept (docs/Precision.md).
        self.again = [f"--recompute={draw.choice(('none', 'cheap', 'full'))}"]
        if precision != "f32":
            self.common += self.again
            self.again = []

    def choose_cut(self, blocks):
        draw = self.random
        schedules = ("gpipe", "one_f_one_b", "interleaved", "zero_bubble", "auto")
        stages = draw.randint(2, min(4, blocks + 2))
        self.cut = [*self.again, f"--stages={stages}", f"--schedule={draw.choice(schedules)}"]
        for option, values, share in (
            ("frozen", ("stage", "replicated", "sharded"), 0.4),
            ("overlap", ("off",), 0.3),
            ("partition", ("uniform", "parameters", "flops"), 0.3),
            ("bucket-size", ("64", "1024"), 0.3),
        ):
            if draw.random() < share:
                self.cut.append(f"--{option}={draw.choice(values)}")

    def write(self, model, data):
        onnx.save(mlp.build(**self.sizes, **self.shape, seed=self.seed), str(model))
        samples = 3 * self.sizes["batch"] * self.micro_batches * self.replicas
        records = mlp.data(samples, **self.sizes)
        holes = np.random.default_rng(self.seed).random(records["labels"].shape) < 0.3
        if self.random.random() < 0.5:
            records["labels"][holes] = -100
        st.write(data, records)


class Cuts:
    def __init__(self):
        self.test = Test("random-cuts", __doc__)
        self.refused = 0

    def compile(self, case, model, executable, options):
        """Whether `case` compiled; a refusal is one line."""
        words = [
            self.test.args.mgq_compile, model, "-o", executable,
            f"--trainable={case.trainable}", *options,
        ]  # fmt: skip
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode == 0:
            return True
        line = done.stderr.strip()
        said = line.startswith("mgq-compile: error: ") and "\n" not in line and "' op " not in line
        allowed = "--stages=" in " ".join(options) and done.returncode == 1
        self.test.check(said and allowed, f"{case.seed}: refused: {line}")
        self.refused += 1
        return False

    def train(self, case, executable, data, folder):
        folder.mkdir()
        warmup = ("--compression-warmup", 1) if case.compressed else ()
        self.test.run(
            executable, "--data", data, "--eval-data", data, "--steps", 3, "--threads", 1,
            "--learning-rate", 1e-2, "--output-dir", folder / "out", "--on-nonfinite", "skip",
            "--log-file", folder / "log", "--dump-gradients", folder / "gradients", *warmup,
        )  # fmt: skip
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return repr(log), read_folder(folder)  # NaNs are equal in text.

    def check(self, seed):
        case, work = Case(seed), self.test.work / str(seed)
        work.mkdir()
        model, data = work / "model.onnx", work / "data"
        case.write(model, data)
        what = f"{seed}: {case.sizes | case.shape} {case.trainable} {' '.join(case.common)}"
        print(f"{what} | {' '.join(case.cut)}", flush=True)
        results = []
        for name, options in (("one", case.common), ("cut", case.common + case.cut)):
            if not self.compile(case, model, work / name, options):
                return
            results.append(self.train(case, work / name, data, work / f"{name}-run"))
            (work / name).unlink()
        self.test.check(results[0][0] == results[1][0], f"{seed}: losses and norms")
        self.test.check(results[0][1] == results[1][1], f"{seed}: gradients and parameters")


def main():
    cuts = Cuts()
    first, count = (int(os.environ.get(f"MGQ_{name}", default)) for name, default in
                    (("SEED", 1), ("CASES", 5)))  # fmt: skip
    for seed in range(first, first + count):
        cuts.check(seed)
    cuts.test.check(2 * cuts.refused < count, f"{cuts.refused} of {count} cases are refused")
    cuts.test.end()


if __name__ == "__main__":
    main()
