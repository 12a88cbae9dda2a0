"""What `snug plan --devices` foretells of layouts of two processes, beside runs of them, in turns: seconds of a step, of the
run over what was foretold, and peaks in bytes.

Usage: layouts.py SNUG CONFIG.toml [--turns N] [--steps N] [--budget BUDGET]

In each turn the links between the processes are measured (`snug doctor`), and each layout is foretold with them and run.
Each process computes with one thread: with fewer cores than processes the seconds mean nothing. Writes a table to standard
output. Ends with exit status 1 where a peak without a plan is another one than was foretold.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

LAYOUTS = [
    {},
    {"parallel.shard": "optimizer"},
    {"parallel.shard": "parameters"},
    {"parallel.tensor": 2, "parallel.sequence_parallel": "true"},
    {"parallel.tensor": 2, "parallel.sequence_parallel": "false"},
    {"parallel.context": 2},
    {"parallel.pipeline": 2, "train.accumulate": 2},
    {"parallel.pipeline": 2, "train.accumulate": 8},
    {"parallel.pipeline": 2, "train.accumulate": 4, "parallel.schedule": "interleaved(2)"},
]
WHOLE = {"parallel.tensor": 1, "parallel.context": 1, "parallel.pipeline": 1, "parallel.shard": "none",
         "train.accumulate": 1, "parallel.sequence_parallel": "false"}


def settings(layout):
    return [argument for key, value in layout.items() for argument in ("--set", f"{key}={value}")]


def together(snug, *arguments):
    """What the first of two processes has written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                       "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                       "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([snug, *arguments], env=environment, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True))
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"layouts: snug {' '.join(arguments)} has failed")
    return json.loads(outputs[0].splitlines()[-1])


def foretold(snug, config, layout, link, budget):
    keys = {**WHOLE, **layout}
    if "parallel.pipeline" not in layout:
        keys.pop("parallel.schedule", None)
    else:
        keys.setdefault("parallel.schedule", "1f1b")
    if "parallel.tensor" not in layout:
        del keys["parallel.sequence_parallel"]
    found = subprocess.run([snug, "plan", config, "--devices", "2", "--link", link, "--json", *budget, *settings(keys),
                            "--set", "train.threads=1"],
                           env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
    layouts = json.loads(found.stdout)["layouts"]
    assert len(layouts) == 1, layouts
    return layouts[0]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("snug", type=pathlib.Path)
    arguments.add_argument("config", type=pathlib.Path)
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--budget")
    told = arguments.parse_args()
    snug, config = str(told.snug), str(told.config)
    budget = ["--budget", told.budget] if told.budget else ["--set", "memory.budget="]
    ratios, seconds, same = {}, {}, True
    links = []
    for turn in range(told.turns):
        links.append(together(snug, "doctor", "--json")["link"])
        for i, layout in enumerate(LAYOUTS):
            plan = foretold(snug, config, layout, links[-1], budget)
            run = together(snug, "train", config, "--json", *budget, *settings(layout), "--set", "train.threads=1",
                           "--set", "output.folder=", "--set", f"train.steps={told.steps}")
            ratios.setdefault(i, []).append(run["step_seconds_median"] / plan["step_seconds"])
            seconds.setdefault(i, []).append(run["step_seconds_median"])
            unplanned = plan["processes"][0]["unplanned_peak_bytes"]
            # Within a budget the window of weights in shards is chosen by what was measured.
            is_chosen = told.budget and layout.get("parallel.shard") == "parameters"
            if run["unplanned_peak_bytes"] != unplanned and not is_chosen:
                same = False
                print(f"{layout}: {run['unplanned_peak_bytes']} bytes without a plan, {unplanned} foretold",
                      file=sys.stderr)
        print(f"turn {turn + 1} of {told.turns}: {links[-1]}", file=sys.stderr)
    print(f"links, as measured: {', '.join(dict.fromkeys(links))}\n")
    print("| layout | step | of the run over what was foretold (median, all) |\n|---|---|---|")
    for i, layout in enumerate(LAYOUTS):
        name = ", ".join(f"{key.split('.')[1]} {value}" for key, value in layout.items()) or "data 2"
        print(f"| {name} | {statistics.median(seconds[i]):.3f} s | x {statistics.median(ratios[i]):.3f} "
              f"({min(ratios[i]):.3f} to {max(ratios[i]):.3f}) |")
    every = [r for all_turns in ratios.values() for r in all_turns]
    errors = sorted(abs(r - 1) for r in every)
    print(f"\nall: x {statistics.median(every):.3f}; off by {100 * statistics.median(errors):.0f} % in the median, "
          f"{100 * errors[-1]:.0f} % at most; peaks without a plan {'are the same bytes' if same else 'differ'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
