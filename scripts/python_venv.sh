#!/usr/bin/env bash
# Prints the Python of a virtual environment beside a build, with the torch that the build uses and what a requirements file
# names: python_venv.sh BUILD_DIR NAME REQUIREMENTS. Nothing is put into that torch's own environment.
set -euo pipefail
build="$(cd "$1" && pwd)"
requirements="$3"
python="$(<"$build/python/interpreter")"
venv="$build/python/venv-$2"
exec 9>"$venv.lock"  # several tests may ask for it at once
flock 9
stamp="$venv/.installed-$({ echo "$python"; cat "$requirements"; } | sha256sum | cut -c1-16)"
if [[ ! -f "$stamp" ]]; then
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$python" -c "$purelib" >"$("$venv/bin/python" -c "$purelib")/torch-of-the-build.pth"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
  touch "$stamp"
fi
echo "$venv/bin/python"
