#!/usr/bin/env python3
"""Trains one model in several precisions and compares losses, over seeds of the shuffle.

  examples/digits/run.sh build/digits
  build/venv/bin/python bench/precision.py --model build/digits/model.onnx \
      --data build/digits/train-*.safetensors --eval-data build/digits/held-out-*.safetensors

Per seed and precision: the mean loss of the last steps of training, and the loss on
held-out data after it; then each precision's means over the seeds against f32's.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINING = "--epochs 1 --learning-rate 3e-3 --lr-scheduler-type cosine --warmup-steps 20".split()
LAST = 50  # steps whose losses are averaged


def train(executable, args, seed, log):
    """Mean training loss of the last steps, and the evaluation's loss."""
    command = [executable, "--data", *args.data, "--eval-data", *args.eval_data, *TRAINING]
    command += ["--seed", str(seed), "--log-file", log, "--threads", str(args.threads)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return statistics.mean(line["loss"] for line in lines[-LAST:]), lines[-1]["eval_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-compile", type=Path, default=ROOT / "build/bin/mgq-compile")
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--eval-data", type=Path, nargs="+", required=True)
    parser.add_argument("--precisions", nargs="+", default=["f32", "layered", "bf16"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    means = {}
    for precision in args.precisions:
        executable = args.work / f"precision-{precision}"
        compile_ = [args.mgq_compile, args.model, "-o", executable, f"--precision={precision}"]
        subprocess.run(compile_, check=True, stderr=subprocess.DEVNULL)
        runs = []
        for seed in args.seeds:
            runs.append(train(executable, args, seed, args.work / f"precision-{precision}.jsonl"))
            print(f"{precision:8} seed {seed}: loss {runs[-1][0]:.5f}, held out {runs[-1][1]:.5f}", flush=True)
        means[precision] = [statistics.mean(column) for column in zip(*runs)]
    reference = means[args.precisions[0]]
    for precision, values in means.items():
        changes = ", ".join(f"{value / base - 1:+.2%}" for value, base in zip(values, reference))
        print(f"{precision:8} {values[0]:.5f}, held out {values[1]:.5f}; against {args.precisions[0]}: {changes}")


if __name__ == "__main__":
    main()
