#!/usr/bin/env bash
# Builds everything for another release of PyTorch than the one in .venv, and runs the tests with it.
#
#   test_torch.sh oldest|newest [CTEST_ARGUMENTS...]   by default -LE long: what make test runs
#
# tests/torch/*.txt says which releases these are. Environment and build are in build/with-torch; the wheels of PyTorch for
# CUDA, which PyPI has for these releases, take 6 GB there. They run on a machine without a GPU.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
which="${1:-}"
[[ -n "$which" && -f "tests/torch/$which.txt" ]] || {
  echo "test_torch: \"$which\" is no release that tests/torch has; give oldest or newest" >&2
  exit 2
}
shift
folder="build/with-torch/$which"
venv="$PWD/$folder/venv"
scripts/setup.sh tests
mkdir -p "$folder"
[[ -e "$venv" ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "tests/torch/$which.txt" numpy

export VIRTUAL_ENV="$venv"
jobs="${JOBS:-$(nproc)}"
cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 \
  -DSNUG_BUILD_TESTS=ON -DSNUG_BUILD_PYTHON=ON
cmake --build "$folder/build" -j "$jobs" --target tests
[[ $# -gt 0 ]] || set -- -LE long
OMP_WAIT_POLICY=passive ctest --test-dir "$folder/build" --output-on-failure --no-tests=error -j "$jobs" "$@"
