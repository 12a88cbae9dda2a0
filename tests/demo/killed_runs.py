#!/usr/bin/env python3
"""A run that is killed at random moments, and goes on each time, ends as one that is left alone.

Usage: killed_runs.py SNUG EXAMPLES_DIR WORK_DIR [--kills N] [--seed N]

Trains a small GPT whose weights and optimizer state stream from a disk, to which the plan moves what autograd saves as well; SIGKILL
comes at a moment of its own each time, while the run starts, records, trains, writes and reads the disk or saves its state. The next
start goes on. After each kill nothing is left in the folder that TMPDIR names; at the end there are only states in the run's folder, and
every weight has the bits of a run that was never killed.

Exits with 1 if anything is otherwise.
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

SETTINGS = ["model.blocks=2", "model.width=128", "model.heads=4", "model.sequence=64", "train.batch=4", "optimizer.clip_norm=1",
            "memory.weights=streamed", "memory.disk_budget=256MiB", "memory.budget=24MiB", "state.every=1", "state.last=2"]


def command(options, folder, *more):
    settings = [*SETTINGS, f"train.steps={options.steps}", f"output.folder={folder}", "train.threads=1"]
    return [str(options.snug), "train", str(options.examples / "gpt-demo.toml"), *(w for s in settings for w in ("--set", s)), *more]


def going_on(folder):
    """The option for it, where there is a state to go on from."""
    return ["--resume"] if any((folder / "state").glob("step-*")) else []


def weights_of(folder):
    newest = max((folder / "state").glob("step-*"))
    return newest.name, (newest / "weights.safetensors").read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snug", type=pathlib.Path)
    parser.add_argument("examples", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    scratch = options.work / "tmp"
    scratch.mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(scratch)}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}

    alone, killed = options.work / "alone", options.work / "killed"
    begun = time.monotonic()
    if subprocess.run(command(options, alone), **quiet).returncode != 0:
        sys.exit("the run that is left alone failed")
    whole = time.monotonic() - begun
    chance = random.Random(options.seed)
    kills, left_alone, at_states = 0, 0, set()
    while kills < options.kills:
        resume = going_on(killed)
        if not resume:
            shutil.rmtree(killed, ignore_errors=True)  # nothing was saved: it begins anew
        process = subprocess.Popen(command(options, killed, *resume), **quiet)
        try:
            process.wait(chance.uniform(0.02, whole))
            error = process.stderr.read()
            if process.returncode != 0:
                sys.exit(f"after {kills} kills a start failed: {error}")
            left_alone += 1  # it had come to its end, and begins anew
            shutil.rmtree(killed)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if any(scratch.iterdir()):
                sys.exit(f"kill {kills} has left {[p.name for p in scratch.iterdir()]} in TMPDIR")
            at_states |= {p.name for p in (killed / "state").glob("step-*")}
        process.stderr.close()
    last = subprocess.run(command(options, killed, *going_on(killed)), **quiet)
    if last.returncode != 0:
        sys.exit(f"the last start failed: {last.stderr}")
    files = [sorted(str(p.relative_to(run)) for p in run.rglob("*")) for run in (alone, killed)]
    leftovers = [name for name in files[1] if name not in files[0]]
    same = weights_of(killed) == weights_of(alone)
    print(f"{kills} kills, {left_alone} runs came to their end meanwhile, {len(at_states)} different states were the newest ones; nothing is left in "
          f"TMPDIR; {len(leftovers)} files that the other run has not: {leftovers[:3]}; the weights are {'the same' if same else 'others'}")
    sys.exit(0 if same and not leftovers else 1)


if __name__ == "__main__":
    main()
