#!/usr/bin/env bash
# Compiles the CUDA code against a CUDA build of LibTorch, on a machine that needs neither a GPU nor a CUDA toolkit.
# The headers come from three Python packages (530 MB to download, once; 60 MB are kept, in build/cuda-check).
#   scripts/cuda_check.sh [FILE...]     snug/memory/cuda_memory.cpp unless given
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The oldest LibTorch that snug supports, and the CUDA headers that it was built with. `===` leaves out CPU builds,
# which have a version such as 2.11.0+cpu.
readonly torch='torch===2.11.0'
readonly cuda_headers=('nvidia-cuda-runtime==13.0.96' 'nvidia-cuda-crt==13.0.88')
readonly folder=build/cuda-check
readonly headers="$folder/headers"
readonly stamp="$headers/complete" packages="$torch ${cuda_headers[*]}"

say() { echo "cuda-check: $*"; }
fail() {
  echo "cuda-check: $*" >&2
  exit 1
}

python="${VIRTUAL_ENV:-.venv}/bin/python"
[[ -x "$python" ]] || python="$(command -v python3)" || fail "no Python found; run make setup"

# take REQUIREMENT FOLDER...: the headers that the package's wheel has in these folders
take() {
  local requirement="$1" wheel
  shift
  say "downloading $requirement"
  rm -rf "$folder/wheel"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$folder/wheel" "$requirement" || fail "pip could not download $requirement"
  wheel="$(echo "$folder"/wheel/*.whl)"
  "$python" - "$wheel" "$headers" "$@" <<'PYTHON'
import sys, zipfile
wheel, destination, *prefixes = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith(tuple(prefixes))]
    if not names:
        sys.exit(f"cuda-check: {wheel} holds nothing under {prefixes}")
    archive.extractall(destination, names)
PYTHON
  rm -rf "$folder/wheel"
}

get_headers() {
  rm -rf "$headers"
  mkdir -p "$headers"
  local package
  take "$torch" torch/include/
  [[ -f "$headers/torch/include/c10/cuda/impl/cuda_cmake_macros.h" ]] || fail "the torch that pip chose has no CUDA"
  for package in "${cuda_headers[@]}"; do
    take "$package" nvidia/cu13/include/
  done
  echo "$packages" >"$stamp"
}

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [[ -f "$stamp" && "$(<"$stamp")" == "$packages" ]]; then
  say "the headers are in $headers"
else
  get_headers
fi

[[ $# -gt 0 ]] || set -- snug/memory/cuda_memory.cpp
for file in "$@"; do
  say "compiling $file"
  "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror -I . \
    -isystem "$headers/torch/include" -isystem "$headers/torch/include/torch/csrc/api/include" \
    -isystem "$headers/nvidia/cu13/include" "$file"
done
say "all compile"
