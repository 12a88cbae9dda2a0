#!/usr/bin/env bash
# Runs one of the checks here that need more than Python brings along: run.sh BUILD_DIR SCRIPT ARGUMENTS... Installs what
# requirements.txt names, beside the build.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$1/tests/architecture"
stamp="$folder/venv/.installed-$(sha256sum "$here/requirements.txt" | cut -c1-16)"
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [[ ! -f "$stamp" ]]; then
  rm -rf "$folder/venv"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  touch "$stamp"
fi
flock -u 9
exec "$folder/venv/bin/python" "$here/$2" "${@:3}"
