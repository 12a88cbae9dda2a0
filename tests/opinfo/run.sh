#!/usr/bin/env bash
# Runs op_tests.py: run.sh EXTENSION_DIR ARGUMENTS... with the Python that the extension was built for. Installs what
# PyTorch's own tests import, beside the build.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
extension="$1"
python="$(<"$extension/python")"
packages="$extension/packages"
if ! "$python" -c 'import expecttest, scipy' 2>/dev/null; then
  if ! PYTHONPATH="$packages" "$python" -c 'import expecttest, scipy' 2>/dev/null; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$packages" expecttest scipy
  fi
  export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
fi
exec "$python" "$here/op_tests.py" "$extension" "${@:2}"
