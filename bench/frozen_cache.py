#!/usr/bin/env python3
"""What the cache of the frozen prefix saves of a step, against the prefix' share of it.

  build/venv/bin/python bench/frozen_cache.py [--threads N] [--rounds N] [--images N] [--work FOLDER]

MiniGPT4Qwen-small with LoRA on one rank; a sample has seven images, like frames of a video,
so that the prefix is a good part of a step. Two steps are an epoch, so the cache knows all
records from the third step on. The share is the time of the calls that the cache skips, in
a step without it; the saving is by how much a step is shorter with it. Medians over the
steps of all rounds, in which both take turns.
"""

import argparse
import json
import statistics
from pathlib import Path

from reference import COMPILE, ROOT, export, run

MICRO_BATCHES = 2
EPOCH = 2  # steps
STEPS = 4 * EPOCH


def measured(program, data, work, threads, *options):
    """Seconds of each step, and mean forward seconds by call, after the first epoch."""
    log, trace = work / "cache.jsonl", work / "cache.json"
    run(
        program, "--data", data, "--steps", STEPS, "--threads", threads, "--log-file", log,
        "--trace", trace, *options, capture_output=True,
    )  # fmt: skip
    seconds = [json.loads(line)["step_seconds"] for line in log.read_text().splitlines()]
    calls = {}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") == "forward" and event["args"]["step"] > EPOCH:
            share = event["dur"] / 1e6 / (STEPS - EPOCH)
            calls[event["name"]] = calls.get(event["name"], 0) + share
    return seconds[EPOCH:], calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=7)
    parser.add_argument("--work", type=Path, default=ROOT / "build/reference")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    model = args.work / f"images{args.images}.onnx"
    data = model.with_suffix(".records.safetensors")
    export(
        model, "--size", "small", "--lora", "--images", args.images, "--data", data,
        "--records", EPOCH * MICRO_BATCHES,
    )  # fmt: skip
    program = args.work / "cached"
    run(COMPILE, model, "-o", program, f"--micro-batches={MICRO_BATCHES}")
    without, known, skipped = [], [], []
    for _ in range(args.rounds):
        seconds, calls = measured(program, data, args.work, args.threads)
        without += seconds
        cached, kept = measured(
            program, data, args.work, args.threads, "--cache-frozen=memory"
        )
        known += cached
        skipped.append(sum(time for name, time in calls.items() if name not in kept))
    step, left = statistics.median(without), statistics.median(known)
    share = statistics.median(skipped) / step
    saved = 1 - left / step
    print(
        f"step {step:.3f} s, with known records {left:.3f} s: {100 * saved:.1f} % less; the "
        f"skipped calls take {100 * share:.1f} % of a step; {saved / share:.3f} of that is saved"
    )


if __name__ == "__main__":
    main()
