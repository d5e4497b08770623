#!/usr/bin/env python3
"""What the cache of the frozen prefix saves of a step, against the prefix' share of it.

  build/venv/bin/python bench/frozen_cache.py [--threads N] [--rounds N] [--work FOLDER]

MiniGPT4Qwen-small with LoRA on one rank. Two steps are an epoch, so the cache knows all
records from the third step on. The share is the time of the calls that the cache skips, in
a step without it; the saving is by how much a step is shorter with it. Medians over rounds,
in which both take turns.
"""

import argparse
import json
import statistics
from pathlib import Path

from reference import COMPILE, ROOT, export, run

MICRO_BATCHES = 4
EPOCH = 2  # steps
STEPS = 4 * EPOCH


def measured(program, data, work, threads, *options):
    """Mean seconds of a step, and forward seconds by call and step, after the first epoch."""
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
    return statistics.fmean(seconds[EPOCH:]), calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "build/reference")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    model, data = args.work / "small8.onnx", args.work / "small8.safetensors"
    records = EPOCH * MICRO_BATCHES
    export(model, "--size", "small", "--lora", "--data", data, "--records", records)
    program = args.work / "cached"
    run(COMPILE, model, "-o", program, f"--micro-batches={MICRO_BATCHES}")
    without, known, shares = [], [], []
    for _ in range(args.rounds):
        seconds, calls = measured(program, data, args.work, args.threads)
        without.append(seconds)
        cached, kept = measured(
            program, data, args.work, args.threads, "--cache-frozen=memory"
        )
        known.append(cached)
        shares.append(sum(time for name, time in calls.items() if name not in kept) / seconds)
    share = statistics.median(shares)
    saved = 1 - statistics.median(known) / statistics.median(without)
    print(
        f"step {statistics.median(without):.3f} s, with known records "
        f"{statistics.median(known):.3f} s: {100 * saved:.1f} % less; the skipped calls take "
        f"{100 * share:.1f} % of a step; {saved / share:.3f} of that is saved"
    )


if __name__ == "__main__":
    main()
