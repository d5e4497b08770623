#!/usr/bin/env bash
# Installs what building and testing need: Debian packages, and in build/venv
# Python packages with the commands of frontends/pytorch.
#   scripts/setup.sh          without CUDA
#   scripts/setup.sh --cuda   with what compiling for CUDA needs, where no toolkit
#                             is in CUDA_HOME or /usr/local/cuda
# Does nothing, quickly, when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  cmake ninja-build ccache g++ python3-venv
  clang-22 libclang-rt-22-dev clang-format-22 lld-22
  llvm-22-dev llvm-22-tools libmlir-22-dev mlir-22-tools
  libprotobuf-dev protobuf-compiler
  nlohmann-json3-dev libcli11-dev libfmt-dev libgmock-dev libgtest-dev
  openmpi-bin libopenmpi-dev
)

with_cuda=
case "$*" in
  '') ;;
  --cuda) with_cuda=yes ;;
  *) echo "usage: scripts/setup.sh [--cuda]" >&2; exit 2 ;;
esac

# Prints the packages that are not installed.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  local package
  for package in "${packages[@]}"; do
    grep -qx "installed $package" <<<"$installed" || echo "$package"
  done
}

# Runs a command as root.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -gt 0 ]; then
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# A stamp holds what build/venv was made from.
stamp=build/venv/made-from
wanted=$(cat scripts/requirements.txt frontends/pytorch/pyproject.toml)
pip=(build/venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check)
if [ "$wanted" != "$(cat "$stamp" 2>/dev/null)" ]; then
  mkdir -p build
  [ -x build/venv/bin/python ] || python3 -m venv build/venv
  "${pip[@]}" -r scripts/requirements.txt
  "${pip[@]}" --no-deps --no-build-isolation --editable frontends/pytorch
  echo "$wanted" >"$stamp"
fi

# Whether a folder is a CUDA toolkit with what compiling needs.
is_toolkit() {
  [ -x "$1/bin/ptxas" ] && [ -e "$1/nvvm/libdevice/libdevice.10.bc" ] &&
    [ -e "$1/include/cuda.h" ] && [ -e "$1/include/cublasLt.h" ]
}

# Assembler, libdevice and headers, as wheels: no compiler of CUDA is needed.
# torch's own wheels have the rest of the headers, and NCCL's.
if [ -n "$with_cuda" ]; then
  toolkit=${CUDA_HOME:-/usr/local/cuda}
  stamp=build/venv/cuda-made-from
  wanted=$(cat scripts/requirements-cuda.txt)
  if is_toolkit "$toolkit"; then
    echo "setup.sh: CUDA toolkit in $toolkit"
    # No toolkit has the frontend of cuDNN.
    wanted=$(grep '^nvidia-cudnn-frontend' scripts/requirements-cuda.txt)
  fi
  if [ "$wanted" != "$(cat "$stamp" 2>/dev/null)" ]; then
    # Words are requirements.
    # shellcheck disable=SC2086
    "${pip[@]}" --no-deps $wanted
    echo "$wanted" >"$stamp"
  fi
fi
