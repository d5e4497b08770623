#!/usr/bin/env bash
# Run before every commit: format, include direction, effects inside assert,
# sizes, then build (warnings are errors) and the lit tests.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
# Remembers that a check failed and says which.
fail() {
  echo "check.sh: $1" >&2
  status=1
}

mapfile -t sources < <(git ls-files '*.cpp' '*.h' '*.c')
if [ ${#sources[@]} -gt 0 ]; then
  clang-format-22 --dry-run -Werror "${sources[@]}" || fail "run clang-format-22 -i on these"
fi
python3 scripts/check-includes.py || fail "an include points the wrong way"
if git grep -nE 'assert\((succeeded|failed)\(' -- '*.cpp' '*.h' '*.td'; then
  fail "a release build drops what an assert calls"
fi

python3 scripts/count-lines.py
[ $status -eq 0 ] || exit $status

scripts/build.sh
ctest --test-dir build --no-tests=error --output-on-failure -R lit
