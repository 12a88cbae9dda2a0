#!/usr/bin/env bash
# Compiles the CUDA code against CUDA builds of LibTorch, the oldest that snug supports and the newest, on a machine that
# needs neither a GPU nor a CUDA toolkit. The headers come from four Python packages (1 GB to download, once; 130 MB are
# kept, in build/cuda-check).
#   scripts/cuda_check.sh [FILE...]     snug/memory/cuda_*.cpp unless given
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# `===` leaves out CPU builds, which have a version such as 2.11.0+cpu. Both were built with these headers, or others of
# 13.0.
readonly versions=(2.11.0 2.15.0)
readonly cuda_headers=('nvidia-cuda-runtime==13.0.96' 'nvidia-cuda-crt==13.0.88')
readonly folder=build/cuda-check

say() { echo "cuda-check: $*"; }
fail() {
  echo "cuda-check: $*" >&2
  exit 1
}

python="${VIRTUAL_ENV:-.venv}/bin/python"
[[ -x "$python" ]] || python="$(command -v python3)" || fail "no Python found; run make setup"

# take REQUIREMENT INTO PREFIX: the headers that the package's wheel has under it; nothing where they are there
take() {
  local requirement="$1" into="$folder/$2" wheel
  [[ ! -f "$into/complete" || "$(<"$into/complete")" != "$requirement" ]] || return 0
  say "downloading $requirement"
  rm -rf "$folder/wheel" "$into"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$folder/wheel" "$requirement" || fail "pip could not download $requirement"
  wheel="$(echo "$folder"/wheel/*.whl)"
  "$python" - "$wheel" "$into" "$3" <<'PYTHON'
import sys, zipfile
wheel, destination, prefix = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith(prefix)]
    if not names:
        sys.exit(f"cuda-check: {wheel} holds nothing under {prefix}")
    archive.extractall(destination, names)
PYTHON
  rm -rf "$folder/wheel"
  echo "$requirement" >"$into/complete"
}

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
includes=()
for package in "${cuda_headers[@]}"; do
  take "$package" "${package%%==*}" nvidia/cu13/include/
  includes+=(-isystem "$folder/${package%%==*}/nvidia/cu13/include")
done

[[ $# -gt 0 ]] || set -- snug/memory/cuda_*.cpp
for version in "${versions[@]}"; do
  take "torch===$version" "torch-$version" torch/include/
  torch="$folder/torch-$version/torch/include"
  [[ -f "$torch/c10/cuda/impl/cuda_cmake_macros.h" ]] || fail "the torch $version that pip chose has no CUDA"
  for file in "$@"; do
    say "compiling $file against LibTorch $version"
    "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror -I . -isystem "$torch" \
      -isystem "$torch/torch/csrc/api/include" "${includes[@]}" "$file"
  done
done
say "all compile"
