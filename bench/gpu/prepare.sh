#!/usr/bin/env bash
# Makes what run.sh needs on a machine with a GPU, on one without.
#   bench/gpu/prepare.sh [FOLDER]
# After scripts/setup.sh --cuda and scripts/build.sh. FOLDER (build/gpu, some 20 MB) gets
# executables, test data and kernels for sm_80, sm_86, sm_89 and sm_90. Weights of the
# timed models are random and made where they run. TWINS=DIR leaves the bitcode of host twins
# of the tiny executable there, for a trial on the test device.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$root/build/gpu}
python=$root/build/venv/bin/python
compile=$root/build/bin/mgq-compile
here=$root/bench/gpu
mkdir -p "$out"

echo "== tiny: the CPU and the CUDA executable"
tiny=$root/test/data/models/a1
cp "$tiny/model.onnx" "$tiny/inputs.safetensors" "$out/"
for target in cpu cuda; do
  flags=(--trainable='llm_proj.*,*lora_A*,*lora_B*' --micro-batches=2 --target=$target)
  if [ $target = cpu ]; then flags+=(--cpu=x86-64-v3)
  else flags+=(${TWINS:+--emit-twins="$TWINS"}); fi
  "$compile" "$out/model.onnx" -o "$out/tiny-$target" "${flags[@]}"
done

echo "== every kernel of the op tests"
"$python" "$root/test/kernels/cuda_ops_test.py" --build "$out/kernels" \
  --cuda-object "$root/build/bin/mgq-cuda-object" --architectures sm_80,sm_86,sm_89,sm_90
"$python" "$root/test/kernels/cuda_compression_test.py" --build "$out/kernels/compression" \
  --cuda-object "$root/build/bin/mgq-cuda-object" --architectures sm_80,sm_86,sm_89,sm_90 \
  --host "$root/build/test/kernels/mgq-compression-host.so"
cp "$root"/test/kernels/{cuda_compression_test,cuda_ops_test,op_cases,ops_test}.py "$out/kernels/"

echo "== the timed models"
"$python" "$here/models.py" > "$out/models.json"
for name in stage vit_g; do
  if [ ! -e "$out/$name.onnx" ]; then
    PYTHONPATH=$root/frontends/pytorch "$python" -m mgq.commands.export module \
      "$here/models.py:$name" --no-weights -o "$out/$name.onnx"
  fi
  "$compile" "$out/$name.onnx" -o "$out/$name" --target=cuda --precision=layered
done
cp "$here"/{run.sh,run.py,models.py} "$out/"
# Programs look for it beside themselves; without it they use kernels of their own.
[ ! -e "$root/build/lib/libmgq_cudnn.so" ] || cp "$root/build/lib/libmgq_cudnn.so" "$out/"
