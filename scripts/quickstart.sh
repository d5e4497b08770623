#!/usr/bin/env bash
# Sets up, builds, and runs examples/digits: trains adapters of a small MiniGPT4Qwen on
# real pictures and prints how many answers are right before and after.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh
examples/digits/run.sh
