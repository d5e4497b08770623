#!/usr/bin/env python3
"""Times a training step of PyTorch eager and of mgq's executable, f32, on CPU.

  scripts/setup.sh && build/venv/bin/python bench/step.py

Both train the same model (mgq-export minigpt4qwen) on the same records with the
same number of threads. Rounds alternate, so that a change of the machine's speed
hits both; medians over all rounds are printed with the share of the machine's f32
peak, which is the best rate of a large torch.mm. Work is counted from the shapes
of parameters, the same for both: no credit for work that need not be done.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "frontends" / "pytorch"))
from mgq import export_minigpt4qwen, minigpt4qwen  # noqa: E402
from mgq.architecture import SIZES, Lora  # noqa: E402
from mgq.sources.open import open_size  # noqa: E402

PEAK_ORDER = 3072  # rows and columns of the product that measures the peak
RECORDS = 8
LORA_RANK = 8
IMAGE_TOKEN_ID = 5
LOSS_TOLERANCE = 1e-4  # relative, between the first losses of the two


def measure_peak(tries=8):
    """The best FLOP/s of an f32 product of order PEAK_ORDER."""
    left = torch.randn(PEAK_ORDER, PEAK_ORDER)
    right = torch.randn(PEAK_ORDER, PEAK_ORDER)
    out = torch.empty(PEAK_ORDER, PEAK_ORDER)
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK_ORDER**3 / best


def rows(name, size, batch, length):
    """How many rows the weight `name` multiplies; 0: it is looked up or added."""
    patches = (size.image // size.patch) ** 2
    if "patch_embedding" in name:
        return batch * patches
    if "embed" in name or name == "query_tokens":
        return 0
    if name.startswith("visual_encoder."):
        return batch * (patches + 1)
    if ".crossattention.attention.key" in name or ".crossattention.attention.value" in name:
        return batch * (patches + 1)
    return batch * (length if name.startswith("llm_model.") else size.queries)


def product_flop(model, size, batch, length):
    """FLOP of all products with weights in one step.

    Forward is 2 x rows x elements of the weight; the data gradient is as much again
    where something trainable lies upstream (the language model, behind llm_proj),
    the weight gradient where the weight trains.
    """
    total = 0
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        products = 1 + name.startswith("llm_model.") + weight.requires_grad
        total += products * 2 * rows(name, size, batch, length) * weight.numel()
    return total


def attention_flop(size, batch, length):
    """FLOP of all products of queries, keys, weights and values in one step.

    Forward has two products per layer; backward, in the language model only, four.
    """
    tokens = (size.image // size.patch) ** 2 + 1
    vision, qformer, language = size.vision, size.qformer, size.language
    crossed = (qformer.layers + 1) // 2  # every other layer looks at the image
    total = 2 * 2 * vision.layers * tokens * tokens * vision.width
    total += 2 * 2 * qformer.layers * size.queries * size.queries * qformer.width
    total += 2 * 2 * crossed * size.queries * tokens * qformer.width
    total += 6 * 2 * language.layers * length * length * language.width
    return batch * total


class PyTorch:
    """Eager training of `model` on the records of `data`."""

    def __init__(self, model, data):
        self.model = model
        self.records = load_file(data)
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trainable, lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.05
        )
        self.step = 0
        self.first_loss = None

    def train_step(self):
        """One step on the next record; returns seconds."""
        record = {name: t[self.step % RECORDS] for name, t in self.records.items()}
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.model(**record)
        loss.backward()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        if self.first_loss is None:
            self.first_loss = loss.item()
        self.step += 1
        return seconds

    def round(self, steps):
        """Seconds of `steps` steps after one that is not counted."""
        return [self.train_step() for _ in range(steps + 1)][1:]


class Mgq:
    """The executable compiled from `model_file`, started anew for each round."""

    def __init__(self, compiler, model_file, data, threads):
        self.executable = model_file.with_suffix("")
        self.log = model_file.with_suffix(".jsonl")
        self.command = [self.executable, "--data", data, "--shuffle", "off"]
        self.command += ["--threads", str(threads), "--log-file", self.log]
        self.first_loss = None
        subprocess.run([compiler, model_file, "-o", self.executable], check=True)

    def round(self, steps):
        """Seconds of `steps` steps after one that is not counted."""
        command = [*self.command, "--steps", str(steps + 1)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.first_loss = lines[0]["loss"]
        return [line["step_seconds"] for line in lines][1:]


def prepare(args, size, batch):
    """Writes records and model for `batch` samples; returns both files and the model."""
    name = f"{args.size}-{batch}"
    data, model_file = args.work / f"{name}.safetensors", args.work / f"{name}.onnx"
    request = export_minigpt4qwen.Request(
        weights=open_size(args.size, seed=0),
        image_token_id=IMAGE_TOKEN_ID,
        train="projection,lora",
        lora=Lora(rank=LORA_RANK, alpha=2 * LORA_RANK),
        micro_batch=batch,
    )
    model = export_minigpt4qwen.export(request, model_file)
    save_file(minigpt4qwen.random_records(model, RECORDS, batch), data)
    minigpt4qwen.fill(model, lambda *parameter: request.weights.tensor(*parameter).load())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name or name.startswith("llm_proj."))
    return data, model_file, model


def check_first_losses(torch_loss, mgq_loss):
    """Stops when the two do not train the same model."""
    if not abs(mgq_loss - torch_loss) <= LOSS_TOLERANCE * abs(torch_loss):
        sys.exit(f"first losses differ: PyTorch {torch_loss}, mgq {mgq_loss}")


def compare(args, size, batch):
    """Median seconds of a step of each, and its FLOP, for `batch` samples."""
    data, model_file, model = prepare(args, size, batch)
    flop = product_flop(model, size, batch, size.length)
    flop += attention_flop(size, batch, size.length)
    eager = PyTorch(model, data)
    mgq = Mgq(args.mgq_compile, model_file, data, args.threads)
    eager_seconds, mgq_seconds = [], []
    for _ in range(args.rounds):
        eager_seconds += eager.round(args.steps)
        mgq_seconds += mgq.round(args.steps)
        check_first_losses(eager.first_loss, mgq.first_loss)
    return statistics.median(eager_seconds), statistics.median(mgq_seconds), flop


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-compile", type=Path, default=ROOT / "build/bin/mgq-compile")
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[1, 4],
                        help="samples a step")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="counted steps a round")
    return parser.parse_args()


def main():
    args = parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    size = SIZES[args.size]
    peak = measure_peak()
    results = [(batch, *compare(args, size, batch)) for batch in args.micro_batch]
    peak = max(peak, measure_peak())
    print(f"{args.size}, f32, {args.threads} threads, peak {peak / 1e9:.1f} GFLOP/s")
    print("micro-batch    GFLOP   PyTorch s   of peak       mgq s   of peak   PyTorch/mgq")
    for batch, eager, mgq, flop in results:
        print(
            f"{batch:11} {flop / 1e9:8.1f} {eager:11.4f} {flop / eager / peak:9.1%} "
            f"{mgq:11.4f} {flop / mgq / peak:9.1%} {eager / mgq:13.2f}"
        )


if __name__ == "__main__":
    main()
