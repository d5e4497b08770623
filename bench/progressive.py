#!/usr/bin/env python3
"""How many seeds spike or diverge in bf16 from the first step, and with steps in f32 first.

  build/venv/bin/python bench/progressive.py --model build/digits/model.onnx \
      --data build/digits/train-*.safetensors --learning-rate 0.03

A run diverges if a loss is not finite, or the mean of its last tenth is above the mean of
its first tenth; it spikes if, after the first tenth, a loss is above SPIKE times the median
of the 20 before it. Both are counted as bad.
"""

import argparse
import json
import math
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPIKE = 3


def is_bad(losses):
    """What went wrong in a run, or nothing."""
    tenth = max(1, len(losses) // 10)
    if not all(math.isfinite(loss) for loss in losses):
        return "not finite"
    if statistics.mean(losses[-tenth:]) > statistics.mean(losses[:tenth]):
        return "diverges"
    for i in range(max(20, tenth), len(losses)):
        if losses[i] > SPIKE * statistics.median(losses[i - 20 : i]):
            return f"spikes at step {i + 1}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-compile", type=Path, default=ROOT / "build/bin/mgq-compile")
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--learning-rate", required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--fp32-steps", type=int, default=75)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name, flags in (("bf16", []), ("progressive", [f"--fp32-steps={args.fp32_steps}"])):
        executable, log = args.work / name, args.work / f"{name}.jsonl"
        command = [args.mgq_compile, args.model, "-o", executable, "--precision=bf16", *flags]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        bad = 0
        for seed in range(1, args.seeds + 1):
            run = [executable, "--data", *args.data, "--steps", str(args.steps), "--seed", str(seed)]
            run += ["--learning-rate", args.learning_rate, "--on-nonfinite", "skip"]
            run += ["--threads", str(args.threads), "--log-file", log]
            done = subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            lines = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
            what = "stopped" if done.returncode else is_bad([math.nan if x is None else x for x in lines])
            bad += bool(what)
            print(f"{name} seed {seed}: {what or 'fine'}, last loss {lines[-1]}", flush=True)
        print(f"{name}: {bad} of {args.seeds} seeds spike or diverge")


if __name__ == "__main__":
    main()
