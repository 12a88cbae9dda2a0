#!/usr/bin/env bash
# Runs op_tests.py: run.sh BUILD_DIR ARGUMENTS... through the Python package, with the Python that it was built for.
# Installs what PyTorch's own tests import, beside the build.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="$1"
python="$(<"$build/python/interpreter")"
packages="$build/tests/opinfo/packages"
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import expecttest, scipy' 2>/dev/null; then
  if ! PYTHONPATH="$packages" "$python" -c 'import expecttest, scipy' 2>/dev/null; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$packages" expecttest scipy
  fi
  export PYTHONPATH="$PYTHONPATH:$packages"
fi
exec "$python" "$here/op_tests.py" "${@:2}"
