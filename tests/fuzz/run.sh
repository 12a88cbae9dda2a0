#!/usr/bin/env bash
# Builds the fuzzers and runs each for so many seconds: run.sh BUILD_DIR SECONDS [NAME ...]
# Seeds are the files that tests read. What a fuzzer finds is kept in BUILD_DIR/fuzz, and its path printed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
tests="$(dirname "$here")"
build="$1/fuzz"
libtorch="$(<"$1/libtorch")"
seconds="$2"
shift 2
readonly names=(safetensors safetensors_index gguf gguf_tokenizer tokenizer_json named_tokens sentence_piece megatron_index
  token_file manifest plan config_json peft_adapter torch_checkpoint)
# Debian: clang and libclang-rt-dev.
compiler="${SNUG_FUZZ_COMPILER:-$(compgen -c clang++ | sort -V | head -n 1)}"
# Fresh: with another compiler CMake would forget the other settings.
cmake --fresh -S "$here" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DSNUG_LIBTORCH="$libtorch" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}"

seeds() {
  local folder="$build/seeds/$1"
  rm -rf "$folder"
  mkdir -p "$folder" "$build/corpus/$1"
  case "$1" in
    safetensors) head -c 100000 "$tests/state/reference.safetensors" >"$folder/a"; cp "$tests/train/tiny/model.safetensors" "$folder/b" ;;
    gguf | gguf_tokenizer) cp "$tests/train/tiny.gguf" "$tests/state/reference.gguf" "$folder" ;;
    tokenizer_json) cp "$tests/train/tiny/tokenizer.json" "$tests"/data/{gpt2,llama3,smollm}.json "$folder" ;;
    megatron_index | manifest | plan | safetensors_index | token_file) python3 "$here/seeds.py" "$1" "$folder" ;;
    config_json) cp "$tests/train/tiny/config.json" "$folder" ;;
    sentence_piece) cp "$tests"/data/{bpe,unigram}.model "$folder" ;;
    named_tokens) cp "$tests/data/bpe_converted.json" "$folder"; python3 "$here/seeds.py" named_tokens "$folder" ;;
    torch_checkpoint) for one in "$tests"/state/torch_checkpoint*/.metadata; do cp "$one" "$folder/$(basename "$(dirname "$one")")"; done ;;
    peft_adapter) cp "$tests/train/tiny_adapter/adapter_config.json" "$folder" ;;
  esac
}

failed=0
for name in "${@:-${names[@]}}"; do
  seeds "$name"
  if "$build/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/$name-" "$build/corpus/$name" "$build/seeds/$name" >"$build/$name.log" 2>&1; then
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs in $seconds s, no fault"
  else
    failed=1
    echo "$name: FAILED; the end of $build/$name.log:"
    tail -n 40 "$build/$name.log"
  fi
done
exit "$failed"
