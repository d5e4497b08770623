#!/usr/bin/env python3
"""Compares @train, run by the reference interpreter, with PyTorch's gradients.

  golden_gradients.py MODEL_DIR --tools BUILD/bin --work DIR [--recompute MODE]

MODEL_DIR is one of test/data/models/a*. The model goes through import, simplify,
mark, outline and differentiate; no kernel takes part. Loss and gradients of
record 0 must agree with golden.safetensors. Needs nothing beside Python.
"""

import argparse
import json
import math
import struct
import subprocess
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from examples import TRAINABLE  # noqa: E402

TOLERANCE = 1e-4


def read_safetensors(path):
    """Returns name -> (dtype, shape, bytes)."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def floats(tensor):
    """The elements of an f32 or f64 tensor."""
    dtype, _, data = tensor
    return array({"F32": "f", "F64": "d"}[dtype], data)


def permuted(values, shape, permutation):
    """`values` of `shape` with dimension i taken from dimension permutation[i]."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    offsets = [0]
    for dim in permutation:
        offsets = [at + i * strides[dim] for at in offsets for i in range(shape[dim])]
    return [values[at] for at in offsets]


def build(model, args):
    """Runs the passes; returns the file of IR with @train."""
    trainable = TRAINABLE[model.name.split("_")[0]]
    passes = (
        "builtin.module(nn-simplify,nn-check-static,nn-mark{trainable=%s},nn-outline,"
        "nn-differentiate{recompute=%s},nn-check-differentiated)" % (trainable, args.recompute)
    )
    imported, train = args.work / "import.mlir", args.work / "train.mlir"
    with imported.open("wb") as out:
        subprocess.run([args.tools / "mgq-translate", model / "model.onnx"], stdout=out, check=True)
    subprocess.run(
        [args.tools / "mgq-opt", imported, f"--pass-pipeline={passes}", "-o", train], check=True
    )
    return train


def run_train(model, train, args):
    """Returns loss sum, count and name -> gradient of record 0, of the sum."""
    for name, (_, shape, data) in read_safetensors(model / "inputs.safetensors").items():
        (args.work / name).write_bytes(data[: len(data) // shape[0]])
    command = [args.tools / "mgq-interpret", train, "--entry=train"]
    command += [f"--model-dir={model}", f"--data={args.work}"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    scalars, gradients = [], {}
    for line in lines.splitlines():
        number, shape, *rest = line.split()
        values = array("d", (args.work / number).read_bytes())
        if not rest:
            scalars.append(values[0])
            continue
        if len(rest) > 1:
            dims = [int(dim) for dim in shape[len("tensor<") : -1].split("x")[:-1]]
            values = permuted(values, dims, [int(dim) for dim in rest[1].split(",")])
        known = gradients.setdefault(rest[0], [0.0] * len(values))
        gradients[rest[0]] = [a + b for a, b in zip(known, values)]
    return scalars[0], scalars[1] if len(scalars) > 1 else 1.0, gradients


def compare(golden, loss, gradients):
    """Returns what differs, a line each, and the worst error."""
    faults, worst = [], 0.0
    want = floats(golden["loss"])[0]
    if not abs(loss - want) <= TOLERANCE * abs(want):
        faults.append(f"loss {loss}, expected {want}")
    names = {key[len("grad/") :] for key in golden if key.startswith("grad/")}
    if names != set(gradients):
        faults.append(f"only one side has {sorted(names ^ set(gradients))}")
    for name in sorted(names & set(gradients)):
        want = floats(golden["grad/" + name])
        found = gradients[name]
        norm = math.sqrt(sum(x * x for x in want))
        error = math.sqrt(sum((a - b) ** 2 for a, b in zip(found, want)))
        limit = TOLERANCE * norm + 1e-7 * math.sqrt(len(want))
        worst = max(worst, error / limit * TOLERANCE)
        if len(found) != len(want) or not error <= limit:
            faults.append(f"{name}: error {error:.3g}, norm {norm:.3g}")
    return faults, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--recompute", default="none", choices=["none", "cheap", "full"])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    train = build(args.model, args)
    total, count, gradients = run_train(args.model, train, args)
    gradients = {name: [x / count for x in values] for name, values in gradients.items()}
    golden = read_safetensors(args.model / "golden.safetensors")
    faults, worst = compare(golden, total / count, gradients)
    print(f"{args.model.name}: {len(gradients)} gradients, worst relative error {worst:.2g}")
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
