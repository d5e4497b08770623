#!/usr/bin/env bash
# Sets up, builds, compiles a shipped model and trains its adapters for 32 steps.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh

model=test/data/models/a1
mkdir -p build/quickstart
build/bin/mgq-compile $model/model.onnx -o build/quickstart/train \
  --trainable='*.lora_[AB].*,llm_proj.*'
build/quickstart/train --data $model/inputs.safetensors --steps 32 \
  --learning-rate 1e-3 --log-file build/quickstart/log.jsonl

build/venv/bin/python - build/quickstart/log.jsonl <<'PYTHON'
import json
import sys

losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
records = 4  # an epoch
first, last = losses[:records], losses[-records:]
print(f"mean loss of the first {records} steps {sum(first) / records:.4f}, "
      f"of the last {records} {sum(last) / records:.4f}")
if sum(last) >= sum(first):
    sys.exit("the loss did not fall")
PYTHON
