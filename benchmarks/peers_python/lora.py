"""LoRA on SmolLM2-135M: snug's command beside transformers and PEFT, a process each, whole steps in turns: one table.

Usage: lora.py CONFIG_STEP CONFIG RESULTS_DIR [--length N] [--turns N] [--rows NAME,...] [--compute bf16|fp32]

Rank 16 on all linear layers, one sequence. Peaks are of all that is counted, weights too. A turn during
which other processes took more than 5 % of the machine is repeated. tcmalloc for transformers, as snug has its own heap.
"""
import argparse
import datetime
import json
import os
import pathlib
import pydoc_data.topics
import statistics
import sys
import tempfile

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
sys.path.insert(0, str(PEERS))
from counting_allocator import build_allocator
from machine import machine_name
from smollm2 import weights_file
from turns import BUSY, Stepper, find_tcmalloc, ratio, spread, turns_of

MIB = 1 << 20
PACKED = ["model.weights=packed"]
ATTENTION = ["model.attention=products"]
SMALL_LOSS = ["model.loss_tile=16"]
IN_BACKWARD = ["optimizer.in_backward=true", "optimizer.clip_norm=0"]
ROWS = {"no budget": [],
        "no budget + attention": ATTENTION,
        "packed 420": [*PACKED, "memory.budget=420MiB"],
        "packed 350": [*PACKED, "memory.budget=350MiB"],
        "packed 420 + attention": [*PACKED, "memory.budget=420MiB", *ATTENTION],
        "packed 350 + attention": [*PACKED, "memory.budget=350MiB", *ATTENTION],
        "packed 256 + attention": [*PACKED, "memory.budget=256MiB", *ATTENTION, *SMALL_LOSS],
        "packed 256 + attention + update in backward": [*PACKED, "memory.budget=256MiB", *ATTENTION, *SMALL_LOSS, *IN_BACKWARD],
        "packed 256 + attention + update in backward + 8-bit AdamW":
            [*PACKED, "memory.budget=256MiB", *ATTENTION, *SMALL_LOSS, *IN_BACKWARD, "optimizer.kind=adamw_8bit"]}


def contenders(options, library, text):
    here = pathlib.Path(__file__).resolve().parent
    for method in ("plain", "checkpoint"):
        yield f"transformers, {method}", [sys.executable, here / "lora_peer.py", library, method, options.length, options.compute]
    for name, settings in ROWS.items():
        if options.rows and name not in options.rows:
            continue
        yield f"snug, {name}", [options.config_step, options.config, f"model.path={weights_file()}", f"data.path={text}",
                                f"model.sequence={options.length}", f"precision.compute={options.compute}", f"model.weights={options.compute}", "memory.budget=",
                                *settings]


def measured(options, folder):
    """Rows of the table; those that could not be run have a problem."""
    text = folder / "python-manual.txt"
    text.write_text("\n\n".join(pydoc_data.topics.topics.values()))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    rows, steppers = [], []
    try:
        for name, command in contenders(options, build_allocator(folder), text):
            print(name, flush=True)
            rows.append({"name": name})
            stepper = Stepper(command, environment | ({"LD_PRELOAD": find_tcmalloc()} if "transformers" in name else {}))
            try:
                rows[-1] |= stepper.answer()
                steppers.append(stepper)
            except RuntimeError as problem:
                stepper.stop()
                rows[-1]["problem"] = str(problem)
        found, rejected = turns_of(steppers, options.turns)
        if len(found) < options.turns:
            sys.exit(f"bench-lora: other processes took over {BUSY:.0%} of the machine in {rejected} turns")
        if "problem" in rows[0]:
            sys.exit(f"bench-lora: {rows[0]['name']}, which the others are compared with, does not run: {rows[0]['problem']}")
        running = [row for row in rows if "problem" not in row]
        for i, row in enumerate(running):
            row |= steppers[i].end()
            row["seconds"] = statistics.median(turn[i] for turn in found)
            row["against_plain"] = ratio([(turn[i], turn[0]) for turn in found])
    finally:
        for stepper in steppers:
            stepper.stop()
    return rows


def table(rows):
    lines = ["| | peak (MiB) | step (s) | step / transformers' plain |", "|---|---|---|---|"]
    for row in rows:
        if "problem" in row:
            lines.append(f"| {row['name']} | {row['problem']} | | |")
        else:
            lines.append(f"| {row['name']} | {row['peak_bytes'] / MIB:.1f} | {row['seconds']:.2f} | "
                         f"{spread(row['against_plain'])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config_step", type=pathlib.Path)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--compute", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[])
    options = parser.parse_args()
    if options.turns < 3:
        sys.exit("bench-lora: quartiles need 3 turns or more")
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(options, pathlib.Path(folder))
    stem = options.results / f"lora_smollm2-{options.length}_{options.compute}_{machine_name()}_{datetime.date.today()}"
    title = f"# LoRA on SmolLM2-135M, one sequence of {options.length} tokens, computed in {options.compute}, on {machine_name()}\n\n"
    about = "Rank 16 on all linear layers, whole steps in turns, medians with quartiles. Peaks are of all that is counted.\n\n"
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    stem.with_suffix(".md").write_text(title + about + table(rows))
    print(table(rows))


main()
