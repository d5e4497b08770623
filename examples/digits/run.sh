#!/usr/bin/env bash
# The whole road on real pictures: export, prepare, compile, train, adapter, answers.
#   examples/digits/run.sh [--compare] [FOLDER]
# FOLDER (build/digits) gets all files. --compare also trains in PyTorch + PEFT, on the
# same data in the same order, and compares the answers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
compare=
if [ "${1:-}" = --compare ]; then
  compare=1
  shift
fi
if [[ ${1:-} == -* || $# -gt 1 ]]; then
  echo "usage: run.sh [--compare] [FOLDER]" >&2
  exit 2
fi
work=${1:-$root/build/digits}
mkdir -p "$work"
cd "$work"

build=${MGQ_BUILD:-$root/build}
python=$build/venv/bin/python
export PYTHONPATH=$root/frontends/pytorch PYTHONWARNINGS=ignore
base=$here/base
tool() { "$python" -m "mgq.commands.$1" "${@:2}"; } # mgq-export is `tool export`
answers() { tool generate --model model.onnx --tokenizer "$base/qwen" --questions held-out.json --json "${@:2}" >"$1"; }
training=(--epochs 1 --learning-rate 3e-3 --lr-scheduler-type cosine --warmup-steps 20 --shuffle off)

echo "== pictures and conversations"
"$python" "$here/make_data.py" .

echo "== export: LoRA on the language model and the projection train, all else is frozen"
tool export minigpt4qwen --vision "$base/blip2" --qformer "$base/blip2" --llm "$base/qwen" \
  --lora r=8,alpha=16,dropout=0 --train projection,lora --length 56 --micro-batch 16 -o model.onnx

echo "== prepare"
for part in train held-out; do
  tool prepare --data $part.json --tokenizer "$base/qwen" --model model.onnx --labels assistant -o $part
done

echo "== compile"
"$build/bin/mgq-compile" model.onnx -o train

echo "== train"
./train --data train-*.safetensors --eval-data held-out-*.safetensors "${training[@]}" \
  --output-dir checkpoints --save-total-limit 1 --log-file log.jsonl --logging-steps 50
trained=$(ls -d checkpoints/checkpoint-*)

echo "== adapter for PEFT, in $work/adapter"
tool adapter "$trained" --model model.onnx -o adapter

echo "== answers about held-out pictures"
answers before.jsonl
answers after.jsonl --adapter adapter
"$python" "$here/accuracy.py" held-out.json before=before.jsonl after=after.jsonl

if [ "$compare" ]; then
  echo "== the same in PyTorch + PEFT"
  "$python" "$here/train_in_pytorch.py" model.onnx train-*.safetensors -o pytorch "${training[@]}"
  answers pytorch.jsonl --checkpoint pytorch
  "$python" "$here/accuracy.py" held-out.json mgq=after.jsonl pytorch=pytorch.jsonl
fi
