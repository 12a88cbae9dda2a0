#!/usr/bin/env bash
# Compares models with those of transformers: run.sh BUILD_DIR [smollm2 | full_size]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" parity "$here/requirements.txt")"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
case "${2:-all}" in all | smollm2 | full_size) ;; *) echo "run.sh: unknown comparison $2" >&2; exit 2 ;; esac
if [[ "${2:-all}" != smollm2 ]]; then
  "$python" "$here/full_size.py" "$build/tests/full_size_run"
fi
if [[ "${2:-all}" != full_size ]]; then
  model="$("$here/../../scripts/smollm2.sh" "$python" "$build/smollm2")"
  "$python" "$here/smollm2.py" "$build/tests/smollm2_run" "$model"
fi
