#!/usr/bin/env bash
# Prints the Python of a virtual environment in FOLDER with what a requirements file names: tool_venv.sh FOLDER REQUIREMENTS.
# For tools that do not need torch; python_venv.sh makes one that has it.
set -euo pipefail
folder="$1"
stamp="$folder/.installed-$(sha256sum "$2" | cut -c1-16)"
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
if [[ ! -f "$stamp" ]]; then
  rm -rf "$folder"
  python3 -m venv "$folder" >&2
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2" >&2
  touch "$stamp"
fi
echo "$folder/bin/python"
