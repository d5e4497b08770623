#!/usr/bin/env bash
# Sets up, builds, compiles a shipped model and trains its adapters for 30 steps.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh

model=test/data/models/a1
mkdir -p build/quickstart
build/bin/mgq-compile $model/model.onnx -o build/quickstart/train \
  --trainable='*.lora_[AB].*,llm_proj.*'
build/quickstart/train --data $model/inputs.safetensors --steps 30 \
  --learning-rate 1e-3 --log-file build/quickstart/log.jsonl

build/venv/bin/python - build/quickstart/log.jsonl <<'PYTHON'
import json
import sys

losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
print(f"loss of the first step {losses[0]:.4f}, of step {len(losses)} {losses[-1]:.4f}")
PYTHON
