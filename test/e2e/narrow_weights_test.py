#!/usr/bin/env python3
"""Weights stored in bf16 or f16 compute the bits of the same weights in f32.

Each model is compiled twice: with narrow initializers behind casts, and with
f32 initializers of the same values. Losses, gradients, updated weights and
optimizer states of the runs are equal bit by bit; a checkpoint of the first has
the weights in their own type and the f32 masters beside. The models: LoRA (a1,
a4 by TorchScript), a whole language model (a3), trained parts below frozen ones
(a9), a tied embedding, trained or frozen (b1, GPT-2), frozen convolutions (b2,
Whisper). And pipelines, processes, replicas and resumed runs of such a model
compute the bits of one stage.
"""

import json

import onnx
from harness import DATA, LORA, UPSTREAM, Test, read_folder, read_log

import narrow  # harness adds its folder to the path
import st

CASES = (
    ("a1", LORA, "bf16"),
    ("a1", LORA, "f16"),
    ("a3", "llm_model.*,llm_proj.*", "bf16"),
    ("a4", LORA, "bf16"),
    ("a9", UPSTREAM, "f16"),
    ("b1_gpt2", "*", "f16"),
    ("b1_gpt2", "*.mlp.*", "bf16"),
    ("b2_whisper", "*fc1*", "bf16"),
)
STEPS = 3


def run(test, executable, name, data):
    """Log, gradients, checkpoint and summary of a run."""
    folder = test.work / name
    test.run(
        executable, "--data", data, "--steps", STEPS, "--learning-rate", 1e-2,
        "--threads", 1, "--output-dir", folder, "--log-file", folder.with_suffix(".jsonl"),
        "--dump-gradients", folder.with_suffix(".gradients"),
        "--summary", folder.with_suffix(".json"),
    )  # fmt: skip
    checkpoint = folder / f"checkpoint-{STEPS}"
    return (
        read_log(folder.with_suffix(".jsonl")),
        st.read(folder.with_suffix(".gradients")),
        {k: st.read(checkpoint / f"{k}.safetensors") for k in ("model", "optimizer")},
        json.loads(folder.with_suffix(".json").read_text())["ranks"][0],
    )


def same(a, b):
    """Whether two dicts of arrays are equal bit by bit, types included."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a
    )


def check(test, model, trainable, kind):
    what = f"{model} {trainable[:12]} {kind}"
    data = DATA / model / "inputs.safetensors"
    found = {}
    for name, convert in (("narrow", narrow.narrow), ("wide", narrow.widen)):
        path = test.work / f"{model}.{name}.onnx"
        onnx.save(convert(onnx.load(DATA / model / "model.onnx"), kind), path)
        executable = test.compile(path, trainable, name=f"{model}.{kind}.{name}")
        found[name] = run(test, executable, f"run.{model}.{kind}.{trainable[1:4]}.{name}", data)
    log, gradients, checkpoint, rank = found["narrow"]
    wide_log, wide_gradients, wide_checkpoint, wide_rank = found["wide"]
    test.check(len(log) == STEPS and log[0] != log[-1] and log == wide_log, f"{what}: losses")
    test.check(len(gradients) > 0 and same(gradients, wide_gradients), f"{what}: gradients")
    masters = {
        k.removeprefix("master/"): v
        for k, v in checkpoint["optimizer"].items()
        if k.startswith("master/")
    }
    rest = {k: v for k, v in checkpoint["optimizer"].items() if not k.startswith("master/")}
    test.check(same(masters, wide_checkpoint["model"]), f"{what}: masters are the f32 weights")
    test.check(same(rest, wide_checkpoint["optimizer"]), f"{what}: optimizer")
    own = {k: narrow.rounded(v, kind) for k, v in masters.items()}
    test.check(same(checkpoint["model"], own), f"{what}: weights in their own type")
    test.check(
        rank["planned_bytes"] <= wide_rank["planned_bytes"],
        f"{what}: {rank['planned_bytes']} bytes, {wide_rank['planned_bytes']} in f32",
    )


def train(test, executable, name, *options, ranks=0):
    """Log and last checkpoint of a run of GPT-2."""
    folder = test.work / name
    launcher = ["mpirun", "-n", ranks] if ranks else []
    test.run(
        *launcher, executable, "--data", DATA / "b1_gpt2" / "inputs.safetensors",
        "--learning-rate", 1e-2, "--threads", 1, "--max-grad-norm", 1, "--output-dir", folder,
        "--log-file", folder.with_suffix(".jsonl"), *options,
    )  # fmt: skip
    last = folder / f"checkpoint-{STEPS}"
    return read_log(folder.with_suffix(".jsonl")), read_folder(last) if last.exists() else {}


def check_pipelines(test):
    """GPT-2 in bf16, its embedding tied over stages: cuts and launches change no bit."""
    path = test.work / "pipeline.onnx"
    onnx.save(narrow.narrow(onnx.load(DATA / "b1_gpt2" / "model.onnx"), "bf16"), path)

    def compile(stages, replicas):
        return test.compile(
            path, "*", f"--stages={stages}", f"--replicas={replicas}",
            f"--micro-batches={2 // replicas}", "--schedule=one_f_one_b",
            name=f"pipeline-{stages}-{replicas}",
        )  # fmt: skip

    one, two, three = (compile(stages, 1) for stages in (1, 2, 3))
    steps = ("--steps", STEPS)
    whole = train(test, one, "one", *steps)
    test.check(len(whole[0]) == STEPS and len(whole[1]) == 3, "pipelines: one stage trains")
    test.check(train(test, three, "three", *steps) == whole, "pipelines: three stages")
    test.check(train(test, two, "processes", *steps, ranks=2) == whole, "pipelines: processes")
    latest = ("--resume-from-checkpoint", "latest")
    train(test, three, "resumed", "--steps", 1)
    train(test, one, "resumed", "--steps", 2, *latest)
    test.check(train(test, two, "resumed", *steps, *latest) == whole, "pipelines: resumed 3, 1, 2")
    flat, cut = compile(1, 2), compile(2, 2)
    replicas = train(test, flat, "replicas", *steps)
    test.check(len(replicas[0]) == STEPS, "pipelines: replicas train")
    got = train(test, cut, "replicas-cut", *steps, ranks=4)
    test.check(got == replicas, "pipelines: replicas of two stages as processes")


def main():
    test = Test("narrow-weights", __doc__)
    for case in CASES:
        check(test, *case)
    check_pipelines(test)
    test.end()


if __name__ == "__main__":
    main()
