#!/usr/bin/env bash
# Runs smollm2.py: run.sh BUILD_DIR
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" parity "$here/requirements.txt")"
model="$("$here/../../scripts/smollm2.sh" "$python" "$build/smollm2")"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$here/smollm2.py" "$build/tests/smollm2_run" "$model"
