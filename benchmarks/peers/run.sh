#!/usr/bin/env bash
# Runs a script of this folder (methods or rotor) with the Python that has torch, after installing what only the peers
# need.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}"
python="${python:-$here/../../.venv/bin/python}"
if ! ldconfig -p | grep -q libtcmalloc && [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "bench-peers: installing libtcmalloc-minimal4"
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends libtcmalloc-minimal4 >/dev/null
fi
# Peers that are packages, beside the build: nothing else of the project needs them.
peers="$here/../../build/peers"
[[ -d $peers ]] || "$python" -m pip install --quiet --no-deps --target "$peers" ckptplan==0.1.0rc1 rockmate==2.0.0
export PYTHONPATH="$peers${PYTHONPATH:+:$PYTHONPATH}"
script="$1"
shift
exec "$python" "$here/$script.py" "$@"
