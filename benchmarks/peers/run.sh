#!/usr/bin/env bash
# Runs run.py with the Python that has torch, after installing what only this benchmark needs.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}"
python="${python:-$here/../../.venv/bin/python}"
if ! ldconfig -p | grep -q libtcmalloc && [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "bench-peers: installing libtcmalloc-minimal4"
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends libtcmalloc-minimal4 >/dev/null
fi
exec "$python" "$here/run.py" "$@"
