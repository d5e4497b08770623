#!/usr/bin/env python3
"""Compressed gradients against f32: loss at equal steps, time to that loss.

  bench/compression.py MODEL.onnx --data TRAIN... --eval-data HELD_OUT... [--replicas R]
      [--epochs N] [--seeds S,...] [--link SPEC] [--options "..."] [--formats F,...]

Trains MODEL on R replicas (threads) in each format and with each seed, over an
artificial link between replicas (docs/Overlap.md). Prints for each format the mean
over seeds of the final evaluation loss, of the training loss over the last tenth of
the steps, of seconds a step, of gradient bytes a step, and of the seconds that
training took until the mean loss of 20 steps was, for the first time, that of the
end of the f32 run (within 1 %).
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORMATS = "none,bf16,sparse24,sparse24-int8"
WINDOW = 20


def train(args, folder, compression, seed):
    """Log lines and summary of a run."""
    log, summary = folder / "log", folder / "summary"
    subprocess.run(
        [
            folder / compression, "--data", *args.data, "--eval-data", *args.eval_data,
            "--epochs", str(args.epochs), "--seed", str(seed), "--threads", "1",
            "--log-file", log, "--summary", summary, *shlex.split(args.options),
        ],
        check=True, stdout=subprocess.DEVNULL, env={**os.environ, "MGQ_TEST_LINK": args.link},
    )  # fmt: skip
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines, json.loads(summary.read_text())


def smooth(lines, end):
    """Mean loss of the steps up to `end`."""
    return statistics.mean(line["loss"] for line in lines[max(0, end - WINDOW) : end])


def time_to(lines, loss):
    """Seconds until the smooth loss is down to `loss`; None: never."""
    seconds = 0
    for i, line in enumerate(lines):
        seconds += line["step_seconds"]
        if i + 1 >= WINDOW and smooth(lines, i + 1) <= loss:
            return seconds
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--eval-data", nargs="+", required=True)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--link", default="bandwidth=1.25e8,delay=50e-6,replicas-only")
    parser.add_argument("--options", default="")
    parser.add_argument("--formats", default=FORMATS)
    args = parser.parse_args()
    formats = args.formats.split(",")
    seeds = [int(seed) for seed in args.seeds.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for compression in formats:
            subprocess.run(
                [
                    ROOT / "build/bin/mgq-compile", args.model, "-o", folder / compression,
                    f"--replicas={args.replicas}", f"--gradient-compression={compression}",
                ],
                check=True,
            )  # fmt: skip
        targets = {}
        for compression in formats:
            rows = []
            for seed in seeds:
                lines, summary = train(args, folder, compression, seed)
                targets.setdefault(seed, 1.01 * smooth(lines, len(lines)))
                tail = lines[-max(1, len(lines) // 10) :]
                sent = sum(rank["bytes_sent"]["gradient"] for rank in summary["ranks"])
                row = [
                    summary["eval_loss"], statistics.mean(line["loss"] for line in tail),
                    summary["step_seconds"], sent / len(lines), time_to(lines, targets[seed]),
                ]  # fmt: skip
                rows.append(row)
                print(f"  {compression} seed {seed}: {row}", flush=True)
            ends = [row[4] for row in rows if row[4] is not None]
            time = f"{statistics.mean(ends):7.2f} s" if len(ends) == len(rows) else "never"
            means = [statistics.mean(row[i] for row in rows) for i in range(4)]
            print(
                f"{compression:14} eval loss {means[0]:.5f}  loss {means[1]:.5f}  "
                f"step {means[2]:.4f} s  {means[3]:.0f} bytes a step  to the loss {time}",
                flush=True,
            )


if __name__ == "__main__":
    main()
