#!/usr/bin/env bash
# Fine-tunes SmolLM2-135M with LoRA on the Python manual inside 1 GiB, with text before and after, then tells the longest
# sequence that fits in 2 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
snug=build/release/snug
python="$(<build/release/python/interpreter)"
folder=build/release/smollm2
model="$(scripts/smollm2.sh "$python" "$folder")"
text="$folder/python-manual.txt"
# Real text that every Python brings along.
"$python" -c 'import pydoc_data.topics as t; print("\n\n".join(t.topics.values()))' >"$text"
set=(--set "model.path=$model" --set "data.path=$text")

echo "1. Fine-tune inside 1 GiB (weights, adapters, optimizer, activations: all of it)"
"$snug" finetune examples/finetune-smollm2.toml "${set[@]}" --prompt "The with statement is used to" \
  --prompt "A function definition is an executable statement." --tokens 30
echo
echo "2. The adapter that was saved, from the command line"
"$snug" generate --model "$model" --adapter runs/finetune-smollm2/adapter --prompt "The with statement" --tokens 40
echo
echo "3. The longest sequence that one step can have inside 2 GiB"
"$snug" plan examples/finetune-smollm2.toml "${set[@]}" --budget 2GiB --largest sequence
