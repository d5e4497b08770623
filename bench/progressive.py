#!/usr/bin/env python3
"""How many seeds spike or diverge in bf16 from the first step, and with steps in f32 first.

  build/venv/bin/python bench/progressive.py [--learning-rates RATE ...] [--seeds N]
      [--steps N] [--fp32-steps N] [--blocks N] [--work FOLDER]

A language model without norms (test/lib/mlp.py), all of which trains, at learning rates from
where few runs spike to where most do. f32 throughout shows what no precision can help. Seeds
change the order of records.

A run diverges if a loss is not finite, or the mean of its last tenth is above the mean of
its first tenth; it spikes if, after the first tenth, a loss is above SPIKE times the median
of the 20 before it. Both are counted as bad.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "lib"))

import mlp  # noqa: E402
import onnx  # noqa: E402
import st  # noqa: E402

SPIKE = 3
SHAPE = {"batch": 4, "length": 32, "vocabulary": 64}
RECORDS = 64


def is_bad(losses):
    """Whether a run spikes or diverges."""
    tenth = max(1, len(losses) // 10)
    if not all(math.isfinite(loss) for loss in losses):
        return True
    if statistics.mean(losses[-tenth:]) > statistics.mean(losses[:tenth]):
        return True
    return any(
        losses[i] > SPIKE * statistics.median(losses[i - 20 : i])
        for i in range(max(20, tenth), len(losses))
    )


def count_bad(executable, work, rate, args):
    """Of all seeds."""
    bad, log = 0, work / "log.jsonl"
    for seed in range(1, args.seeds + 1):
        done = subprocess.run(
            [
                executable, "--data", work / "data", "--steps", str(args.steps), "--seed",
                str(seed), "--learning-rate", rate, "--on-nonfinite", "skip", "--threads", "1",
                "--log-file", log,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        losses = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
        bad += done.returncode != 0 or is_bad([math.nan if x is None else x for x in losses])
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learning-rates", nargs="+", default=["0.03", "0.04", "0.15", "0.2"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fp32-steps", type=int, default=150)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench")
    args = parser.parse_args()
    work = args.work
    work.mkdir(parents=True, exist_ok=True)
    model = work / "mlp.onnx"
    onnx.save(mlp.build(width=32, hidden=64, blocks=args.blocks, **SHAPE), model)
    st.write(work / "data", mlp.data(RECORDS, **SHAPE))
    kinds = {
        "f32": [],
        "bf16": ["--precision=bf16"],
        "progressive": ["--precision=bf16", f"--fp32-steps={args.fp32_steps}"],
    }
    for kind, options in kinds.items():
        command = [ROOT / "build/bin/mgq-compile", model, "-o", work / kind, "--trainable=*"]
        subprocess.run([*command, *options], check=True, stderr=subprocess.DEVNULL)
    print(f"of {args.seeds} seeds spike or diverge:")
    for rate in args.learning_rates:
        bad = {kind: count_bad(work / kind, work, rate, args) for kind in kinds}
        print(f"learning rate {rate}: " + ", ".join(f"{k} {n}" for k, n in bad.items()), flush=True)


if __name__ == "__main__":
    main()
