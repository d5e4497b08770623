#!/usr/bin/env bash
# Sets up, builds and runs all tests; ctest's totals come last.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --cuda
scripts/build.sh
ctest --test-dir build --no-tests=error --output-on-failure -j2
