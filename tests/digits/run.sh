#!/usr/bin/env bash
# Trains on scikit-learn's digits under half of the memory: run.sh BUILD_DIR
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$(cd "$1" && pwd)"
python="$("$here/../../scripts/python_venv.sh" "$build" digits "$here/requirements.txt")"
"$python" "$here/make_digits.py" "$build/digits.safetensors"
exec "$build/examples/digits" "$build/digits.safetensors"
