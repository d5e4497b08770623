#!/usr/bin/env python3
"""--initial-parameters: training starts from given values of the parameters.

A run that starts from a file and one whose ONNX file holds these values are the
same bit by bit, on one stage and several, as threads and as processes, with
LoRA (a1), tied weights on two stages (b1) and parameters that the graph holds
transposed (a6). A checkpoint is evaluated without training it further.
"""

import json
import shutil
import subprocess

import numpy as np
import onnx
from harness import DATA, LORA, Test, read_folder, read_log
from onnx import numpy_helper

import st  # harness adds its folder to the path

MODELS = {"a1": LORA, "b1_gpt2": "*"}
STEPS = 3


def train(test, executable, model, name, *options, launcher=()):
    """Trains without shuffling; returns log and files of the run."""
    folder = test.work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    test.run(
        *launcher, executable, "--data", DATA / model / "inputs.safetensors",
        "--learning-rate", 1e-2, "--threads", 1, "--output-dir", folder / "out",
        "--log-file", folder / "log", *options,
    )  # fmt: skip
    return read_log(folder / "log"), read_folder(folder / "out")


def write_model(source, target, values):
    """Copies an ONNX file with other values of its parameters; returns how many."""
    model = onnx.load(source)
    changed = 0
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.raw_data = values[tensor.name].tobytes()
            changed += 1
    onnx.save(model, target)
    return changed


def check_model(test, model):
    """The run from a file against the run from weights, for several cuts."""
    source = DATA / model / "model.onnx"
    trainable = MODELS[model]
    one = test.compile(source, trainable, "--micro-batches=2", name=f"{model}-1")
    train(test, one, model, "before", "--steps", STEPS)
    start = test.work / f"{model}.safetensors"
    shutil.copy(test.work / "before" / "out" / f"checkpoint-{STEPS}" / "model.safetensors", start)
    values = st.read(start)

    weights = test.work / f"{model}-weights"
    weights.mkdir()
    changed = write_model(source, weights / "model.onnx", values)
    test.check(changed == len(values), f"{model}: the ONNX file holds all {changed} values")
    wanted = train(test, one, model, "weights", "--steps", STEPS, "--weights", weights)
    plain = train(test, one, model, "plain", "--steps", STEPS)
    test.check(wanted[0][0] != plain[0][0], f"{model}: the values matter")

    given = ("--steps", STEPS, "--initial-parameters", start)
    got = train(test, one, model, "given", *given)
    test.check(got == wanted, f"{model}: one stage: same bits")
    for stages, launch in ((2, False), (3, False), (2, True)):
        cut = test.compile(
            source, trainable, "--micro-batches=2", f"--stages={stages}", name=f"{model}-{stages}"
        )
        launcher = ("mpirun", "-n", stages) if launch else ()
        log, files = train(test, cut, model, "cut", *given, launcher=launcher)
        kind = "processes" if launch else "threads"
        same = all(
            files[name] == wanted[1][name] for name in wanted[1] if name.endswith(".safetensors")
        )
        test.check(log == wanted[0] and same, f"{model}: {stages} stages, {kind}: same bits")


def check_transposed(test):
    """Parameters that the graph holds transposed come out as they went in."""
    executable = test.compile(DATA / "a6_plain" / "model.onnx", LORA, name="a6")
    _, files = train(test, executable, "a6_plain", "a6-run", "--steps", STEPS)
    start = test.work / "a6.safetensors"
    start.write_bytes(files[f"checkpoint-{STEPS}/model.safetensors"])
    _, again = train(
        test, executable, "a6_plain", "a6-again", "--steps", 0, "--initial-parameters", start
    )
    same = again["checkpoint-0/model.safetensors"] == start.read_bytes()
    test.check(same, "a6: transposed parameters survive the way in and out")


def check_narrow(test):
    """Values in bf16 are those values, widened."""
    executable = test.work / "a1-1"
    wide, narrow = test.work / "wide.safetensors", test.work / "narrow.safetensors"
    values = st.read(test.work / "a1.safetensors")
    rounded = {name: value.astype(st.DTYPES["BF16"]) for name, value in values.items()}
    st.write(narrow, rounded)
    st.write(wide, {name: value.astype(np.float32) for name, value in rounded.items()})
    runs = [
        train(test, executable, "a1", "type", "--steps", STEPS, "--initial-parameters", path)
        for path in (wide, narrow)
    ]
    test.check(runs[0] == runs[1], "a1: bf16 values train as the same values in f32")


def check_replicas(test):
    """All replicas start from the file."""
    source = DATA / "a1" / "model.onnx"
    options = ("--micro-batches=1", "--replicas=2", "--stages=2")
    executable = test.compile(source, MODELS["a1"], *options, name="a1-replicas")
    start = ("--initial-parameters", test.work / "a1.safetensors")
    given = train(test, executable, "a1", "replicas", "--steps", STEPS, *start)
    weights = ("--weights", test.work / "a1-weights")
    wanted = train(test, executable, "a1", "replicas2", "--steps", STEPS, *weights)
    test.check(given == wanted, "a1: two replicas of two stages: same bits")


def evaluate(test, executable, *options):
    """The one line that an evaluation without a step logs."""
    log = test.work / "eval.jsonl"
    log.unlink(missing_ok=True)
    text = test.run(
        executable, "--eval-data", DATA / "a1" / "inputs.safetensors", "--log-file", log, *options
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    test.check(len(lines) == 1 and "evaluation after step" in text, "evaluation prints and logs")
    return lines[0]


def check_evaluation(test):
    """Two ways to evaluate a checkpoint give the loss that its run logged."""
    data = DATA / "a1" / "inputs.safetensors"
    executable = test.work / "a1-1"
    log, _ = train(test, executable, "a1", "eval", "--steps", STEPS, "--eval-data", data)
    folder = test.work / "eval" / "out" / f"checkpoint-{STEPS}"
    first = evaluate(
        test, executable, "--steps", 0, "--initial-parameters", folder / "model.safetensors"
    )
    test.check(first["step"] == 0 and "loss" not in first, "no step was run")
    test.check(first["eval_loss"] == log[-1]["eval_loss"], "loss of the checkpoint's parameters")
    resumed = evaluate(
        test, test.work / "a1-2", "--data", data, "--steps", STEPS,
        "--resume-from-checkpoint", folder,
    )  # fmt: skip
    test.check(resumed["step"] == STEPS, "the checkpoint's step")
    test.check(resumed["eval_loss"] == log[-1]["eval_loss"], "loss of the resumed checkpoint")


def check_restart(test):
    """A job that is started again and again: the file first, then checkpoints."""
    executable = test.work / "a1-1"
    start = ("--initial-parameters", test.work / "a1.safetensors")
    folder = test.work / "restart"
    command = (
        executable, "--data", DATA / "a1" / "inputs.safetensors", "--learning-rate", 1e-2,
        "--threads", 1, "--output-dir", folder, "--resume-from-checkpoint", "latest", *start,
    )  # fmt: skip
    first = test.run(*command, "--steps", 1)
    test.check("starting anew" in first, "the first run has no checkpoint")
    second = test.run(*command, "--steps", STEPS)
    test.check("not from --initial-parameters" in second, "the second one says what it goes on from")
    _, wanted = train(test, executable, "a1", "unbroken", "--steps", STEPS, *start)
    name = f"checkpoint-{STEPS}/model.safetensors"
    test.check(read_folder(folder)[name] == wanted[name], "both together are the unbroken run")


def check_refused(test):
    """A file that does not fit ends all ranks, with a message that names it."""
    data = DATA / "a1" / "inputs.safetensors"
    for launcher in ((), ("mpirun", "-n", "2")):
        command = [
            *launcher, test.work / "a1-2", "--data", data, "--steps", "1",
            "--output-dir", test.work / "refused", "--initial-parameters", data,
        ]  # fmt: skip
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        said = "inputs.safetensors' does not fit: it has no tensor 'llm_proj.weight'" in done.stderr
        empty = not any((test.work / "refused").glob("*"))
        kind = "processes" if launcher else "threads"
        test.check(done.returncode == 1 and said and empty, f"another file is refused: {kind}")


def main():
    test = Test("initial-parameters", __doc__)
    for model in MODELS:
        check_model(test, model)
    check_transposed(test)
    check_narrow(test)
    check_replicas(test)
    check_evaluation(test)
    check_restart(test)
    check_refused(test)
    test.end()


if __name__ == "__main__":
    main()
