#!/usr/bin/env bash
# Whether all C++ files are as .clang-format has them: clang_format.sh ROOT [-i to make them so]. Exits with 77, which is a
# skipped test, where clang-format is of another version than the one that decides: it would lay out some lines otherwise.
set -euo pipefail
readonly version=14
cd "$1"
tool="$(command -v "clang-format-$version" clang-format | head -n 1 || true)"
if [[ -z "$tool" || "$("$tool" --version)" != *"version $version."* ]]; then
  echo "clang_format: ${tool:+$("$tool" --version) is here; }version $version decides: nothing is looked at"
  exit 77
fi
what=(--dry-run -Werror)
[[ "${2:-}" != -i ]] || what=(-i)
find snug tests examples benchmarks python '(' -name '*.h' -o -name '*.cpp' ')' -print0 | xargs -0 "$tool" "${what[@]}"
