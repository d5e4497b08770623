#!/usr/bin/env python3
"""Weights stored in bf16 or f16 compute the bits of the same weights in f32.

Each model is compiled twice: with narrow initializers behind casts, and with
f32 initializers of the same values. Losses, gradients, updated weights and
optimizer states of the runs are equal bit by bit; a checkpoint of the first has
the weights in their own type and the f32 masters beside. The models: LoRA (a1,
a4 by TorchScript), projection only (a2), a whole language model (a3), trained
parts below frozen ones (a9), a tied embedding, trained or frozen (b1, GPT-2),
convolutions, trained or frozen (b2, Whisper).
"""

import json

import numpy as np
import onnx
from harness import DATA, LORA, Test, read_log

import narrow  # harness adds its folder to the path
import st

A9 = (
    "query_tokens,visual_encoder.embeddings.position_embedding,"
    "visual_encoder.encoder.layers.1.*,llm_proj.*"
)
MODELS = (
    ("a1", LORA),
    ("a2", "llm_proj.*"),
    ("a3", "llm_model.*,llm_proj.*"),
    ("a4", LORA),
    ("a9", A9),
    ("b1_gpt2", "*"),
    ("b1_gpt2", "*.mlp.*"),
    ("b2_whisper", "*"),
    ("b2_whisper", "*fc1*"),
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


def main():
    test = Test("narrow-weights", __doc__)
    for model, trainable in MODELS:
        for kind in ("bf16", "f16"):
            check(test, model, trainable, kind)
    test.end()


if __name__ == "__main__":
    main()
