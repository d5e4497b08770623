#!/usr/bin/env python3
"""Compares training of a shipped model with PyTorch's recorded results.

  golden_test.py MODEL_DIR --mgq-compile PATH --work DIR

MODEL_DIR holds model.onnx, inputs.safetensors (4 records) and golden.safetensors
(see test/data/models/README.md). Two executables are compiled: one micro-batch a
step for losses and first gradients, two a step for AdamW's parameters and the
loss curve. One line is printed per check with its worst error; the exit status
is 0 when all hold, 1 otherwise. A MODEL_DIR whose export lost parameter names
(a8) may be refused by the compiler instead, with a message that names an
exporter flag that keeps them. Files are kept in DIR/<model>, emptied first.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import st  # noqa: E402
from examples import TRAINABLE  # noqa: E402

MAY_REFUSE = {"a8"}
EXPORTER_FLAGS = ("do_constant_folding=False", "keep_initializers_as_inputs")
RECORDS = 4  # records in inputs.safetensors
CURVE_STEPS = 10  # length of the golden loss curve
CHECKPOINT_STEP = 3  # the step whose parameters are golden


class Failure(Exception):
    """A run or comparison that cannot go on."""


class Report:
    """Prints one line per check and remembers whether any failed."""

    def __init__(self, model):
        self.model = model
        self.failed = False

    def check(self, what, worst, limit, where=""):
        """Records that the error `worst` must not exceed `limit`; NaN fails."""
        good = bool(worst <= limit)
        self.failed |= not good
        place = f" at {where}" if where else ""
        verdict = "ok" if good else "FAILED"
        print(f"{self.model} {what}: worst {worst:.2e} of {limit:.0e}{place}: {verdict}")

    def same_names(self, what, found, expected):
        """Records that the two sets of names must be equal."""
        for name in sorted(expected - found):
            print(f"{self.model} {what}: {name} is missing: FAILED")
        for name in sorted(found - expected):
            print(f"{self.model} {what}: {name} is not expected: FAILED")
        self.failed |= found != expected


def run(command, timeout_seconds=600):
    """Runs `command`; Failure carries its output when it does not exit 0."""
    command = [str(word) for word in command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_seconds
    )
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")


def compile_model(args, micro_batches):
    """Compiles the model for `micro_batches` a step; returns the executable."""
    executable = args.work / f"train{micro_batches}"
    run(
        [args.mgq_compile, args.model_dir / "model.onnx", "-o", executable]
        + [f"--trainable={args.trainable}", f"--micro-batches={micro_batches}"]
        + args.compile_option
    )
    return executable


def train(args, executable, steps, options):
    """Trains `steps` steps in file order; returns the logged loss of each."""
    log = executable.with_suffix(".jsonl")
    run(
        [executable, "--data", args.model_dir / "inputs.safetensors"]
        + ["--steps", steps, "--shuffle", "off", "--log-file", log]
        + ["--loss-reduction", "micro-batch"]
        + options
    )
    losses = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    if len(losses) != steps:
        raise Failure(f"{log}: {len(losses)} steps logged, expected {steps}")
    return np.array(losses)


def relative(found, expected):
    """Elementwise |found - expected| / |expected|, in f64."""
    expected = np.asarray(expected, np.float64)
    return np.abs(found - expected) / np.abs(expected)


def part(golden, prefix):
    """The golden tensors under `prefix`/, without it."""
    start = len(prefix) + 1
    return {k[start:]: v for k, v in golden.items() if k.startswith(prefix + "/")}


def check_losses(report, what, found, expected, limit):
    """Each loss must be within `limit` relative of PyTorch's."""
    errors = relative(found, expected)
    worst = int(np.argmax(errors))
    report.check(what, errors[worst], limit, f"[{worst}]")


def gradient_error(found, expected):
    """|found - expected| / (1e-4 |expected| + 1e-7 sqrt(n)); <= 1 is good."""
    expected = expected.astype(np.float64)
    allowed = 1e-4 * np.linalg.norm(expected) + 1e-7 * np.sqrt(expected.size)
    return np.linalg.norm(found - expected) / allowed


def parameter_error(found, expected, unstable):
    """Relative L2 error over the elements that are not `unstable`."""
    stable = np.ones(expected.shape, bool) if unstable is None else unstable == 0
    difference = (found.astype(np.float64) - expected)[stable]
    norm = np.linalg.norm(expected[stable].astype(np.float64))
    return np.linalg.norm(difference) / norm if norm else np.linalg.norm(difference)


def check_tensors(report, what, found, expected, limit, error):
    """Same names, same shapes, and `error(name)` within `limit` for each."""
    report.same_names(what, set(found), set(expected))
    worst, where = 0.0, ""
    for name in sorted(set(found) & set(expected)):
        if found[name].shape != expected[name].shape:
            raise Failure(
                f"{what}: {name} has shape {found[name].shape}, "
                f"expected {expected[name].shape}"
            )
        value = error(name)
        if not value <= worst:  # also takes NaN
            worst, where = value, name
        if np.isnan(worst):
            break
    report.check(what, worst, limit, where)


def check_one_micro_batch(args, report, golden):
    """Loss of each record and the gradients of the first."""
    executable = compile_model(args, micro_batches=1)
    dump = args.work / "gradients.safetensors"
    options = ["--learning-rate", 0, "--weight-decay", 0, "--dump-gradients", dump]
    losses = train(args, executable, RECORDS, options)
    check_losses(report, "loss of each record", losses, golden["loss"], 1e-5)
    found, expected = st.read(dump), part(golden, "grad")
    check_tensors(
        report, "gradients", found, expected, 1.0,
        lambda name: gradient_error(found[name], expected[name]),
    )


def check_two_micro_batches(args, report, golden):
    """AdamW's parameters after three steps and the loss of ten."""
    executable = compile_model(args, micro_batches=2)
    output = args.work / "checkpoints"
    options = ["--learning-rate", 1e-3, "--weight-decay", 0.05]
    options += ["--adam-beta1", 0.9, "--adam-beta2", 0.99, "--adam-epsilon", 1e-8]
    options += ["--output-dir", output, "--save-steps", CHECKPOINT_STEP]
    losses = train(args, executable, CURVE_STEPS, options)
    found = st.read(output / f"checkpoint-{CHECKPOINT_STEP}" / "model.safetensors")
    expected, unstable = part(golden, "step3"), part(golden, "unstable")
    check_tensors(
        report, "parameters after 3 steps", found, expected, 1e-4,
        lambda name: parameter_error(found[name], expected[name], unstable.get(name)),
    )
    check_losses(report, "loss curve", losses, golden["loss_steps"], 1e-4)


def refused(args):
    """Whether the compiler refuses the model and names an exporter flag."""
    try:
        compile_model(args, micro_batches=1)
    except Failure as failure:
        if "exit 1\n" in str(failure) and any(f in str(failure) for f in EXPORTER_FLAGS):
            return True
        raise
    return False


def parse_arguments():
    """The command line; the model's --trainable is looked up by folder name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--mgq-compile", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--trainable", help="default: by the folder's name")
    parser.add_argument("--compile-option", action="append", default=[],
                        help="a further option of mgq-compile; may be repeated")
    args = parser.parse_args()
    args.model = args.model_dir.resolve().name.split("_")[0]
    if not args.trainable and args.model not in TRAINABLE:
        parser.error(f"no --trainable known for {args.model}")
    args.trainable = args.trainable or TRAINABLE[args.model]
    args.work = args.work.resolve() / args.model_dir.resolve().name
    return args


def main():
    args = parse_arguments()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    report = Report(args.model)
    golden = st.read(args.model_dir / "golden.safetensors")
    try:
        if args.model in MAY_REFUSE and refused(args):
            print(f"{args.model} refused with an exporter flag named: ok")
            return 0
        check_one_micro_batch(args, report, golden)
        check_two_micro_batches(args, report, golden)
    except (Failure, OSError, subprocess.TimeoutExpired) as failure:
        print(f"{args.model}: FAILED: {failure}")
        return 1
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
