#!/usr/bin/env bash
# Runs one of the checks here that need more than Python brings along: run.sh BUILD_DIR SCRIPT ARGUMENTS... Installs what
# requirements.txt names, beside the build.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="$("$here/../../scripts/tool_venv.sh" "$1/tests/architecture/venv" "$here/requirements.txt")"
exec "$python" "$here/$2" "${@:3}"
