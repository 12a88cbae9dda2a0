#!/usr/bin/env bash
# Runs against_python.py with the Python that has torch: the active one, or the one that setup.sh made.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}"
python="${python:-$here/../.venv/bin/python}"
exec "$python" "$here/against_python.py" "$@"
