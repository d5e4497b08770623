#!/usr/bin/env python3
"""Pipelines against one rank on the same cores, in one run.

  bench/pipeline.py MODEL.onnx DATA.safetensors --trainable GLOBS [--micro-batches M]
      [--steps N] [--rounds N] [--mpi]

Compiles MODEL for 1, 2 and 4 stages and runs them in turn, as many rounds as asked
for: one rank with two threads, two and four ranks with one thread each. Prints the
medians of samples per second, what share of it the simulator's bubble leaves of
the single rank's, and predicted and measured bubble.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--trainable", required=True)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mpi", action="store_true", help="ranks as processes")
    args = parser.parse_args()
    os.environ.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
    )
    cases = ((1, 2), (2, 1), (4, 1))  # stages, threads a rank
    with tempfile.TemporaryDirectory() as folder:
        for stages, _ in cases:
            subprocess.run(
                [
                    ROOT / "build/bin/mgq-compile", args.model, "-o", f"{folder}/{stages}",
                    f"--trainable={args.trainable}", f"--stages={stages}",
                    f"--micro-batches={args.micro_batches}",
                ],
                check=True,
            )  # fmt: skip
        results = {case: [] for case in cases}
        for _ in range(args.rounds):
            for stages, threads in cases:
                launcher = ["mpirun", "--bind-to", "none", "-n", str(stages)]
                subprocess.run(
                    [
                        *(launcher if args.mpi else []), f"{folder}/{stages}", "--data", args.data,
                        "--steps", str(args.steps), "--threads", str(threads),
                        "--summary", f"{folder}/summary",
                    ],
                    check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                results[stages, threads].append(json.loads(Path(f"{folder}/summary").read_text()))
    rates = {
        case: args.micro_batches / statistics.median(r["step_seconds"] for r in runs)
        for case, runs in results.items()
    }
    one = rates[cases[0]]
    for case, runs in results.items():
        bubble = statistics.median(r["bubble"] for r in runs)
        predicted = runs[0]["predicted_bubble"] or 0.0
        print(
            f"{case[0]} ranks x {case[1]} threads: {rates[case]:.3f} micro-batches/s, "
            f"{rates[case] / one:.2f} x one rank, {rates[case] / one / (1 - predicted):.2f} x "
            f"what the bubble leaves; bubble {100 * bubble:.1f} % "
            f"(predicted {100 * predicted:.1f} %)"
        )


if __name__ == "__main__":
    main()
