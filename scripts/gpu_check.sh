#!/usr/bin/env bash
# What a machine with a GPU shows, and nothing else can: builds snug with CUDA, runs the tests on the GPU and measures it
# beside PyTorch's own memory savers, within 25 minutes. Each stage leaves what it found in build/gpu-check, be it that the
# next does not come.
#   scripts/gpu_check.sh [cuda:0]       the device; SNUG_LIBTORCH and an active environment's torch are used as by setup.sh
# Ends with 1 where a test fails, or no GPU is found.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly device="${1:-cuda:0}" build=build/release out=build/gpu-check
readonly began=$SECONDS limit=1500
failed=()

say() { echo "gpu-check: $*"; }
left() { echo $((limit - (SECONDS - began))); }

# stage NAME SECONDS COMMAND...: at most so long, and no longer than is left
stage() {
  local name="$1" most="$2" status
  shift 2
  ((most < $(left))) || most="$(left)"
  if ((most < 10)); then
    failed+=("$name (no time left)")
    return 1
  fi
  say "$name"
  timeout "$most" "$@" >"$out/$name.txt" 2>&1
  status=$?
  tail -n 3 "$out/$name.txt" | sed 's/^/  /'
  ((status == 0)) && return 0
  failed+=("$name ($( ((status == 124)) && echo "over $most s" || echo "exit $status"))")
  return 1
}

mkdir -p "$out"
{
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv || echo "no nvidia-smi"
  git log -1 --format='snug %h of %cs' 2>/dev/null
} >"$out/machine.txt" 2>&1
cat "$out/machine.txt"

# A file that includes LibTorch takes up to 3 GiB to compile. A LibTorch from an archive has no Python.
build_all() {
  local jobs targets=(snug_cli replay_test equivalence_test train_test cap_test)
  jobs="$(awk -v cores="$(nproc)" '/^MemAvailable/ { jobs = int($2 / 1048576 / 3); print (jobs > cores ? cores : jobs < 1 ? 1 : jobs) }' /proc/meminfo)"
  scripts/setup.sh tests benchmarks &&
    cmake --preset release -DSNUG_BUILD_TESTS=ON -DSNUG_BUILD_PYTHON=ON -DSNUG_BUILD_BENCHMARKS=ON || return
  if [[ -f "$build/python/snug/_version.py" ]]; then
    targets+=(snug_python)
    scripts/python_venv.sh "$build" tests tests/python/requirements.txt &&
      scripts/python_venv.sh "$build" peers benchmarks/peers_python/requirements.txt || return
  fi
  cmake --build --preset release -j "$jobs" --target "${targets[@]}"
}
export -f build_all
export build
if ! stage build 900 bash -c build_all; then
  say "failed: ${failed[*]}; what was built stays, so that another call goes on from there"
  exit 1
fi

# The same bits in every run, which is what tests compare.
export CUBLAS_WORKSPACE_CONFIG=:4096:8 SNUG_TEST_DEVICE="$device"
stage doctor 60 "$build/snug" doctor
if ! grep -q "$device" "$out/doctor.txt"; then
  say "snug sees no $device: the LibTorch that it was built with, or the headers of CUDA beside that, do not know GPUs; see $out/build.txt for a warning of CMake"
  exit 1
fi
stage replay 180 "$build/tests/replay_test"
stage equivalence 240 "$build/tests/equivalence_test"
stage train 240 "$build/tests/train_test" '--gtest_filter=RunDevice*:TrainingStep*:*Accumulation*:LossScale*:Largest*'
stage cap 240 "$build/tests/cap_test" '--gtest_filter=*/0:-*PerDevice*'  # 100 of them
stage verify 120 "$build/snug" verify examples/gpt-demo.toml --device "$device"
if [[ -f "$build/python/snug/_version.py" ]]; then
  stage python 240 tests/python/run.sh "$build" -m 'not long'
  stage peers 240 benchmarks/peers_python/run.sh peers "$build" "$out/peers" --device "$device" --models llama,gpt2 --compile 0.75,0.5 --turns 5
  stage lora 240 benchmarks/peers_python/run.sh peers "$build" "$out/lora" --device "$device" --models smollm2-1024 --turns 5
else
  say "this LibTorch has no Python: the stages python, peers and lora are left out"
fi

say "$((SECONDS - began)) s; what was found is in $out; figures worth keeping go to benchmarks/results/"
if ((${#failed[@]} > 0)); then
  say "failed: ${failed[*]}"
  exit 1
fi
