#!/usr/bin/env python3
"""Layered and bf16 precision: the same bits however a model is cut, losses near
those of f32, frozen weights in half the memory.
"""

import re
import shutil

import numpy as np
from harness import DATA, LORA, Test
from matrix_test import Matrix, write_data

CASES = {  # as matrix_test's, by precision and model
    "layered": {
        "a1": ((2, 3, "zero_bubble", 2, "threads"),),
        "a9": ((2, 2, "one_f_one_b", 1, "mpi"),),
    },
    "bf16": {
        "a1": ((2, 4, "interleaved", 1, "threads"),),
        "a3": ((2, 3, "zero_bubble", 2, "threads"),),
    },
}


def check_cuts(test):
    """The same bits; and other bits than f32's, but near."""
    rng = np.random.default_rng(7)
    for model in {model for cases in CASES.values() for model in cases}:
        write_data(model, test.work / f"{model}.safetensors", rng)
    wide = Matrix(test)
    references = {}
    for precision, models in CASES.items():
        matrix = Matrix(test, f"--precision={precision}")
        for model, case in ((model, case) for model in models for case in models[model]):
            matrix.check(model, *case)
            if model not in references:
                executable = wide.executable(model, case[0], 1, "one_f_one_b")
                references[model] = wide.results(executable, model, 1, 1, "threads")[0]
            log, f32 = matrix.references[model, case[0]][0], references[model]
            test.check(log != f32, f"{model} {precision}: rounds")
            worst = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(log, f32))
            test.check(worst < 0.02, f"{model} {precision}: losses near f32's, worst {worst:.2e}")


def prepared_weights(test, *flags):
    """Bytes of frozen weights that are packed at load, and of those only rounded."""
    folder = test.work / "ir"
    shutil.rmtree(folder, ignore_errors=True)
    test.run(
        test.args.mgq_compile, DATA / "a1" / "model.onnx", f"--trainable={LORA}",
        "--stop-after=schedule", "-o", test.work / "schedule.mlir", f"--dump-ir={folder}", *flags,
    )  # fmt: skip
    (planned,) = folder.rglob("*pipe-plan-memory.mlir")
    call = r'call @"?(pack|round)\.\S+ \[[^,]+(?:, \d+>)?, #pipe.arena<\d+, (\d+)>\]'
    found = re.findall(call, planned.read_text())
    return [sum(int(n) for kind, n in found if kind == which) for which in ("pack", "round")]


def check_memory(test):
    """Of what is packed; what f32 reads in the file is rounded into half of that."""
    packed, rounded = prepared_weights(test)
    test.check(packed > 0 and rounded == 0, "f32 rounds nothing")
    for precision in CASES:
        half, rounded = prepared_weights(test, f"--precision={precision}")
        test.check(2 * half == packed and rounded > 0, f"{precision}: {half} bytes are half of {packed}")
    kept = prepared_weights(test, "--precision=layered", "--precision-of=*=f32")
    test.check(kept == [packed, 0], "--precision-of=*=f32 keeps all weights f32")


def main():
    test = Test("precision", __doc__)
    check_cuts(test)
    check_memory(test)
    test.end()


if __name__ == "__main__":
    main()
