"""Two builds of snug run the same step under the same caps, a step each in turns: seconds of the newer over the older.

Usage: compare_steps.py GPT_STEP_BEFORE GPT_STEP_AFTER PEERS.json [--precisions fp32,bf16] [--methods a,b,...] [--turns N] [--json]
The caps are those of the rows of PEERS.json, as `make bench-peers` leaves it under benchmarks/results, with tcmalloc. Each
build plans by what it has measured itself. Ends with exit status 1 where a lower quartile is above 1.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from turns import Stepper, find_tcmalloc, ratio, spread, turns_of


def compare(builds, precision, cap, environment, turns):
    steppers = []
    try:
        made = []
        for build in builds:
            steppers.append(Stepper([build, precision, cap], environment))
            made.append(steppers[-1].answer())
        found, rejected = turns_of(steppers, turns)
        if len(found) < turns:
            raise RuntimeError(f"other processes disturbed {rejected} turns")
        ended = [stepper.end() for stepper in steppers]
    finally:
        for stepper in steppers:
            stepper.stop()
    return {"precision": precision, "cap_bytes": cap,
            "after_over_before": ratio([(after, before) for before, after in found]),
            "floor_bytes": [m["floor_bytes"] for m in made], "peak_bytes": [e["peak_bytes"] for e in ended],
            "same_loss": ended[0]["loss"] == ended[1]["loss"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--methods")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    environment = dict(os.environ) | {"LD_PRELOAD": find_tcmalloc()}
    rows = []
    for run in json.loads(options.peers.read_text())["runs"]:
        if run["malloc"] != "tcmalloc" or run["precision"] not in options.precisions.split(","):
            continue
        for row in run["rows"]:
            cap = row.get("cap_bytes") or row.get("peak_bytes")
            if cap is None or (options.methods and row["method"] not in options.methods.split(",")):
                continue
            rows.append({"method": row["method"]} |
                        compare([options.before, options.after], run["precision"], cap, environment, options.turns))
            r = rows[-1]
            if not options.json:
                print(f"{r['precision']} {r['method']:16} {r['cap_bytes'] / 2**20:7.1f} MiB  "
                      f"{spread(r['after_over_before'])}{'' if r['same_loss'] else '  another loss'}", flush=True)
    if not rows:
        sys.exit(f"compare_steps: {options.peers} has no such rows with tcmalloc")
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        mean = statistics.geometric_mean(r["after_over_before"]["median"] for r in rows)
        print(f"geometric mean of {len(rows)}: x {mean:.3f}")
    sys.exit(any(r["after_over_before"]["quartiles"][0] > 1 for r in rows))


main()
