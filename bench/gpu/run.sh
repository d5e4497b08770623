#!/usr/bin/env bash
# Tests and times prebuilt executables on a GPU; under 8 minutes.
#   FOLDER/run.sh [OUT.json]
# FOLDER: what prepare.sh made. Needs a driver for CUDA 13, 6 GB in $TMPDIR (/tmp), and a
# python3 with numpy, ml_dtypes, onnx, safetensors and torch for CUDA 13, whose wheels bring
# cuBLASLt and cuDNN; without torch, nvidia-cudnn-cu13 and nvidia-cuda-runtime, and nothing to
# compare with. Prints a table, writes OUT.json after each figure. PARTS=kernels,tiny runs some.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 > /dev/null || { echo "run.sh needs python3" >&2; exit 1; }
libraries=$(python3 - <<'PY'
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
places = list(spec.submodule_search_locations or []) if spec else []
found = {str(path.parent) for place in places for path in pathlib.Path(place).rglob("lib/lib*.so.*")}
print(":".join(sorted(found)))
PY
)
# What is set goes first; libmgq_cudnn.so lies here.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here${libraries:+:$libraries}
exec python3 "$here/run.py" "$here" "${1:-$here/gpu.json}"
