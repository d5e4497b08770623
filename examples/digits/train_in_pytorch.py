#!/usr/bin/env python3
"""Trains an exported model in PyTorch + PEFT as its mgq executable would.

  train_in_pytorch.py MODEL.onnx DATA.safetensors ... -o FOLDER [options]

The options are the executable's. Micro-batches are the model's own, in file order; a
step has one. FOLDER gets model.safetensors with the trained parameters.
"""

import argparse
import math
from pathlib import Path

import onnx
import torch
from safetensors.torch import load_file, save_file
from transformers import get_scheduler

from mgq.onnx_weights import load_model


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--lr-scheduler-type", default="constant")
    parser.add_argument("--warmup-steps", type=int, default=0)
    parser.add_argument("--shuffle", choices=["off"], required=True)
    return parser.parse_args()


def read_records(paths, batch):
    """The inputs of each micro-batch, pixels as U8."""
    files = [load_file(path) for path in paths]
    columns = {name: torch.cat([file[name] for file in files]) for name in files[0]}
    count = len(columns["input_ids"]) // batch
    return [
        {name: column[i * batch : (i + 1) * batch] for name, column in columns.items()}
        for i in range(count)
    ]


def normalise(record, metadata):
    """`record` with pixels as f32, as the executable makes them."""
    mean, std = (
        torch.tensor([float(x) for x in metadata[f"pixel_values.{key}"].split(",")]).view(3, 1, 1)
        for key in ("mean", "std")
    )
    return {**record, "pixel_values": (record["pixel_values"] / 255 - mean) / std}


def main():
    args = parse_arguments()
    model, metadata = load_model(args.model)
    graph = onnx.load(args.model, load_external_data=False).graph
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value
    trained = {
        name: parameter for name, parameter in model.named_parameters()
        if ".lora_" in name or name.startswith("llm_proj.")
    }
    model.requires_grad_(False)
    for parameter in trained.values():
        parameter.requires_grad_(True)
    records = read_records(args.data, batch)
    steps = math.floor(args.epochs * len(records))
    optimizer = torch.optim.AdamW(
        trained.values(), lr=args.learning_rate, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.05
    )
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, args.warmup_steps, steps)
    for step in range(steps):
        loss = model(**normalise(records[step % len(records)], metadata))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{steps}  loss {loss.item():.6f}", flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    tensors = {name: parameter.detach().contiguous() for name, parameter in trained.items()}
    save_file(tensors, args.output / "model.safetensors")


if __name__ == "__main__":
    main()
