#!/usr/bin/env bash
# Runs one of the checks here that need more than Python brings along: run.sh BUILD_DIR SCRIPT ARGUMENTS... Installs what
# requirements.txt names, beside the build; exits with 77, a skipped test, where that fails.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! python="$("$here/../../scripts/tool_venv.sh" "$1/tests/architecture/venv" "$here/requirements.txt")"; then
  echo "$2: skipped, as pip could not install what $here/requirements.txt names" >&2
  exit 77
fi
exec "$python" "$here/$2" "${@:3}"
