#!/usr/bin/env bash
# Tests and times prebuilt executables on a GPU; under 8 minutes.
#   FOLDER/run.sh [OUT.json]
# FOLDER: what prepare.sh made. Needs a driver, and a python3 with torch (whose wheels bring
# cuBLASLt and NCCL), numpy, ml_dtypes, onnx and safetensors. Prints a table, writes OUT.json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(python3 - <<'PY'
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
places = list(spec.submodule_search_locations) if spec else []
found = {str(path.parent) for place in places for path in pathlib.Path(place).rglob("lib/lib*.so.*")}
print(":".join(sorted(found)))
PY
)
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec python3 "$here/run.py" "$here" "${1:-$here/gpu.json}"
