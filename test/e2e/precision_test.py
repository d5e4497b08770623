#!/usr/bin/env python3
"""Layered and bf16 precision: the same bits however a model is cut, losses near
those of f32, frozen weights in half the memory.
"""

import json
import math
import re
import shutil

import numpy as np
from harness import DATA, LORA, Test, read_log
from matrix_test import MODELS, Matrix, write_data

PRECISIONS = ("layered", "bf16")
CASES = {  # as matrix_test's, model by model
    "a1": ((2, 3, "zero_bubble", 2, "threads"), (4, 4, "interleaved", 1, "mpi")),
    "a3": ((4, 3, "zero_bubble", 1, "threads"),),
    "a9": ((4, 2, "one_f_one_b", 2, "threads"),),
    "b1_gpt2": ((2, 3, "gpipe", 1, "threads"),),
    "b2_whisper": ((2, 2, "zero_bubble", 2, "threads"),),
}


def check_cuts(test):
    """The same bits; and other bits than f32's, but near."""
    rng = np.random.default_rng(7)
    for model in CASES:
        write_data(model, test.work / f"{model}.safetensors", rng)
    wide = Matrix(test)
    for precision in PRECISIONS:
        matrix = Matrix(test, f"--precision={precision}")
        for model, cases in CASES.items():
            for case in cases:
                matrix.check(model, *case)
            micro_batches = cases[0][0]
            executable = wide.executable(model, micro_batches, 1, "one_f_one_b")
            f32 = wide.results(executable, model, 1, 1, "threads")[0]
            log = matrix.references[model, micro_batches][0]
            what = f"{model} {precision}"
            frozen = MODELS[model] != "*"  # else layered has nothing to round
            rounds = precision == "bf16" or frozen
            test.check((log != f32) == rounds, f"{what}: {'rounds' if rounds else 'is f32'}")
            worst = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(log, f32))
            test.check(worst < 0.02, f"{what}: losses near f32's, worst {worst:.2e}")


def weights_of(test, *flags):
    """Bytes of frozen weights in the arena of one rank; of these, of weights that are
    only rounded: unless they are, kernels read them in the file."""
    path, folder = test.work / "plan.json", test.work / "ir"
    shutil.rmtree(folder, ignore_errors=True)
    test.run(
        test.args.mgq_compile, DATA / "a1" / "model.onnx", f"--trainable={LORA}",
        f"--plan={path}", f"--dump-ir={folder}", *flags,
    )  # fmt: skip
    plan = json.loads(path.read_text())
    trained = 4 * sum(layer["trainable_parameters"] for layer in plan["layers"])
    last = max(folder.rglob("*pipe-plan-memory.mlir"), key=lambda file: file.name)
    calls = re.findall(r'call "?@?"?round\.([0-9x]+)\.bf16', last.read_text())
    rounded = sum(2 * math.prod(map(int, shape.split("x"))) for shape in calls)
    return plan["ranks"][0]["memory_bytes"]["weights"] - trained, rounded


def check_memory(test):
    """Of what is packed; what is read in the file in f32 becomes half of it too."""
    whole, none = weights_of(test)
    test.check(none == 0, "f32 rounds nothing")
    for precision in PRECISIONS:
        half, rounded = weights_of(test, f"--precision={precision}")
        half -= rounded
        test.check(2 * half == whole, f"{precision}: {half} bytes are half of {whole}")
    kept = weights_of(test, "--precision=layered", "--precision-of=*=f32")
    test.check(kept == (whole, 0), "--precision-of=*=f32 keeps all weights f32")


def main():
    test = Test("precision", __doc__)
    check_cuts(test)
    check_memory(test)
    test.end()


if __name__ == "__main__":
    main()
