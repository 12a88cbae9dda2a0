#!/usr/bin/env bash
# Runs mutants.py: run.sh FOLDER ARGUMENTS... with universalmutator, which is installed into FOLDER; builds go there, too.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
python="$("$here/../../scripts/tool_venv.sh" "$folder/venv" "$here/requirements.txt")"
exec "$python" "$here/mutants.py" --folder "$folder" "${@:2}"
