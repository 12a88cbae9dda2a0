"""Two builds of snug plan the same recorded steps: predicted seconds of their plans, and what planning took.

Usage: compare_plans.py SNUG_BEFORE SNUG_AFTER GRAPH.json... [--budgets N] [--json]
Budgets go from the higher of the two floors to the unplanned peak. Graphs come from `nets_benchmark record FOLDER` or
`snug plan CONFIG --graph-out`, of the older of the two: what it wrote, the newer one reads. Ends with exit status 1 where
a plan of SNUG_AFTER is predicted to be slower.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys

# A clock that an older build did not record is estimated by whoever reads the graph.
ROUNDING = 1e-9


def plan(snug, graph, budget):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    said = subprocess.run([snug, "plan", "--graph", graph, "--budget", budget, "--json"], text=True, capture_output=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if said.returncode != 0:
        sys.exit(f"compare_plans: {snug} plan --graph {graph} --budget {budget}: {said.stderr.strip()}")
    return json.loads(said.stdout) | {"user_seconds": seconds}


def compare(before, after, graph, count):
    whole = [plan(snug, graph, "100%") for snug in (before, after)]
    low, high = max(w["floor_bytes"] for w in whole), max(w["unplanned_peak_bytes"] for w in whole)
    for i in range(count):
        budget = low + (high - low) * i // max(1, count - 1)
        plans = [plan(snug, graph, f"{budget}B") for snug in (before, after)]
        yield {"graph": pathlib.Path(graph).stem, "budget_bytes": budget,
               "step_seconds": [p["predicted_step_seconds"] for p in plans],
               "unplanned_step_seconds": [p["unplanned_step_seconds"] for p in plans],
               "predicted_peak_bytes": [p["predicted_peak_bytes"] for p in plans],
               "planning_user_seconds": [p["user_seconds"] for p in plans]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--budgets", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for graph in options.graphs:
        for row in compare(options.before, options.after, graph, options.budgets):
            rows.append(row)
            if not options.json:
                ratio = row["step_seconds"][1] / row["step_seconds"][0]
                print(f"{row['graph']:>8}  {row['budget_bytes'] / 2**20:9.1f} MiB  step {row['step_seconds'][0]:8.4f} s"
                      f" -> {row['step_seconds'][1]:8.4f} s  x {ratio:.5f}", flush=True)
    slower = [row for row in rows if row["step_seconds"][1] > row["step_seconds"][0] * (1 + ROUNDING)]
    planning = [row["planning_user_seconds"][1] / row["planning_user_seconds"][0] for row in rows]
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{len(slower)} of {len(rows)} plans are predicted to be slower; "
              f"planning takes x {statistics.median(planning):.3f} of its time (median of user time)")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
