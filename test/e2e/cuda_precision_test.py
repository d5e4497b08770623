#!/usr/bin/env python3
"""bf16, layered and progressive precision on the test device.

Losses of 10 steps are within 1e-2 of the CPU executable's in f32, and differ from
those of f32; steps before the change of progressive precision, whose frozen weights
are rounded already, too.

cuDNN computes the attention of these. Without it the program's own kernels do, and
say so; what cuDNN says of a fault is said.
"""

import subprocess

from cuda import MODELS, CudaTest, fresh
from harness import DATA

BF16 = 1e-2  # relative to f32
PRECISIONS = {
    "layered": (MODELS, "--precision=layered"),
    "bf16": (("a3",), "--precision=bf16"),
    "progressive": (("a1",), "--precision=bf16", "--fp32-steps=4", "--bf16-ramp=3"),
}


def start(test, program, data, *options, **changes):
    """Standard error and status of a run."""
    done = subprocess.run(
        [program, "--data", data, "--steps", "4", *options],
        capture_output=True, text=True, timeout=120, env=test.environment(**changes),
    )  # fmt: skip
    return done.stderr, done.returncode


def check_without_cudnn(test, program, data, with_cudnn):
    """No library, or one that finds no cuDNN: the program's own kernels."""
    note = "note: attention runs on the program's own kernels, not on cuDNN: "
    folder, empty = fresh(test.work / "libraries"), fresh(test.work / "empty")
    for name in ("libcuda.so.1", "libcublasLt.so.13"):
        (folder / name).symlink_to(test.args.device / name)
    (folder / "libmgq_cudnn.so").touch()
    nowhere = {"CUDA_HOME": str(empty), "VIRTUAL_ENV": "", "CONDA_PREFIX": "", "HOME": str(empty)}
    none = ",".join(f"mgq_cudnn_open:{call}:3" for call in range(1, 40))
    for what, changes in (
        ("no libmgq_cudnn.so", {"LD_LIBRARY_PATH": str(folder), **nowhere}),
        ("no libcudnn.so.9", {"MGQ_FAKE_FAIL": none}),
    ):
        path = test.work / "own.jsonl"
        text, code = start(test, program, data, "--log-file", path, "--shuffle", "off", **changes)
        test.check(code == 0 and text.count(note) == 1, f"{what} is no error: {text}")
    text, code = start(test, program, data)
    test.check(code == 0 and "cuDNN" not in text, f"with cuDNN nothing is said: {text}")
    own, _ = test.train_cuda(program, data, name="own", MGQ_FAKE_FAIL=none)
    pairs = [(a["loss"], b["loss"]) for a, b in zip(own, with_cudnn, strict=True)]
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    test.check(0 < worst <= BF16, f"own kernels and cuDNN: losses within {BF16}: {worst:.1e}")


def check_faults(test, program, data):
    """Each call, and cuDNN's text. What fails at the start is left to the program's kernels;
    in a step, nothing is."""
    note = "note: 1 kind of attention runs on the program's own kernels, not on cuDNN: "
    for failure, expected in (
        ("mgq_cudnn_open:1:2", (": CUDNN_STATUS_INTERNAL_ERROR", "attention of 2 x 4 ")),
        ("mgq_cudnn_backward:1:2", ("mgq_cudnn_backward: CUDNN_STATUS_EXECUTION_FAILED (attention",)),
    ):  # fmt: skip
        text, code = start(test, program, data, MGQ_FAKE_FAIL=failure)
        good = code == 0 and text.count(note) == 1 and all(word in text for word in expected)
        test.check(good, f"{failure}: {text}")
    text, code = start(test, program, data, MGQ_FAKE_FAIL="mgq_cudnn_forward:14:2")
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    good = code == 1 and len(lines) == 1 and "mgq_cudnn_forward: " in lines[0]
    test.check(good and "in layer function " in lines[0], f"cuDNN fails in a step: {text}")


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
            if what == "a1 in layered":
                check_without_cudnn(test, program, data, log)
                check_faults(test, program, data)
    test.end()


if __name__ == "__main__":
    main()
