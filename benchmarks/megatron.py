#!/usr/bin/env python3
"""What snug plan --devices --on foretells beside what Megatron-LM measured on 32 to 3,072 GPUs.

    megatron.py SNUG CONFIG [--rows 1.7,3.6] [--schedule 1f1b] [--micro-batch 1] [--on a100-80gb]
                [--device-memory 79GiB] [--out FOLDER]

The models, layouts and figures are those of table 1 of Narayanan et al. 2021 (arXiv:2104.04473): GPT with a vocabulary of
51,200 and 2,048 tokens, mixed precision, all activations made again, on A100s with 80 GB, eight in a node with NVLink and
eight links of 200 Gb/s. The floating point operations of a step are counted as there. Each row is one rehearsal, without a
GPU; how far it is from the measured figure is the error that is told.
"""
import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

# Billions of weights, heads, width, layers, tensor, pipeline, GPUs, batch, and measured TFLOP/s of each GPU.
TABLE = [(1.7, 24, 2304, 24, 1, 1, 32, 512, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
         (7.5, 32, 4096, 36, 4, 1, 128, 512, 142), (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
         (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
         (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
         (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163), (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163)]
SEQUENCE, VOCABULARY, PEAK = 2048, 51200, 312
LINKS = "200Gbps/5us,300GBps/3us"


def operations(layers, width, batch):
    """Of a step in which the forward pass runs twice."""
    return 96 * batch * SEQUENCE * layers * width ** 2 * (
        1 + SEQUENCE / (6 * width) + VOCABULARY / (16 * layers * width))


def foretold(snug, config, row, micro_batch, schedule, device, memory):
    _, heads, width, layers, tensor, pipeline, gpus, batch, _ = row
    accumulate = batch // (gpus // (tensor * pipeline) * micro_batch)
    sets = {"model.blocks": layers, "model.width": width, "model.heads": heads, "model.sequence": SEQUENCE,
            "model.vocabulary": VOCABULARY, "precision.compute": "bf16", "train.batch": batch,
            "train.accumulate": accumulate, "parallel.tensor": tensor, "parallel.pipeline": pipeline,
            "parallel.context": 1, "parallel.shard": "none", "memory.strategy": "every_block"}
    if tensor > 1:
        sets["parallel.sequence_parallel"] = "false"
    if pipeline > 1:
        sets["parallel.schedule"] = schedule
    command = [snug, "plan", config, "--devices", str(gpus), "--nodes", str(math.ceil(gpus / 8)), "--on", device,
               "--link", LINKS, "--device-memory", memory, "--json"]
    for key, value in sets.items():
        command += ["--set", f"{key}={value}"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"megatron: {' '.join(command)}\n{found.stderr}")
    return json.loads(found.stdout)["layouts"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("config")
    parser.add_argument("--rows", help="billions of weights of the rows, with commas; all")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences")
    parser.add_argument("--on", default="a100-80gb", help=f"the device, as of snug plan --on; percentages are of {PEAK} TFLOP/s")
    parser.add_argument("--device-memory", default="79GiB", help="of it, for each process")
    parser.add_argument("--out", help="a folder for the table")
    options = parser.parse_args()
    wanted = [float(one) for one in options.rows.split(",")] if options.rows else [row[0] for row in TABLE]
    lines = ["| weights (10^9) | GPUs | tensor, pipeline, data | step | TFLOP/s a GPU, foretold | measured there | foretold / measured |",
             "|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    ratios = []
    for row in TABLE:
        if row[0] not in wanted:
            continue
        made = foretold(options.snug, options.config, row, options.micro_batch, options.schedule,
                        options.on, options.device_memory)
        rate = operations(row[3], row[2], row[7]) / made["step_seconds"] / row[6] / 1e12
        ratios.append(rate / row[8])
        lines.append(f"| {row[0]} | {row[6]} | {row[4]}, {row[5]}, {row[6] // (row[4] * row[5])} | {made['step_seconds']:.2f} s | "
                     f"{rate:.0f} ({100 * rate / PEAK:.0f} %) | {row[8]} ({100 * row[8] / PEAK:.0f} %) | x {ratios[-1]:.2f} |")
        print(lines[-1], flush=True)
    summary = (f"\nx {min(ratios):.2f} to {max(ratios):.2f}, {statistics.median(ratios):.2f} in the median; "
               f"schedule {options.schedule}, micro-batches of {options.micro_batch}, links {LINKS}.")
    print(summary)
    if options.out:
        (Path(options.out) / "megatron_a100-80gb.md").write_text("\n".join(lines) + "\n" + summary + "\n")


if __name__ == "__main__":
    main()
