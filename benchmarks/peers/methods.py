"""snug against PyTorch's own memory savers on one machine: one table and one picture per precision and malloc.

Usage: methods.py GPT_STEP RESULTS_DIR [--precisions fp32,bf16] [--mallocs tcmalloc,glibc] [--methods a,b,...] [--turns N]
Each method runs beside eager and snug, a process each and a step each in turns, because machines change their speed from
minute to minute; a turn during which other processes took more than 5 % of the machine is repeated. Peaks are counted
bytes above what is there before the step, gradients included.
"""
import argparse
import datetime
import html
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile

from counting_allocator import build_allocator
from machine import machine_name
from turns import BUSY, Stepper, find_tcmalloc, ratio, spread, turns_of

HERE = pathlib.Path(__file__).resolve().parent
MODEL = "gpt-12x384"
TILE = 32 << 20
METHODS = (["eager", "checkpoint(4)", "checkpoint(8)", "checkpoint(12)", "sequential(2)", "sequential(3)",
            "sequential(4)", "sequential(6)", "selective", "ckptplan(0.5)"] +
           [f"compile({b})" for b in (1.0, 0.75, 0.5, 0.25, 0.15, 0.1, 0.05, 0.0)])
# Nothing that saves memory is faster than eager, so against it snug gets less memory, and against the others as much.
SHARE_OF_EAGERS_PEAK = 0.95
NOTE = ("Peaks are counted bytes above what is there before the step, gradients included. Each row: PyTorch eager, the\n"
        "method, and snug under a cap at the method's peak (at 95 % of it for eager itself), one step each in turns; medians\n"
        "of the ratios in the same turn, with quartiles.")


def steppers_of_snug(gpt_step, package, precision, cap, is_eager):
    """What of snug steps at a cap, by name: the model in C++ as it is, with the tiled loss, and, where there is a package, the
    unchanged model in Python with `allow=["tiled_loss"]`. Against eager also the second without a budget."""
    commands = {"snug": [gpt_step, precision, cap], "tiled": [gpt_step, precision, cap, TILE]}
    if package is not None:
        commands["python_tiled"] = [sys.executable, HERE / "snug_method.py", precision, cap]
    if is_eager:
        commands["tiled_without_budget"] = [gpt_step, precision, 0, TILE]
    return commands


def compare(gpt_step, package, library, method, precision, environment, turns):
    """PyTorch's eager, one method of it, and snug under a cap at that method's peak, step by step in turns."""
    row = {"method": method, "snug": {}}
    steppers = []
    try:
        python = [sys.executable, HERE / "pytorch_method.py", library]
        started = lambda command: steppers.append(Stepper(command, environment)) or steppers[-1].answer()
        row["peak_bytes"] = started([*python, method, precision])["peak_bytes"]
        row["cap_bytes"] = int(row["peak_bytes"] * (SHARE_OF_EAGERS_PEAK if method == "eager" else 1))
        for name, command in steppers_of_snug(gpt_step, package, precision, row["cap_bytes"], method == "eager").items():
            try:
                made = started(command) or {}
            except RuntimeError as problem:
                made = {"fits": False, "problem": str(problem)}
            row["snug"][name] = {key: made[key] for key in ("floor_bytes", "predicted_peak_bytes", "problem") if key in made}
            if made.get("fits", True):
                row["snug"][name]["stepper"] = len(steppers) - 1
            else:
                steppers.pop().stop()
        started([*python, "eager", precision])
        found, row["rejected_turns"] = turns_of(steppers, turns)
        if len(found) < turns:
            raise RuntimeError(f"other processes took over {BUSY:.0%} of the machine in {row['rejected_turns']} turns")
        row["turns"] = turns
        row["eager_seconds"] = statistics.median(turn[-1] for turn in found)
        row["against_eager"] = ratio([(turn[0], turn[-1]) for turn in found])
        ended = [stepper.end() for stepper in steppers]
        row["loss"] = ended[0]["loss"]
        for one in row["snug"].values():
            if "stepper" not in one:
                continue
            index = one.pop("stepper")
            one |= {key: ended[index][key] for key in ("peak_bytes", "replayed_ops", "loss") if key in ended[index]}
            one["against_eager"] = ratio([(turn[index], turn[-1]) for turn in found])
            one["against_method"] = ratio([(turn[index], turn[0]) for turn in found])
    except (RuntimeError, OSError, ValueError, KeyError) as problem:
        row["problem"] = str(problem)
    finally:
        for stepper in steppers:
            stepper.stop()
    return row


COLOURS = {"snug": "#1f6feb", "tiled": "#1a7f37", "python_tiled": "#8250df"}
NAMES = {"snug": "snug", "tiled": "snug, tiled loss, `ops::attention`", "python_tiled": "snug, the unchanged model with `allow=[\"tiled_loss\"]`",
         "tiled_without_budget": "the same, no budget"}


def table(rows):
    lines = ["| PyTorch method | its peak (MiB) | its step / eager | at its peak | peak (MiB) | step / eager | step / the method's |",
             "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: r.get("peak_bytes", 0)):
        if "problem" in row:
            lines.append(f"| {row['method']} | failed: {row['problem']} | | | | | |")
            continue
        own = [row["method"], f"{row['peak_bytes'] / 2**20:.1f}", spread(row["against_eager"])]
        for name, one in row["snug"].items():
            found = ["does not fit", "", ""]
            if "peak_bytes" in one:
                found = [f"{one['peak_bytes'] / 2**20:.1f}", spread(one["against_eager"]), spread(one["against_method"])]
            lines.append("| " + " | ".join([*own, NAMES[name], *found]) + " |")
            own = ["", "", ""]
    for name in ("snug", "tiled"):
        floors = [row["snug"][name]["floor_bytes"] for row in rows if "floor_bytes" in row["snug"].get(name, {})]
        if floors:
            lines.append(f"\nFloor of {NAMES[name]}: {max(floors) / 2**20:.1f} MiB.")
    return "\n".join(lines) + "\n"


def picture(rows, title):
    rows = [row for row in rows if "against_eager" in row]
    theirs = [(r["method"], r["peak_bytes"], r["against_eager"]["median"]) for r in rows]
    curves = {name: sorted((r["snug"][name]["peak_bytes"], r["snug"][name]["against_eager"]["median"])
                           for r in rows if "peak_bytes" in r["snug"].get(name, {})) for name in COLOURS}
    points = [point for curve in curves.values() for point in curve]
    peaks = [peak for _, peak, _ in theirs] + [peak for peak, _ in points]
    times = [time for _, _, time in theirs] + [time for _, time in points]
    width, height, left, bottom = 760, 440, 70, 50
    most_x, least_y, most_y = max(peaks) * 1.12, min(times) * 0.98, max(times) * 1.02
    x = lambda peak: left + (width - left - 20) * peak / most_x
    y = lambda time: 40 + (height - bottom - 40) * (most_y - time) / (most_y - least_y)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="22" font-size="15">{html.escape(title)}</text>',
             f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">peak above what is there before the step, 0 to {most_x / 2**20:.0f} MiB</text>',
             f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle">step / PyTorch eager, {least_y:.2f} to {most_y:.2f}</text>',
             f'<path d="M{left} 40V{height - bottom}H{width - 20}" fill="none" stroke="#999"/>']
    for (name, colour), line in zip(COLOURS.items(), itertools.count()):
        curve = curves[name]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="' + " ".join(f"{x(p):.1f},{y(t):.1f}" for p, t in curve) + '"/>')
        parts += [f'<circle cx="{x(p):.1f}" cy="{y(t):.1f}" r="4" fill="{colour}"/>' for p, t in curve]
        if curve:
            parts.append(f'<text x="{width - 24}" y="{56 + 15 * line}" text-anchor="end" fill="{colour}">{html.escape(NAMES[name])}</text>')
    for name, peak, ratio_to_eager in theirs:
        colour = "#9a6700" if "compile" in name else "#d1242f"
        parts.append(f'<circle cx="{x(peak):.1f}" cy="{y(ratio_to_eager):.1f}" r="4" fill="{colour}"/>'
                     f'<text x="{x(peak) + 6:.1f}" y="{y(ratio_to_eager) - 4:.1f}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpt_step", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--mallocs", default="tcmalloc,glibc")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--package", type=pathlib.Path, help="the folder of the Python package; without it one row less")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    if not options.gpt_step.is_file():
        sys.exit(f"bench-peers: {options.gpt_step} is missing; build the target gpt_step")
    if options.turns < 3:
        sys.exit("bench-peers: quartiles need 3 turns or more")
    import torch

    machine = machine_name()
    stem = options.results / f"peers_{MODEL}_{machine}_{datetime.date.today()}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    result = {"model": MODEL, "machine": machine, "torch": torch.__version__, "threads": 2, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        library = build_allocator(pathlib.Path(folder))
        for malloc in options.mallocs.split(","):
            environment = dict(os.environ)
            if options.package is not None:
                environment["PYTHONPATH"] = os.pathsep.join([str(options.package.resolve()), environment.get("PYTHONPATH", "")])
            if malloc == "tcmalloc":
                environment["LD_PRELOAD"] = find_tcmalloc()
            for precision in options.precisions.split(","):
                rows = []
                for method in options.methods.split(","):
                    print(f"{precision}, {malloc}: {method}", flush=True)
                    rows.append(compare(options.gpt_step, options.package, library, method, precision, environment, options.turns))
                result["runs"].append({"precision": precision, "malloc": malloc, "rows": rows})
                # After each part, so that an interrupted run leaves what it has.
                text = f"# {MODEL} on {machine}, PyTorch {torch.__version__}, 2 threads\n\n{NOTE}\n"
                for run in result["runs"]:
                    title = f"{run['precision']}, {run['malloc']}"
                    text += f"\n## {title}\n\n" + table(run["rows"])
                    if any("against_eager" in row for row in run["rows"]):
                        drawn = picture(run["rows"], f"{MODEL}, {title}")
                        pathlib.Path(f"{stem}_{run['precision']}_{run['malloc']}.svg").write_text(drawn)
                pathlib.Path(f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
                pathlib.Path(f"{stem}.md").write_text(text)
    print(text)


main()
