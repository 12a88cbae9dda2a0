#!/usr/bin/env bash
# The ladder of memory savers: run.sh BUILD_DIR ARGUMENTS of ladder.py behind it.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" peers "$here/../peers_python/requirements.txt")"
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
exec "$python" "$here/ladder.py" "$build" "${@:2}"
