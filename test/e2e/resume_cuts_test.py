#!/usr/bin/env python3
"""A checkpoint knows nothing of stages, schedules or replicas.

a3 trains its whole language model. A run on two stages stops after 4 steps; one
on three stages with split weight gradients goes on, then one on a single stage,
then two processes: log and last checkpoint are those of an undisturbed run.
Replicas: two replicas of two micro-batches compute, up to the order of sums,
what one of four does, and however the replicas are cut and launched, the same
bits. The profile of a run fits the compiler that plans the next one.
"""

import json

from harness import DATA, Test, read_folder, read_log

MODEL = DATA / "a3" / "model.onnx"
TRAINABLE = "llm_model.*,llm_proj.*"
STEPS = 12


def run(test, executable, name, *options, ranks=0):
    folder = test.work / name
    folder.mkdir(exist_ok=True)
    launcher = ["mpirun", "-n", ranks] if ranks else []
    test.run(
        *launcher, executable, "--data", DATA / "a3" / "inputs.safetensors",
        "--learning-rate", 1e-2, "--threads", 1, "--output-dir", folder / "out",
        "--log-file", folder / "log", "--max-grad-norm", 1, *options,
    )  # fmt: skip
    return read_log(folder / "log"), read_folder(folder / "out" / "checkpoint-12") if (
        folder / "out" / "checkpoint-12"
    ).exists() else {}


def check_resume(test):
    def compile(stages, schedule):
        return test.compile(
            MODEL, TRAINABLE, "--micro-batches=4", f"--stages={stages}",
            f"--schedule={schedule}", name=f"train-{stages}-{schedule}",
        )  # fmt: skip

    one, two = compile(1, "one_f_one_b"), compile(2, "one_f_one_b")
    three = compile(3, "zero_bubble")
    whole = run(test, one, "whole", "--steps", STEPS)
    latest = ("--resume-from-checkpoint", "latest")
    run(test, two, "cut", "--steps", 4)
    run(test, three, "cut", "--steps", 8, *latest)
    run(test, one, "cut", "--steps", 10, *latest)
    got = run(test, two, "cut", "--steps", STEPS, *latest, ranks=2)
    test.check(len(whole[0]) == STEPS and len(whole[1]) == 3, "the whole run is complete")
    test.check(got[0] == whole[0], "2 -> 3 -> 1 -> 2 stages: log")
    test.check(got[1] == whole[1], "2 -> 3 -> 1 -> 2 stages: checkpoint")
    return one


def check_replicas(test, one):
    def compile(stages, name):
        return test.compile(
            MODEL, TRAINABLE, "--micro-batches=2", "--replicas=2", f"--stages={stages}", name=name
        )

    flat, cut = compile(1, "flat"), compile(2, "cut2")
    reference, _ = run(test, one, "one replica", "--steps", STEPS)
    first = run(test, flat, "replicas", "--steps", STEPS)
    second = run(test, cut, "replicas cut", "--steps", STEPS)
    third = run(test, cut, "replicas processes", "--steps", STEPS, ranks=4)
    close = all(
        abs(a["loss"] - b["loss"]) <= 1e-5 * abs(b["loss"])
        and abs(a["grad_norm"] - b["grad_norm"]) <= 1e-4 * b["grad_norm"]
        and a["samples"] == b["samples"]
        for a, b in zip(first[0], reference)
    )
    test.check(len(first[0]) == STEPS and close, "two replicas learn what one does")
    test.check(second == first, "replicas of two stages: same bits")
    test.check(third == first, "replicas of two stages as processes: same bits")


def check_profile(test):
    options = ("--micro-batches=4", "--stages=2")
    executable = test.compile(MODEL, TRAINABLE, *options, name="profiled")
    profile = test.work / "profile.json"
    run(test, executable, "profile", "--steps", STEPS, "--profile", profile)
    layers = [l for rank in json.loads(profile.read_text())["ranks"] for l in rank["layers"]]
    seconds = sum(l["forward_seconds"] + l["backward_seconds"] for l in layers)
    planned = test.work / "plan.json"
    test.run(
        test.args.mgq_compile, MODEL, f"--trainable={TRAINABLE}", *options,
        f"--profile={profile}", f"--plan={planned}",
    )  # fmt: skip
    plan = json.loads(planned.read_text())
    work = sum(r["forward_seconds"] + r["backward_seconds"] for r in plan["ranks"])
    test.check(
        0.5 * work < 4 * seconds < 2 * work,
        f"the plan has {work:.6f} s of work a step, the profile {4 * seconds:.6f} s",
    )


def main():
    test = Test("resume-cuts", __doc__)
    one = check_resume(test)
    check_replicas(test, one)
    check_profile(test)
    test.end()


if __name__ == "__main__":
    main()
