#!/usr/bin/env python3
"""What overlap hides of a gradient sync that takes FACTOR times the forward pass.

  bench/overlap.py [--factor 2.4] [--steps N] [--micro-batches M] [--frozen-blocks N]
      [--delay SECONDS]

Two replicas, threads with one compute thread each, of a language model of eight
blocks (test/lib/mlp.py), of which the lowest are frozen. A first run measures the
forward pass; then an artificial link between the replicas gets the bandwidth at
which the gradients take FACTOR times as long. Prints step time, share of
communication hidden, the largest possible share, and whether logs are the same
without and with overlap.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "lib"))

import mlp  # noqa: E402
import onnx  # noqa: E402
import st  # noqa: E402

BLOCKS = 8


def run(executable, data, steps, folder, link=None):
    environment = dict(os.environ)
    if link:
        environment["MGQ_TEST_LINK"] = link
    subprocess.run(
        [
            executable, "--data", data, "--steps", str(steps), "--threads", "1", "--summary",
            folder / "summary", "--profile", folder / "profile", "--log-file", folder / "log",
        ],
        check=True, stdout=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    log = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    (folder / "log").unlink()
    for line in log:
        del line["step_seconds"]
    return (
        json.loads((folder / "summary").read_text()),
        json.loads((folder / "profile").read_text()),
        log,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=2.4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--frozen-blocks", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--bucket-size", type=int)
    args = parser.parse_args()
    shape = {"batch": 4, "length": 128, "vocabulary": 256}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.onnx"
        onnx.save(mlp.build(width=256, hidden=1024, blocks=BLOCKS, **shape), model)
        st.write(folder / "data", mlp.data(8 * args.micro_batches, **shape))
        trainable = [f"blocks.{i}.*" for i in range(args.frozen_blocks, BLOCKS)]
        bucket = [f"--bucket-size={args.bucket_size}"] if args.bucket_size else []
        for overlap in ("off", "on"):
            subprocess.run(
                [
                    ROOT / "build/bin/mgq-compile", model, "-o", folder / overlap,
                    f"--trainable={','.join(trainable)},head", "--replicas=2",
                    f"--micro-batches={args.micro_batches}", f"--overlap={overlap}",
                    *(bucket if overlap == "on" else []),
                ],
                check=True,
            )  # fmt: skip
        summary, profile, _ = run(folder / "off", folder / "data", args.steps, folder)
        layers = profile["ranks"][0]["layers"]
        forward = args.micro_batches * sum(layer["forward_seconds"] for layer in layers)
        backward = args.micro_batches * sum(layer["backward_seconds"] for layer in layers)
        sent = summary["ranks"][0]["bytes_sent"]["gradient"] / args.steps
        link = f"bandwidth={sent / (args.factor * forward):.6g},delay={args.delay},replicas-only"
        print(
            f"forward {forward * 1e3:.1f} ms, backward {backward * 1e3:.1f} ms, gradients "
            f"{sent / 2**20:.2f} MiB: {link}"
        )
        logs = {}
        for overlap in ("off", "on"):
            summary, _, logs[overlap] = run(
                folder / overlap, folder / "data", args.steps, folder, link
            )
            hidden = summary["hidden_communication"]
            largest = summary["largest_hidden_communication"]
            print(
                f"overlap {overlap}: step {summary['step_seconds'] * 1e3:.1f} ms, hidden "
                f"{hidden:.3f} of at most {largest:.3f}: {hidden / largest:.3f}"
            )
        print("the same logs" if logs["off"] == logs["on"] else "OTHER LOGS")


if __name__ == "__main__":
    main()
