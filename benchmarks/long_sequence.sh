#!/usr/bin/env bash
# One step of LoRA on SmolLM2-135M with a sequence longer than the 8,192 tokens that its file allows, all of it inside a
# budget: long_sequence.sh BUILD_DIR [TOKENS [BUDGET]], 16384 and 1GiB. What it learns at positions beyond those is no
# concern of this: memory and time are those of a model that allows them. Hours on two cores: attention grows with the
# square of the sequence.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
tokens="${2:-16384}"
budget="${3:-1GiB}"
python="$(<"$build/python/interpreter")"
original="$("$here/../scripts/smollm2.sh" "$python" "$build/smollm2")"
model="$build/smollm2/positions-$tokens.gguf"
text="$build/smollm2/python-manual.txt"
"$python" - "$original" "$model" "$tokens" <<'PATCH'
import struct
import sys

KEY, UINT32 = b"llama.context_length", 4
original, model, tokens = sys.argv[1:]
with open(original, "rb") as file:
    contents = bytearray(file.read())
at = contents.index(KEY) + len(KEY)
if struct.unpack_from("<I", contents, at)[0] != UINT32:
    sys.exit(f"long_sequence: {original} has {KEY.decode()} in another type than uint32")
struct.pack_into("<I", contents, at + 4, int(tokens))
with open(model, "wb") as file:
    file.write(contents)
PATCH
"$python" -c 'import pydoc_data.topics as t; print("\n\n".join(t.topics.values()))' >"$text"
exec "$build/snug" finetune "$here/../examples/finetune-smollm2.toml" --set "model.path=$model" --set "data.path=$text" \
  --set "model.sequence=$tokens" --set model.weights=packed --set model.mlp_tile=512 --set model.loss_tile=8 \
  --set model.attention=products --set train.steps=1 --set train.validation_batches=0 --set precision.compute=fp32 \
  --set "memory.budget=$budget" --set "output.folder=$build/long_sequence"
