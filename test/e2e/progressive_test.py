#!/usr/bin/env python3
"""Progressive precision: layers change from f32 to bf16 when they should, and with the
same bits however the model is cut and wherever a run is resumed.
"""

import shutil

import numpy as np
from harness import DATA, LORA, Test, read_folder, read_log
from matrix_test import write_data

MODEL = "a1"
STEPS = 8
NEVER = 1000
F32_STEPS, RAMP = 2, 3  # the last layers change with step 6


def run(test, executable, name, *options, steps=STEPS):
    """Trains; returns what was printed and the log."""
    log = test.work / f"{name}.jsonl"
    text = test.run(
        executable, "--data", test.work / "data.safetensors", "--steps", steps,
        "--log-file", log, *options,
    )  # fmt: skip
    return text, read_log(log)


def losses(test, name, *flags):
    """Losses and gradient norms while nothing is learnt: they tell of the phase alone."""
    executable = test.compile(DATA / MODEL / "model.onnx", LORA, *flags, name=name)
    text, log = run(test, executable, name, "--learning-rate", 0, "--weight-decay", 0)
    return text, [(line["loss"], line["grad_norm"]) for line in log]


def check_phases(test):
    layered = "--precision=layered"
    early = losses(test, "early", layered, f"--fp32-steps={NEVER}")[1]
    late = losses(test, "late", layered)[1]
    text, both = losses(test, "both", layered, f"--fp32-steps={F32_STEPS}", f"--bf16-ramp={RAMP}")
    end = F32_STEPS + RAMP
    test.check(both[:F32_STEPS] == early[:F32_STEPS], "first steps in f32")
    test.check(both[end:] == late[end:], "bf16 after the ramp")
    ramp = range(F32_STEPS, end)
    test.check(all(early[i] != late[i] for i in range(STEPS)), "phases differ")
    test.check(any(both[i] not in (early[i], late[i]) for i in ramp), "mixed on the ramp")
    told = [line for line in text.splitlines() if "change to bf16" in line]
    test.check(len(told) == RAMP, f"changes are told: {told}")
    wide = losses(test, "wide")[1]
    near = all(abs(a[0] / b[0] - 1) < 1e-3 for a, b in zip(early, wide))
    test.check(near and early != wide, "frozen weights are bf16 in both phases")


def check_cuts(test):
    """Cuts, and a run that ends on the ramp and goes on with other cuts."""
    flags = ("--precision=layered", f"--fp32-steps={F32_STEPS}", f"--bf16-ramp={RAMP}", "--micro-batches=2")
    cuts = [("--stages=1",), ("--stages=3", "--schedule=zero_bubble")]
    one, three = (
        test.compile(DATA / MODEL / "model.onnx", LORA, *flags, *cut, name=f"cut{i}")
        for i, cut in enumerate(cuts)
    )
    folders = {name: test.work / name for name in ("whole", "cut", "resumed")}
    evaluate = ("--eval-data", test.work / "data.safetensors", "--eval-steps", 3)

    def train(executable, name, *options, folder=None, steps=STEPS):
        output = ("--output-dir", folders[folder or name])
        options = ("--learning-rate", 1e-2, *output, *evaluate, *options)
        return run(test, executable, name, *options, steps=steps)[1]

    whole = train(one, "whole")
    test.check(train(three, "cut") == whole, "three stages: log")
    test.check(read_folder(folders["whole"]) == read_folder(folders["cut"]), "three stages: parameters")
    for step in (1, 3, 4):
        shutil.rmtree(folders["resumed"], ignore_errors=True)
        train(one, "resumed", steps=step)
        latest = ("--resume-from-checkpoint", "latest")
        log = train(three, "resumed", *latest)
        test.check(log[-1]["loss"] == whole[-1]["loss"], f"resumed after {step}: losses")
        last = f"checkpoint-{STEPS}"
        same = read_folder(folders["resumed"] / last) == read_folder(folders["whole"] / last)
        test.check(same, f"resumed after {step}: parameters")


def main():
    test = Test("progressive", __doc__)
    write_data(MODEL, test.work / "data.safetensors", np.random.default_rng(7))
    check_phases(test)
    check_cuts(test)
    test.end()


if __name__ == "__main__":
    main()
