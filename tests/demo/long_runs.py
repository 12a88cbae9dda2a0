#!/usr/bin/env python3
"""300 steps of the demo, in ways that have to end alike.

Usage: long_runs.py SNUG EXAMPLES_DIR WORK_DIR [--steps N] [--threads N] [--only bitwise,adam8bit,int4,fp16]

bitwise: examples/gpt-demo.toml without a plan, and with everything that claims to change no bit (a plan under its budget, the
         optimizer in the backward pass, states saved meanwhile, batches made ahead): every loss and every weight the same bits.
adam8bit: the demo as it is, with clipping, and the same with moments in 8 bits: the validation losses at the end are
         within 1 %. (Without clipping, at this learning rate, runs that differ by a rounding end per cents apart.)
int4: the demo in 208 MiB, where backward gets some of what autograd saves in 4 bits: the validation loss at the end is within
         2 % of the exact run's.
fp16: a smaller model, as fp16 takes 20 times as long on CPUs: in fp32 and in fp16 with a scale that begins too high and grows
      into overflows: some steps are skipped, and the validation loss at the end is within 1 %.

Exits with 1 if anything is otherwise. Figures are printed.
"""
import argparse
import json
import pathlib
import subprocess
import sys

BUDGET = "250MiB"
PLAIN = ["memory.budget=", "optimizer.clip_norm=0"]  # in the backward pass no norm of all gradients is known
SMALL = ["model.blocks=2", "model.width=128", "model.heads=4", "model.sequence=64", "train.batch=4"]
SCALED = ["precision.compute=fp16", "precision.init_scale=1099511627776", "precision.growth_interval=20"]


class Runs:
    def __init__(self, options):
        self.options = options
        self.done = {}

    def run(self, name, settings):
        """The result that the command prints, with the losses of all steps and the weights' bytes. Once for each name."""
        if name not in self.done:
            self.done[name] = self.train(name.replace(" ", "_"), settings)
        return self.done[name]

    def train(self, name, settings):
        folder = self.options.work / name
        command = [self.options.snug, "train", self.options.examples / "gpt-demo.toml", "--json"]
        for setting in [f"output.folder={folder}", f"train.steps={self.options.steps}", f"train.threads={self.options.threads}", *settings]:
            command += ["--set", setting]
        run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        if run.returncode != 0:
            sys.exit(f"{name}: exit code {run.returncode}")
        result = json.loads(run.stdout)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        result["losses"] = [line["loss"] for line in lines if "step" in line]
        result["lossy_bytes"] = [line for line in lines if "step" in line][-1]["lossy_bytes"]
        state = max((folder / "state").glob("step-*"))
        result["weights"] = (state / "weights.safetensors").read_bytes()
        print(f"{name}: {result['steps']} steps, validation loss {result['validation_loss']:.5f}, peak "
              f"{result['measured_peak_bytes'] / 2**20:.1f} MiB, {result['replayed_ops']} operators replayed a step, "
              f"{result['skipped_steps']} steps skipped", flush=True)
        return result


def near(name, found, expected, most=0.01):
    apart = abs(found["validation_loss"] / expected["validation_loss"] - 1)
    print(f"{name}: the validation loss is {apart:.3%} away")
    return apart <= most


def bitwise(runs):
    plain = runs.run("plain", PLAIN)
    every = runs.run("every choice", [f"memory.budget={BUDGET}", "optimizer.clip_norm=0", "optimizer.in_backward=true",
                                      f"state.every={max(1, runs.options.steps // 3)}", "data.workers=2"])
    losses = sum(a != b for a, b in zip(plain["losses"], every["losses"], strict=True))
    weights = plain["weights"] == every["weights"]
    print(f"bitwise: {losses} of {len(plain['losses'])} losses differ; the weights of {len(plain['weights'])} bytes are "
          f"{'the same' if weights else 'others'}")
    return losses == 0 and weights and every["replayed_ops"] > 0


def adam8bit(runs):
    settings = ["memory.budget="]
    found = runs.run("moments in 8 bits", [*settings, "optimizer.kind=adamw_8bit"])
    return near("adam8bit", found, runs.run("moments in fp32", settings))


def int4(runs):
    found = runs.run("activations in int4", ["memory.budget=208MiB", "memory.activations=int4"])
    print(f"int4: {found['lossy_bytes'] / 2**20:.1f} MiB of the last step's saved tensors in 4 bits")
    return near("int4", found, runs.run("moments in fp32", ["memory.budget="]), 0.02) and found["lossy_bytes"] > 0


def fp16(runs):
    settings = ["memory.budget=", *SMALL]
    found = runs.run("fp16", [*settings, *SCALED])
    expected = runs.run("fp32", settings)
    return near("fp16", found, expected) and found["skipped_steps"] > 0 and found["loss_scale"] < 2.0**40


CHECKS = {"bitwise": bitwise, "adam8bit": adam8bit, "int4": int4, "fp16": fp16}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snug", type=pathlib.Path)
    parser.add_argument("examples", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CHECKS))
    options = parser.parse_args()
    runs = Runs(options)
    failed = [name for name in options.only if not CHECKS[name](runs)]
    print(f"{len(options.only) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
