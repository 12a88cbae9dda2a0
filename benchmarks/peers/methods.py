"""snug against PyTorch's own memory savers on one machine: one table and one picture per precision and malloc.

Usage: methods.py GPT_STEP RESULTS_DIR [--precisions fp32,bf16] [--mallocs tcmalloc,glibc] [--methods a,b,...] [--turns N]
Each method runs beside eager and snug, a process each and a step each in turns, because machines change their speed from
minute to minute; a turn during which other processes took more than 5 % of the machine is repeated. Peaks are counted
bytes above what is there before the step, gradients included.
"""
import argparse
import datetime
import html
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile

from turns import BUSY, Stepper, find_tcmalloc, ratio, spread, turns_of

HERE = pathlib.Path(__file__).resolve().parent
MODEL = "gpt-12x384"
METHODS = (["eager", "checkpoint(4)", "checkpoint(8)", "checkpoint(12)", "sequential(2)", "sequential(3)",
            "sequential(4)", "sequential(6)", "selective", "ckptplan(0.5)"] +
           [f"compile({b})" for b in (1.0, 0.75, 0.5, 0.25, 0.15, 0.1, 0.05, 0.0)])
# Nothing that saves memory is faster than eager, so against it snug gets less memory, and against the others as much.
SHARE_OF_EAGERS_PEAK = 0.95
NOTE = ("Peaks are counted bytes above what is there before the step, gradients included. Each row: PyTorch eager, the\n"
        "method, and snug under a cap at the method's peak (at 95 % of it for eager itself), one step each in turns; medians\n"
        "of the ratios in the same turn, with quartiles.")
TORCH = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch"


def build_allocator(folder):
    library = folder / "counting_allocator.so"
    subprocess.run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{TORCH}/include", HERE / "counting_allocator.cpp",
                    "-o", library, f"-L{TORCH}/lib", "-lc10"], check=True)
    return library


def compare(gpt_step, library, method, precision, environment, turns):
    """PyTorch's eager, one method of it, and snug under a cap at that method's peak, step by step in turns."""
    row = {"method": method}
    steppers = []
    try:
        python = [sys.executable, HERE / "pytorch_method.py", library]
        started = lambda command: steppers.append(Stepper(command, environment)) or steppers[-1].answer()
        row["peak_bytes"] = started([*python, method, precision])["peak_bytes"]
        row["cap_bytes"] = int(row["peak_bytes"] * (SHARE_OF_EAGERS_PEAK if method == "eager" else 1))
        made = started([gpt_step, precision, row["cap_bytes"]])
        row["floor_bytes"] = made["floor_bytes"]
        fits = made.get("fits", True)
        if fits:
            row["snug_predicted_peak_bytes"] = made["predicted_peak_bytes"]
            row["snug_predicted_ratio"] = made["predicted_seconds"] / made["unplanned_seconds"]
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
        if fits:
            row["snug_peak_bytes"] = ended[1]["peak_bytes"]
            row["snug_replayed_ops"] = ended[1]["replayed_ops"]
            row["snug_loss"] = ended[1]["loss"]
            row["snug_against_eager"] = ratio([(turn[1], turn[-1]) for turn in found])
            row["snug_against_method"] = ratio([(turn[1], turn[0]) for turn in found])
    except (RuntimeError, OSError, ValueError, KeyError) as problem:
        row["problem"] = str(problem)
    finally:
        for stepper in steppers:
            stepper.stop()
    return row


def table(rows):
    lines = ["| PyTorch method | its peak (MiB) | its step / eager | snug's peak (MiB) | snug's step / eager | snug's step / the method's |",
             "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: r.get("peak_bytes", 0)):
        if "problem" in row:
            lines.append(f"| {row['method']} | failed: {row['problem']} | | | | |")
            continue
        ours = ["does not fit", "", ""]
        if "snug_peak_bytes" in row:
            ours = [f"{row['snug_peak_bytes'] / 2**20:.1f}", spread(row["snug_against_eager"]), spread(row["snug_against_method"])]
        lines.append(f"| {row['method']} | {row['peak_bytes'] / 2**20:.1f} | {spread(row['against_eager'])} | " + " | ".join(ours) + " |")
    floors = [row["floor_bytes"] for row in rows if "floor_bytes" in row]
    if floors:
        lines.append(f"\nsnug's floor: {max(floors) / 2**20:.1f} MiB.")
    return "\n".join(lines) + "\n"


def picture(rows, title):
    rows = [row for row in rows if "against_eager" in row]
    theirs = [(r["method"], r["peak_bytes"], r["against_eager"]["median"]) for r in rows]
    ours = sorted((r["snug_peak_bytes"], r["snug_against_eager"]["median"]) for r in rows if "snug_peak_bytes" in r)
    peaks = [peak for _, peak, _ in theirs] + [peak for peak, _ in ours]
    times = [time for _, _, time in theirs] + [time for _, time in ours]
    width, height, left, bottom = 760, 440, 70, 50
    most_x, least_y, most_y = max(peaks) * 1.12, min(times) * 0.98, max(times) * 1.02
    x = lambda peak: left + (width - left - 20) * peak / most_x
    y = lambda time: 40 + (height - bottom - 40) * (most_y - time) / (most_y - least_y)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="22" font-size="15">{html.escape(title)}</text>',
             f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">peak above what is there before the step, 0 to {most_x / 2**20:.0f} MiB</text>',
             f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle">step / PyTorch eager, {least_y:.2f} to {most_y:.2f}</text>',
             f'<path d="M{left} 40V{height - bottom}H{width - 20}" fill="none" stroke="#999"/>',
             '<polyline fill="none" stroke="#1f6feb" points="' + " ".join(f"{x(p):.1f},{y(t):.1f}" for p, t in ours) + '"/>']
    parts += [f'<circle cx="{x(p):.1f}" cy="{y(t):.1f}" r="4" fill="#1f6feb"><title>snug</title></circle>' for p, t in ours]
    for name, peak, ratio_to_eager in theirs:
        colour = "#9a6700" if "compile" in name else "#d1242f"
        parts.append(f'<circle cx="{x(peak):.1f}" cy="{y(ratio_to_eager):.1f}" r="4" fill="{colour}"/>'
                     f'<text x="{x(peak) + 6:.1f}" y="{y(ratio_to_eager) - 4:.1f}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def machine_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", text)
    words = re.findall(r"[A-Za-z]+", model.group(1)) if model else []
    family = next((w for w in words if w.lower() in ("xeon", "epyc", "ryzen", "core")), platform.machine()).lower()
    vectors = next((v for v in ("amx_bf16", "avx512f", "avx2") if v in text), "").split("_")[0].removesuffix("f")
    return "-".join(part for part in (family, vectors, f"{os.cpu_count()}-cores") if part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpt_step", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--mallocs", default="tcmalloc,glibc")
    parser.add_argument("--methods", default=",".join(METHODS))
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
            if malloc == "tcmalloc":
                environment["LD_PRELOAD"] = find_tcmalloc()
            for precision in options.precisions.split(","):
                rows = []
                for method in options.methods.split(","):
                    print(f"{precision}, {malloc}: {method}", flush=True)
                    rows.append(compare(options.gpt_step, library, method, precision, environment, options.turns))
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
