#!/usr/bin/env bash
# Runs a googletest program as so many processes at once, which share its tests: shards.sh N PROGRAM
set -euo pipefail
count="$1"
program="$2"
pids=()
for ((i = 0; i < count; i++)); do
  GTEST_TOTAL_SHARDS="$count" GTEST_SHARD_INDEX="$i" "$program" &
  pids+=("$!")
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit "$failed"
