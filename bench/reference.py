#!/usr/bin/env python3
"""The reference's table: a plain pipeline against all of mgq's measures.

  scripts/setup.sh && scripts/build.sh && build/venv/bin/python bench/reference.py
      [--simulate] [--measure] [--steps-to-loss] [--work FOLDER]

Plain: uniform cut, 1F1B, f32, dense gradients, everything recomputed, no overlap,
the frozen prefix a stage like others. All: the planner's cut and schedule, layered
precision, sparse24 gradients, overlap, the frozen prefix where the planner wants it.
Both run the same samples a step. Without a flag all three parts run.

--simulate       MiniGPT4Qwen-14B with LoRA on eight GPUs of 24 GB, by the planner:
                 iteration time, utilisation (computing share of ranks and step), the
                 fullest rank's memory.
--measure        MiniGPT4Qwen-small on two ranks of this machine, by turns; medians. All
                 measures together are given the goal's share of plain's memory.
--steps-to-loss  examples/digits on two ranks, three seeds: steps until the smoothed loss
                 is as low as plain's is at a quarter, half, three quarters and nine
                 tenths of its steps.

The reference (MPP-LLaVA's author) reports 0.58 x time, 68 to 89 % utilisation, 0.79 x
memory, 0.875 x steps.
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILE = ROOT / "build/bin/mgq-compile"
CLUSTER = ROOT / "test/data/clusters/8x4090.yaml"
PLAIN = [
    "--partition=uniform", "--schedule=one_f_one_b", "--recompute=full", "--precision=f32",
    "--frozen=stage", "--overlap=off", "--gradient-compression=none",
]  # fmt: skip
ALL = ["--precision=layered", "--gradient-compression=sparse24", "--overlap=on"]
SAMPLES = 32  # a step of the 14B model
COMPUTES = ("forward", "backward", "weight", "optimizer")  # categories of a trace
GOALS = {"iteration": 0.58, "utilisation": 0.89, "memory": 0.79, "steps": 1.0}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def export(path, *options):
    """Writes a MiniGPT4Qwen graph unless it is there."""
    if path.exists():
        return
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "frontends/pytorch"))
    run(
        ROOT / "build/venv/bin/python", "-m", "mgq.commands.export", "minigpt4qwen", *options,
        "-o", path, env=environment,
    )  # fmt: skip


def print_table(title, plain, everything):
    """Rows of iteration seconds, utilisation, bytes; the last column is the goal."""
    print(f"\n{title}\n{'':24}{'plain':>12}{'all':>12}{'ratio':>9}{'goal':>9}")
    for name, unit, scale in (
        ("iteration", "s", 1), ("utilisation", "%", 100), ("memory", "GiB", 1 / 2**30),
    ):  # fmt: skip
        before, after = plain[name] * scale, everything[name] * scale
        compared = "" if name == "utilisation" else f"{after / before:.3f}"
        goal = GOALS[name] * 100 if name == "utilisation" else GOALS[name]
        print(f"{name + ', ' + unit:24}{before:12.3f}{after:12.3f}{compared:>9}{goal:9.2f}")


def planned(model, work, name, cluster, options):
    """Iteration, utilisation and memory of a plan for a cluster."""
    path = work / f"{name}.json"
    run(COMPILE, model, f"--cluster={cluster}", "--target=cuda", f"--plan={path}", *options,
        stdout=subprocess.DEVNULL)  # fmt: skip
    plan = json.loads(path.read_text())
    ranks = plan["ranks"]
    busy = sum(rank["forward_seconds"] + rank["backward_seconds"] for rank in ranks)
    print(
        f"{name}: {plan['schedule']}, {plan['stages']} stages x {plan['replicas']} replicas, "
        f"{plan['micro_batches']} micro-batches, bubble {100 * plan['bubble']:.1f} %"
    )
    return {
        "iteration": plan["step_seconds"],
        "utilisation": busy / len(ranks) / plan["step_seconds"],
        "memory": max(rank["memory_bytes"]["total"] for rank in ranks),
    }


def simulate(work):
    model = work / "14b.onnx"
    export(model, "--size", "14b", "--no-weights", "--length", "512", "--lora")
    plain = planned(
        model, work, "plain", CLUSTER, [*PLAIN, "--stages=8", f"--micro-batches={SAMPLES}"]
    )
    # The planner takes what memory there is: once all of it, once the goal's.
    limit = GOALS["memory"] * plain["memory"] / 2**30
    smaller = work / "smaller.yaml"
    smaller.write_text(
        CLUSTER.read_text().replace("count: 8", f"count: 8, memory: {limit:.2f} GiB")
    )
    for title, cluster in (("24 GB", CLUSTER), (f"{limit:.1f} of 24 GB", smaller)):
        for stages, replicas in ((8, 1), (4, 2)):
            case = planned(
                model, work, f"all-{stages}x{replicas}", cluster,
                [*ALL, f"--stages={stages}", f"--replicas={replicas}",
                 f"--micro-batches={SAMPLES // replicas}"],
            )  # fmt: skip
            print_table(
                f"MiniGPT4Qwen-14B, LoRA, 512 tokens, {SAMPLES} samples a step, simulated; plain: "
                f"8 stages; all: {stages} stages x {replicas} replicas with {title} each",
                plain, case,
            )  # fmt: skip


def trained(program, data, work, steps):
    """Runs a training; iteration, utilisation and memory from its summary and trace."""
    run(
        program, "--data", data, "--steps", steps, "--threads", 1,
        "--summary", work / "summary.json", "--trace", work / "trace.json",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    summary = json.loads((work / "summary.json").read_text())
    events = json.loads((work / "trace.json").read_text())
    if isinstance(events, dict):
        events = events["traceEvents"]
    # The first step touches memory for the first time.
    events = [e for e in events if e["ph"] == "X" and e["args"].get("step", 0) > 1]
    begin = min(e["ts"] for e in events)
    end = max(e["ts"] + e["dur"] for e in events)
    busy = sum(e["dur"] for e in events if e["cat"] in COMPUTES)
    ranks = summary["ranks"]
    return {
        "iteration": summary["step_seconds"],
        "utilisation": busy / len(ranks) / (end - begin),
        "memory": max(rank["planned_bytes"] for rank in ranks),
    }


def medians(runs):
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def fullest(model, work, *options):
    """Bytes of the fullest rank of a plan for this machine."""
    path = work / "plan.json"
    run(COMPILE, model, f"--plan={path}", *options, stdout=subprocess.DEVNULL)
    ranks = json.loads(path.read_text())["ranks"]
    return max(rank["memory_bytes"]["total"] for rank in ranks)


def measure(work, rounds=3, steps=4):
    model, data = work / "small.onnx", work / "small.safetensors"
    export(model, "--size", "small", "--lora", "--data", data, "--records", 16)
    shape = ["--stages=2", "--micro-batches=8"]
    # As in the simulation, all measures together have the goal's memory.
    limit = GOALS["memory"] * fullest(model, work, *shape, *PLAIN) / 2**20
    cores = work / "cores.yaml"
    cores.write_text(
        f"devices: {{core: {{flops_f32: 80 GFLOP/s, memory: {limit:.0f} MiB}}}}\n"
        "nodes: [{devices: [{type: core, count: 2}], link: {latency: 5 us, bandwidth: 8 GB/s}}]\n"
    )
    programs = {"plain": PLAIN, "all": [*ALL, f"--cluster={cores}"]}
    for name, options in programs.items():
        run(COMPILE, model, "-o", work / name, *shape, *options)
    results = {name: [] for name in programs}
    for _ in range(rounds):
        for name in programs:
            results[name].append(trained(work / name, data, work, steps))
    print_table(
        "MiniGPT4Qwen-small, LoRA, two ranks on this machine, 8 micro-batches",
        medians(results["plain"]), medians(results["all"]),
    )  # fmt: skip


def steps_until(losses, target, window):
    """The first step whose mean over the last `window` losses is at most `target`."""
    for step in range(window, len(losses) + 1):
        if statistics.fmean(losses[step - window : step]) <= target:
            return step
    return None


def steps_to_loss(work, seeds=(1, 2, 3), window=25, shares=(0.25, 0.5, 0.75, 0.9)):
    example = work / "digits"
    if not (example / "model.onnx").exists():
        run(ROOT / "examples/digits/run.sh", example, stdout=subprocess.DEVNULL)
    data = sorted(example.glob("train-*.safetensors"))
    programs = {"plain": ["--stages=2", *PLAIN], "all": ["--replicas=2", *ALL]}
    micro_batches = {"plain": 2, "all": 1}  # the same samples a step
    ratios = []
    for name, options in programs.items():
        run(COMPILE, example / "model.onnx", "-o", work / f"digits-{name}", *options,
            f"--micro-batches={micro_batches[name]}")  # fmt: skip
    for seed in seeds:
        losses = {}
        for name in programs:
            log = work / f"{name}.jsonl"
            run(
                work / f"digits-{name}", "--data", *data, "--epochs", 2, "--learning-rate", 3e-3,
                "--lr-scheduler-type", "cosine", "--warmup-steps", 20, "--seed", seed,
                "--log-file", log, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            losses[name] = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
        plain = losses["plain"]
        found = []
        for share in shares:
            reached = int(len(plain) * share)
            target = statistics.fmean(plain[reached - window : reached])
            steps = {name: steps_until(values, target, window) for name, values in losses.items()}
            found.append(steps["all"] / steps["plain"] if steps["all"] else float("inf"))
        last = {name: statistics.fmean(values[-window:]) for name, values in losses.items()}
        print(f"seed {seed}: {[round(ratio, 3) for ratio in found]} x plain's steps, last {last}")
        ratios.append(found)
    middle = [statistics.median(column) for column in zip(*ratios, strict=True)]
    print(
        f"steps to the loss of {', '.join(f'{share:.0%}' for share in shares)} of plain's steps: "
        f"{', '.join(f'{ratio:.3f}' for ratio in middle)} x (goal {GOALS['steps']})"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--steps-to-loss", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "build/reference")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    everything = not (args.simulate or args.measure or args.steps_to_loss)
    if everything or args.simulate:
        simulate(args.work)
    if everything or args.measure:
        measure(args.work)
    if everything or args.steps_to_loss:
        steps_to_loss(args.work)


if __name__ == "__main__":
    main()
