#!/usr/bin/env bash
# Runs peers.py: run.sh BUILD_DIR RESULTS_DIR ARGUMENTS...
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" peers "$here/requirements.txt")"
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$here/peers.py" "${@:2}"
