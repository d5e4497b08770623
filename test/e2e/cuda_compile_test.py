#!/usr/bin/env python3
"""The 14B graphs compile for GPUs: time, memory, registers, and what a rank takes.

To an executable for eight ranks and four architectures in 120 s and 6 GB; ptxas spills
no register of any kernel. With layered precision ranks fit 24 GiB, one of them left to
CUDA's libraries, eight and two of them, for LoRA and where only the projection trains,
at a length of 512. Limits of seconds are of processor time, which neighbours on the machine do not stretch.
"""

import re

from compile_time_test import MODELS, measure
from harness import DATA, LORA, Test

SECONDS, BYTES, DEVICE = 120, 6e9, 23 * 2**30
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90")
KERNEL = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
MEMORY = re.compile(r"pipe\.rank @\w+ stage\(\d+\) memory \[([\d, ]+)\]")
CLUSTERS = {8: "eight-24gb.yaml", 2: "two-24gb.yaml"}


def options(test, path, trainable, ranks):
    return [
        test.args.mgq_compile, path, f"--trainable={trainable}", f"--stages={ranks}",
        f"--cluster={DATA.parent / 'clusters' / CLUSTERS[ranks]}", "--micro-batches=8",
        "--precision=layered", "--target=cuda",
    ]  # fmt: skip


def check_executable(test, path):
    output = test.work / "train"
    words = ("--save-temps", "--gradient-compression=sparse24-int8", "-o", output)
    seconds, peak, _ = measure([*options(test, path, LORA, 8), *words])
    test.check(output.exists(), f"{path.stem}: an executable for eight ranks")
    test.check(seconds < SECONDS, f"it takes {seconds:.1f} s of {SECONDS}")
    test.check(peak < BYTES, f"it takes {peak / 1e6:.0f} MB of {BYTES / 1e6:.0f}")
    kernels = set()
    for architecture in ARCHITECTURES:
        report = (test.work / f"train.{architecture}.ptxas.txt").read_text()
        names, sizes = KERNEL.findall(report), SPILLS.findall(report)
        test.check("mgq_combine" in names, f"{architecture}: kernels of compressed gradients")
        test.check(
            len(names) == len(sizes) > 50 and all(size[1:] == ("0", "0") for size in sizes),
            f"{architecture}: no kernel of {len(names)} spills",
        )
        kernels.add(tuple(sorted(names)))
    test.check(len(kernels) == 1, "all architectures have the same kernels")


def check_memory(test, path, trainable, ranks):
    output = test.work / "schedule.mlir"
    measure([*options(test, path, trainable, ranks), "--stop-after=schedule", "-o", output])
    totals = [sum(map(int, found.split(","))) for found in MEMORY.findall(output.read_text())]
    text = ", ".join(f"{total / 2**30:.1f}" for total in totals)
    test.check(
        len(totals) == ranks and max(totals) <= DEVICE, f"{path.stem}: {ranks} ranks take {text} GiB"
    )


def check_repeated(test):
    """Code for an architecture that is named twice is there once."""
    once, twice = (
        test.compile(
            DATA / "a2" / "model.onnx", "llm_proj.*", "--target=cuda", f"--gpu-arch={names}",
            name=name,
        ).read_bytes()
        for name, names in (("once", "sm_80"), ("twice", "sm_80,sm_80"))
    )  # fmt: skip
    test.check(once == twice, "sm_80 twice is sm_80 once")


def main():
    test = Test("cuda-compile", __doc__)
    check_repeated(test)
    folder = DATA / "14b"
    check_executable(test, folder / "mgq14b_lora_23.onnx")
    for model, trainable in MODELS.items():
        for ranks in CLUSTERS:
            check_memory(test, folder / f"{model}.onnx", trainable, ranks)
    test.end()


if __name__ == "__main__":
    main()
