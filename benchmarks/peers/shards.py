"""Weights in shards: snug's training step against FSDP2's, both on Gloo, on one machine.

Usage: shards.py SHARDS_STEP RESULTS_DIR [--processes N] [--rows R] [--checkpointed 0,6,12] [--turns N] [--snug zero3|fit]
For each number of checkpointed blocks one group of processes trains under FSDP2, and one by snug under a cap at a share
of that peak, a step each in turns; FSDP2 without checkpoints goes with them. snug's is its own ZeRO 3, in C++ (zero3), or the same
model under FSDP2 in snug.fit (fit). Each process has one thread. A step takes as long as its slowest process; a peak is that of the process
that has most, of all that tensors take there, weights and all. A turn during which others took more than 5 % of the
machine is repeated.
"""
import argparse
import datetime
import json
import os
import pathlib
import socket
import statistics
import sys
import tempfile

from counting_allocator import build_allocator
from machine import machine_name
from turns import BUSY, Stepper, find_tcmalloc, ratio, spread, turns_of

HERE = pathlib.Path(__file__).resolve().parent
SHARE_OF_THEIR_PEAK = 0.98


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Group:
    """Processes that step together, as one stepper."""

    def __init__(self, command, environment, processes):
        meeting = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
                   "GLOO_SOCKET_IFNAME": "lo"}
        self.members = []
        for rank in range(processes):
            own = environment | {name: str(value) for name, value in {**meeting, "RANK": rank, "LOCAL_RANK": rank}.items()}
            self.members.append(Stepper(command, own))

    def answer(self):
        """Each fact of the process that has most."""
        found = [member.answer() for member in self.members]
        if isinstance(found[0], float):
            return max(found)
        return {key: max(one[key] for one in found) if isinstance(found[0][key], (int, float)) else found[0][key]
                for key in found[0]}

    def step(self):
        for member in self.members:
            member.process.stdin.write("\n")
            member.process.stdin.flush()
        return self.answer()

    def cpu_seconds(self):
        return sum(member.cpu_seconds() for member in self.members)

    def end(self):
        for member in self.members:
            member.process.stdin.close()
        found = self.answer()
        for member in self.members:
            if member.process.wait() != 0:
                raise RuntimeError(f"exit code {member.process.returncode} at the end")
        return found

    def stop(self):
        for member in self.members:
            member.stop()


def compare(options, library, environment, checkpointed):
    groups = []
    row = {"checkpointed": checkpointed}

    def started(command):
        groups.append(Group(command, environment, options.processes))
        return groups[-1].answer()

    fsdp2 = [sys.executable, HERE / "fsdp2_method.py", library, options.rows]
    ours = fsdp2 + [0] if options.snug == "fit" else [options.shards_step, options.rows]
    try:
        row["peak_bytes"] = started([*fsdp2, checkpointed])["peak_bytes"]
        row["cap_bytes"] = int(row["peak_bytes"] * SHARE_OF_THEIR_PEAK)
        row |= {f"snug_{key}": value for key, value in started([*ours, row["cap_bytes"]]).items()}
        if not row.get("snug_fits", True):
            return row
        started([*fsdp2, 0])
        found, row["rejected_turns"] = turns_of(groups, options.turns)
        if len(found) < options.turns:
            raise RuntimeError(f"other processes took over {BUSY:.0%} of the machine in {row['rejected_turns']} turns")
        theirs, with_snug, _ = [group.end() for group in groups]
        row["peak_bytes"], row["loss"] = theirs["peak_bytes"], theirs["loss"]
        row |= {f"snug_{key}": value for key, value in with_snug.items()}
        row["seconds"] = statistics.median(turn[0] for turn in found)
        row["against_plain"] = ratio([(turn[0], turn[2]) for turn in found])
        row["snug_against_plain"] = ratio([(turn[1], turn[2]) for turn in found])
        row["snug_against_it"] = ratio([(turn[1], turn[0]) for turn in found])
    except (RuntimeError, OSError, ValueError, KeyError) as problem:
        row["problem"] = str(problem)
    finally:
        for group in groups:
            group.stop()
    return row


def table(rows):
    lines = ["| FSDP2, blocks checkpointed | its peak (MiB) | its step / FSDP2's without | snug's peak (MiB) | step / FSDP2's without | step / that one's |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        if "problem" in row or not row.get("snug_fits", True):
            lines.append(f"| {row['checkpointed']} | {row.get('problem', row.get('snug_problem'))} | | | | |")
            continue
        lines.append(f"| {row['checkpointed']} | {row['peak_bytes'] / 2**20:.1f} | {spread(row['against_plain'])} | "
                     f"{row['snug_peak_bytes'] / 2**20:.1f} | {spread(row['snug_against_plain'])} | {spread(row['snug_against_it'])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards_step", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--checkpointed", default="0,6,12")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--snug", choices=("zero3", "fit"), default="zero3")
    options = parser.parse_args()
    if not options.shards_step.is_file():
        sys.exit(f"bench-shards: {options.shards_step} is missing; build the target shards_step")
    import torch

    with tempfile.TemporaryDirectory() as folder:
        library = build_allocator(pathlib.Path(folder))
        # The package beside the program.
        paths = [str(options.shards_step.resolve().parents[1] / "python"), os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ) | {"LD_PRELOAD": find_tcmalloc(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        rows = []
        for checkpointed in options.checkpointed.split(","):
            print(f"FSDP2, {checkpointed} blocks checkpointed", flush=True)
            rows.append(compare(options, library, environment, int(checkpointed)))
            print(rows[-1], flush=True)
    machine = machine_name()
    stem = f"{options.results}/shards{'' if options.snug == 'zero3' else '_' + options.snug}_gpt-12x384_{machine}_{datetime.date.today()}"
    text = (f"# gpt-12x384 in {options.processes} processes on {machine}, PyTorch {torch.__version__}, {options.rows} rows and one thread "
            f"each, {options.turns} turns\n\n"
            "Weights, gradients and AdamW's moments in shards, on Gloo. Peaks are counted bytes of all that tensors take in the process\n"
            f"that has most; snug is {'its own ZeRO 3' if options.snug == 'zero3' else 'FSDP2 in snug.fit'}, and its cap is {SHARE_OF_THEIR_PEAK:.0%} of FSDP2's peak. One step each in turns: medians of the ratios in the same\n"
            "turn, with quartiles.\n\n") + table(rows)
    pathlib.Path(f"{stem}.json").write_text(json.dumps(rows, indent=1) + "\n")
    pathlib.Path(f"{stem}.md").write_text(text)
    print(text)


main()
