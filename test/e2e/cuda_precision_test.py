#!/usr/bin/env python3
"""bf16, layered and progressive precision on the test device.

Losses of 10 steps are within 1e-2 of the CPU executable's in f32, and differ from
those of f32; steps before the change of progressive precision, whose frozen weights
are rounded already, too.
"""

from cuda import MODELS, CudaTest
from harness import DATA

BF16 = 1e-2  # relative to f32
PRECISIONS = {
    "layered": (MODELS, "--precision=layered"),
    "bf16": (("a3",), "--precision=bf16"),
    "progressive": (("a1",), "--precision=bf16", "--fp32-steps=4", "--bf16-ramp=3"),
}


def main():
    test = CudaTest("cuda-precision", __doc__)
    for model, trainable in MODELS.items():
        path, data = DATA / model / "model.onnx", DATA / model / "inputs.safetensors"
        options = (path, trainable, "--micro-batches=2")
        right = test.train(test.compile(*options, name=f"cpu-{model}"), data, name="cpu")
        for precision, (models, *flags) in PRECISIONS.items():
            if model not in models:
                continue
            what = f"{model} in {precision}"
            program = test.compile_cuda(*options, *flags, name=f"{model}-{precision}")
            log, _ = test.train_cuda(program, data, name=precision)
            worst = max(
                abs(line["loss"] - other["loss"]) / abs(other["loss"])
                for line, other in zip(log, right[0], strict=True)
            )
            test.check(0 < worst <= BF16, f"{what}: losses within {BF16}, found {worst:.1e}")
    test.end()


if __name__ == "__main__":
    main()
