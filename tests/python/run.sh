#!/usr/bin/env bash
# Runs the Python tests: run.sh BUILD_DIR PYTEST_ARGUMENTS... with the torch that the extension was built for.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" tests "$here/requirements.txt")"
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
cd "$here"
exec "$python" -m pytest -q -p no:cacheprovider "${@:2}"
