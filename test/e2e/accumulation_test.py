#!/usr/bin/env python3
"""Gradients of micro-batches add up to those of the whole batch.

With --loss-reduction=tokens, micro-batches with different numbers of valid labels
weigh by these numbers: two of one sample equal one of two samples. With
micro-batch, each weighs the same. Checked on a hand-written model, whose losses
NumPy computes too, and on exports with PyTorch's losses of each sample.
"""

import math

import numpy as np
import onnx
from onnx import numpy_helper

from harness import DATA, LORA, Test, read_log

import mlp  # noqa: I001  (harness has set the path)
import st

IGNORED = -100
# Valid labels of the rows: uneven, one row without any.
VALID = [4, 1, 2, 0, 3, 4, 1, 1]


def uneven_rows():
    """Rows of length 4, the first VALID[i] labels of row i count."""
    rows = {k: v.reshape(-1, 4) for k, v in mlp.data(4).items()}
    for row, valid in zip(rows["labels"], VALID):
        row[valid:] = IGNORED
    return rows


def numpy_losses(model, rows):
    """Loss of each row, in f64; 0 without valid labels."""
    p = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    erf = np.vectorize(math.erf)
    losses = []
    for tokens, labels in zip(rows["tokens"], rows["labels"]):
        h = p["embed"][tokens]
        for i in range(2):
            up = h @ (p[f"blocks.{i}.up"] + p[f"blocks.{i}.lora_A"] @ p[f"blocks.{i}.lora_B"])
            h = h + (up * (1 + erf(up / math.sqrt(2))) / 2) @ p[f"blocks.{i}.down"]
        logits = h @ p["head"]
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = [-logp[t, label] for t, label in enumerate(labels) if label != IGNORED]
        losses.append(np.mean(chosen) if chosen else 0.0)
    return np.array(losses)


def close(found, expected, limit=1e-6):
    """Relative difference in L2 within `limit`; shapes must agree."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    if found.shape != expected.shape:
        return False
    return bool(np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected))


def train(test, executable, data, name, steps, *options):
    """Losses, first gradients and the last parameters of a run."""
    folder = test.work / name
    test.run(
        executable, "--data", data, "--steps", steps, "--shuffle", "off",
        "--output-dir", folder, "--log-file", folder.with_suffix(".jsonl"),
        "--dump-gradients", folder.with_suffix(".gradients"), *options,
    )  # fmt: skip
    losses = np.array([line["loss"] for line in read_log(folder.with_suffix(".jsonl"))])
    parameters = st.read(folder / f"checkpoint-{steps}" / "model.safetensors")
    return losses, st.read(folder.with_suffix(".gradients")), parameters


def check_hand_written(test):
    """One sample twice a step against two samples once a step."""
    onnx.save(mlp.build(batch="batch"), test.work / "mlp.onnx")
    rows = uneven_rows()
    st.write(test.work / "rows", rows)
    compiled = {}
    for batch, micro in ((1, 1), (1, 2), (2, 1)):
        compiled[batch, micro] = test.compile(
            test.work / "mlp.onnx", mlp.TRAINABLE,
            f"--dim=batch={batch}", f"--micro-batches={micro}", name=f"mlp-{batch}-{micro}",
        )  # fmt: skip
    data = test.work / "rows"
    still = ("--learning-rate", 0, "--weight-decay", 0)
    single, *_ = train(test, compiled[1, 1], data, "single", 8, *still)
    test.check(close(single, numpy_losses(mlp.build(), rows)), "losses of rows equal NumPy's")

    two = train(test, compiled[1, 2], data, "two", 4, "--learning-rate", 0.01)
    one = train(test, compiled[2, 1], data, "one", 4, "--learning-rate", 0.01)
    test.check(close(two[0], one[0]), "losses of 1 + 1 samples equal those of 2")
    for kind, found, expected in (("gradient", two[1], one[1]), ("parameter", two[2], one[2])):
        good = all(close(found[name], expected[name]) for name in expected)
        test.check(len(expected) == 4 and good, f"{kind}s of 1 + 1 samples equal those of 2")

    valid = np.array(VALID)
    tokens, *_ = train(test, compiled[1, 2], data, "tokens", 4, *still)
    expected = (single * valid).reshape(4, 2).sum(1) / valid.reshape(4, 2).sum(1)
    test.check(close(tokens, expected), "tokens is the mean over valid labels")
    mean, *_ = train(
        test, compiled[1, 2], data, "mean", 4, *still, "--loss-reduction", "micro-batch"
    )
    test.check(close(mean, single.reshape(4, 2).mean(1)), "micro-batch is the mean of losses")
    test.check(not close(mean, tokens, 1e-3), "the two differ here")


def check_export(test, model, trainable):
    """Two samples of an export a step, against PyTorch's losses of each."""
    golden = st.read(DATA / model / "golden.safetensors")["loss"].astype(np.float64)
    inputs = st.read(DATA / model / "inputs.safetensors")
    # Labels are shifted in the model: nothing predicts the first of a row.
    counts = (inputs["labels"][..., 1:] != IGNORED).reshape(4, -1).sum(1)
    data = test.work / f"{model}.data"
    st.write(data, inputs)
    executable = test.compile(
        DATA / model / "model.onnx", trainable, "--micro-batches=2", name=model
    )
    one = test.compile(DATA / model / "model.onnx", trainable, name=f"{model}-1")
    still = ("--learning-rate", 0, "--weight-decay", 0)
    tokens, gradients, _ = train(test, executable, data, f"{model}-tokens", 2, *still)
    expected = (golden * counts).reshape(2, 2).sum(1) / counts.reshape(2, 2).sum(1)
    test.check(close(tokens, expected, 1e-5), f"{model} losses by {counts} labels are PyTorch's")

    # Gradients of the first two samples alone, weighed by their labels.
    alone = []
    for i in range(2):
        st.write(data, {name: array[i : i + 1] for name, array in inputs.items()})
        alone.append(train(test, one, data, f"{model}-sample{i}", 1, *still)[1])
    good = all(
        close(
            gradients[name],
            (alone[0][name] * counts[0] + alone[1][name] * counts[1]) / (counts[0] + counts[1]),
            1e-5,
        )
        for name in gradients
    )
    test.check(good, f"{model} gradients are the samples' own, weighed by labels")


def main():
    test = Test("accumulation", __doc__)
    check_hand_written(test)
    check_export(test, "a2", "llm_proj.*")
    check_export(test, "a5", LORA)
    test.end()


if __name__ == "__main__":
    main()
