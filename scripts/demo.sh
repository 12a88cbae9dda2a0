#!/usr/bin/env bash
# Trains examples/gpt-demo.toml inside its budget, then proves on a few steps that the plan changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
snug=build/release/snug

echo "1. Train inside the budget (one process; its memory never passes the cap)"
"$snug" train examples/gpt-demo.toml
echo
echo "2. The same steps with and without the plan, compared bit by bit (a second process, since the plain steps need more)"
"$snug" verify examples/gpt-demo.toml --steps 3
