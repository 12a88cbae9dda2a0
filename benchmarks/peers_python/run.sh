#!/usr/bin/env bash
# Runs a script of this folder (peers or lora): run.sh SCRIPT BUILD_DIR ARGUMENTS...
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$2" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" peers "$here/requirements.txt")"
# Only the data of the package that has it: what it depends on is compiled for minutes.
SMOLLM2_GGUF="$("$here/../../scripts/smollm2.sh" "$python" "$build/smollm2")"
export SMOLLM2_GGUF
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$here/$1.py" "${@:3}"
