"""Two builds of snug run the same step under the same caps, a step each in turns: seconds of the newer over the older.

Usage: compare_steps.py BUILD_BEFORE BUILD_AFTER PEERS.json [--precisions fp32,bf16] [--methods a,b,...] [--models a,b,...]
           [--turns N] [--json]
PEERS.json is what `make bench-peers` (rows of gpt-12x384, run with tcmalloc) or `make bench-peers-python` leaves under
benchmarks/results; the caps are those of its rows. For the latter the Python that runs this needs what the comparison does:
`scripts/python_venv.sh BUILD peers benchmarks/peers_python/requirements.txt` prints one. Each build plans by what it has
measured itself. Ends with exit status 1 where a lower quartile is above 1.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here / "peers"))
from turns import Stepper, find_tcmalloc, ratio, spread, turns_of

MIB = 1 << 20


class Gpt:
    """A row of make bench-peers."""

    def __init__(self, precision, method, cap):
        self.names, self.cap = (precision, method), cap

    def command(self, build):
        return [build / "benchmarks" / "gpt_step", self.names[0], self.cap]

    def environment(self, build):
        return dict(os.environ) | {"LD_PRELOAD": find_tcmalloc()}


class Transformer:
    """One of snug's rows of make bench-peers-python; its peak, and room for the allocator."""

    def __init__(self, model, title, peak):
        self.names, self.keeps = (model, title), title == "snug, all kept"
        self.cap = 2 * peak if self.keeps else peak + 2 * MIB

    def command(self, build):
        return [sys.executable, here / "peers_python" / "python_step.py", self.names[0], self.cap,
                "none" if self.keeps else "optimal"]

    def environment(self, build):
        return dict(os.environ) | {"PYTHONPATH": str(build.resolve() / "python"), "HF_HUB_OFFLINE": "1"}


def rows_of(peers, options):
    chosen = lambda names, name: not names or name in names.split(",")
    if "runs" not in peers:
        return [Transformer(model, title, row["peak_bytes"]) for model, result in peers.items()
                for title, row in result["rows"].items() if title.startswith("snug") and chosen(options.models, model)]
    rows = []
    for run in peers["runs"]:
        for row in run["rows"] if run["malloc"] == "tcmalloc" and chosen(options.precisions, run["precision"]) else []:
            cap = row.get("cap_bytes") or row.get("peak_bytes")
            if cap is not None and chosen(options.methods, row["method"]):
                rows.append(Gpt(run["precision"], row["method"], cap))
    return rows


def compare(builds, row, turns):
    steppers = []
    try:
        made = []
        for build in builds:
            steppers.append(Stepper(row.command(build), row.environment(build)))
            made.append(steppers[-1].answer())
        found, rejected = turns_of(steppers, turns)
        if len(found) < turns:
            raise RuntimeError(f"other processes disturbed {rejected} turns")
        ended = [stepper.end() for stepper in steppers]
    finally:
        for stepper in steppers:
            stepper.stop()
    return {"row": row.names, "cap_bytes": row.cap,
            "after_over_before": ratio([(after, before) for before, after in found]),
            "floor_bytes": [m["floor_bytes"] for m in made], "peak_bytes": [e["peak_bytes"] for e in ended],
            "same_loss": ended[0]["loss"] == ended[1]["loss"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("peers", type=pathlib.Path)
    for names in ("precisions", "methods", "models"):
        parser.add_argument(f"--{names}")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for row in rows_of(json.loads(options.peers.read_text()), options):
        found.append(compare([options.before, options.after], row, options.turns))
        r = found[-1]
        if not options.json:
            print(f"{row.names[0]:13} {row.names[1]:16} {r['cap_bytes'] / MIB:7.1f} MiB  {spread(r['after_over_before'])}  "
                  f"peaks {r['peak_bytes'][0] / MIB:.1f} and {r['peak_bytes'][1] / MIB:.1f} MiB"
                  f"{'' if r['same_loss'] else '  another loss'}", flush=True)
    if not found:
        sys.exit(f"compare_steps: {options.peers} has no such rows")
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        mean = statistics.geometric_mean(r["after_over_before"]["median"] for r in found)
        print(f"geometric mean of {len(found)}: x {mean:.3f}")
    sys.exit(any(r["after_over_before"]["quartiles"][0] > 1 for r in found))


main()
