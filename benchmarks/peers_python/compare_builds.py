"""Two builds of the Python package run the same step under the same cap, a step each in turns: newer over older.

Usage: compare_builds.py BUILD_BEFORE BUILD_AFTER PEERS_PYTHON.json [--models ...] [--turns N] [--json]
The caps are the peaks of snug's rows of PEERS_PYTHON.json, as `make bench-peers-python` leaves it under benchmarks/results,
and 2 MiB. Each build plans by what it has measured itself. Ends with exit status 1 where a lower quartile is above 1.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "peers"))
from turns import Stepper, ratio, spread, turns_of

MIB = 1 << 20


def compare(builds, model, cap, strategy, turns):
    steppers = []
    try:
        made = []
        for build in builds:
            environment = dict(os.environ) | {"PYTHONPATH": str(build.resolve() / "python")}
            steppers.append(Stepper([sys.executable, here / "python_step.py", model, cap, strategy], environment))
            made.append(steppers[-1].answer())
        found, rejected = turns_of(steppers, turns)
        if len(found) < turns:
            raise RuntimeError(f"other processes disturbed {rejected} turns")
        ended = [stepper.end() for stepper in steppers]
    finally:
        for stepper in steppers:
            stepper.stop()
    return {"cap_bytes": cap, "after_over_before": ratio([(after, before) for before, after in found]),
            "floor_bytes": [m["floor_bytes"] for m in made], "peak_bytes": [e["peak_bytes"] for e in ended],
            "same_loss": ended[0]["loss"] == ended[1]["loss"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("peers", type=pathlib.Path)
    parser.add_argument("--models")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for model, result in json.loads(options.peers.read_text()).items():
        if options.models and model not in options.models.split(","):
            continue
        for title, row in result["rows"].items():
            if not title.startswith("snug"):
                continue
            strategy = "none" if title == "snug, all kept" else "optimal"
            cap = row["peak_bytes"] + (2 * MIB if strategy == "optimal" else row["peak_bytes"])
            rows.append({"model": model, "row": title} |
                        compare([options.before, options.after], model, cap, strategy, options.turns))
            r = rows[-1]
            if not options.json:
                print(f"{model:13} {title:16} {cap / MIB:7.1f} MiB  {spread(r['after_over_before'])}  peaks "
                      f"{r['peak_bytes'][0] / MIB:.1f} and {r['peak_bytes'][1] / MIB:.1f} MiB"
                      f"{'' if r['same_loss'] else '  another loss'}", flush=True)
    if not rows:
        sys.exit(f"compare_builds: {options.peers} has no such rows")
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        mean = statistics.geometric_mean(r["after_over_before"]["median"] for r in rows)
        print(f"geometric mean of {len(rows)}: x {mean:.3f}")
    sys.exit(any(r["after_over_before"]["quartiles"][0] > 1 for r in rows))


main()
