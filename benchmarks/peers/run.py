"""snug against PyTorch's own memory savers on one machine: one table and one picture per precision and malloc.

Usage: run.py SNUG RESULTS_DIR [--precisions fp32,bf16] [--mallocs tcmalloc,glibc] [--methods a,b,...] [--rounds N]
Every method runs in a process of its own, in turns with the others; a run during which other processes took more than
5 % of the machine is repeated. Peaks are counted bytes above what is there before the step, gradients included.
"""
import argparse
import ctypes.util
import datetime
import html
import json
import os
import pathlib
import platform
import re
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE.parent.parent / "examples" / "gpt-12x384.toml"
METHODS = (["eager", "checkpoint(4)", "checkpoint(8)", "checkpoint(12)", "sequential(2)", "sequential(3)",
            "sequential(4)", "sequential(6)", "selective"] +
           [f"compile({b})" for b in (1.0, 0.75, 0.5, 0.25, 0.15, 0.1, 0.05, 0.0)])
BUSY, TRIES = 0.05, 4
TORCH = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch"


def build_allocator(folder):
    library = folder / "counting_allocator.so"
    subprocess.run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{TORCH}/include", HERE / "counting_allocator.cpp",
                    "-o", library, f"-L{TORCH}/lib", "-lc10"], check=True)
    return library


def find_tcmalloc():
    name = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if name is None:
        sys.exit("bench-peers: tcmalloc is missing; install libtcmalloc-minimal4, or leave it out with --mallocs glibc")
    return name


def machine_cpu_seconds():
    """Busy seconds of all cores since boot."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def undisturbed(command, environment):
    """Runs the command until nothing else took the machine meanwhile; its output and the share that others took."""
    for attempt in range(TRIES):
        before, own, started = machine_cpu_seconds(), own_cpu_seconds(), time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        wall = time.monotonic() - started
        others = max(0.0, machine_cpu_seconds() - before - (own_cpu_seconds() - own)) / (wall * os.cpu_count())
        if done.returncode != 0:
            return None, others, (done.stderr.strip().splitlines() or ["no message"])[-1]
        if others <= BUSY:
            return done.stdout, others, ""
        print(f"  others took {others:.0%} of the machine; again", flush=True)
    return None, others, f"other processes took {others:.0%} of the machine in each of {TRIES} runs"


def measure(snug, library, precision, malloc, methods, rounds, budgets):
    environment = dict(os.environ)
    if malloc == "tcmalloc":
        environment["LD_PRELOAD"] = find_tcmalloc()
    rows = {}
    for turn in range(rounds):
        print(f"{precision}, {malloc}: round {turn + 1} of {rounds}", flush=True)
        for method in methods:
            out, others, problem = undisturbed(
                [sys.executable, HERE / "pytorch_method.py", library, method, precision, "4"], environment)
            row = rows.setdefault(f"PyTorch {method}", {"name": f"PyTorch {method}", "seconds": []})
            if out is None:
                row["problem"] = problem
                continue
            found = json.loads(out.strip().splitlines()[-1])
            row["peak_bytes"] = max(row.get("peak_bytes", 0), found["peak_bytes"])
            row["seconds"] += found["seconds"]
            row["loss"] = found["loss"]
        out, others, problem = undisturbed(
            [snug, "bench", CONFIG, "--json", "--budgets", ",".join(budgets), "--rounds", "2", "--set",
             f"precision.compute={precision}", "--set", "train.threads=2"], environment)
        if out is None:
            sys.exit(f"bench-peers: snug bench failed: {problem}")
        for found in json.loads(out):
            if not found["fits"]:
                continue
            row = rows.setdefault(f"snug {found['budget_bytes']}", {
                "name": f"snug at {100 * found['budget_bytes'] / found['unplanned_peak_bytes']:.0f} %", "seconds": []})
            row["peak_bytes"] = max(row.get("peak_bytes", 0), found["measured_peak_bytes"] - found["static_bytes"])
            row["seconds"].append(found["step_seconds_median"])
        unplanned = rows.setdefault("snug unplanned", {"name": "snug without a plan", "seconds": []})
        unplanned["seconds"].append(found["unplanned_step_seconds_median"])
        unplanned["peak_bytes"] = found["unplanned_peak_bytes"] - found["static_bytes"]
    for row in rows.values():
        if row["seconds"]:
            row["seconds_median"] = statistics.median(row["seconds"])
    return [row for row in rows.values() if "seconds_median" in row or "problem" in row]


def verdicts(rows):
    """For each PyTorch method, the fastest plan of snug whose peak is no higher, and the time ratio."""
    ours = [r for r in rows if r["name"].startswith("snug at") and "seconds_median" in r]
    for row in rows:
        if not row["name"].startswith("PyTorch") or "seconds_median" not in row:
            continue
        fits = [r for r in ours if r["peak_bytes"] <= row["peak_bytes"]]
        if fits:
            best = min(fits, key=lambda r: r["seconds_median"])
            row["snug"] = {"name": best["name"], "peak_ratio": best["peak_bytes"] / row["peak_bytes"],
                           "time_ratio": best["seconds_median"] / row["seconds_median"]}


def table(rows):
    lines = ["| method | peak (MiB) | step (s) | snug with no higher peak: peak, time |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: r.get("peak_bytes", 0)):
        if "seconds_median" not in row:
            lines.append(f"| {row['name']} | | | failed: {row['problem']} |")
            continue
        against = row.get("snug")
        said = f"x {against['peak_ratio']:.2f}, x {against['time_ratio']:.2f}" if against else ""
        lines.append(f"| {row['name']} | {row['peak_bytes'] / 2**20:.1f} | {row['seconds_median']:.3f} | {said} |")
    return "\n".join(lines) + "\n"


def picture(rows, title):
    points = [r for r in rows if "seconds_median" in r]
    width, height, left, bottom = 760, 440, 70, 50
    most_x = max(r["peak_bytes"] for r in points) * 1.05
    least_y = min(r["seconds_median"] for r in points) * 0.95
    most_y = max(r["seconds_median"] for r in points) * 1.05
    x = lambda r: left + (width - left - 20) * r["peak_bytes"] / most_x
    y = lambda r: 40 + (height - bottom - 40) * (most_y - r["seconds_median"]) / (most_y - least_y)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="22" font-size="15">{html.escape(title)}</text>',
             f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">peak above what is there before the step (MiB), 0 to {most_x / 2**20:.0f}</text>',
             f'<text transform="translate(16 {height / 2}) rotate(-90)" text-anchor="middle">seconds, {least_y:.2f} to {most_y:.2f}</text>',
             f'<path d="M{left} 40V{height - bottom}H{width - 20}" fill="none" stroke="#999"/>']
    ours = sorted((r for r in points if r["name"].startswith("snug at")), key=x)
    parts.append('<polyline fill="none" stroke="#1f6feb" points="' + " ".join(f"{x(r):.1f},{y(r):.1f}" for r in ours) + '"/>')
    for row in points:
        colour = "#1f6feb" if row["name"].startswith("snug") else "#9a6700" if "compile" in row["name"] else "#d1242f"
        parts.append(f'<circle cx="{x(row):.1f}" cy="{y(row):.1f}" r="4" fill="{colour}"/>'
                     f'<text x="{x(row) + 6:.1f}" y="{y(row) - 4:.1f}" fill="{colour}">{html.escape(row["name"])}</text>')
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
    parser.add_argument("snug")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--mallocs", default="tcmalloc,glibc")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--budgets", default="47%,48%,50%,53%,56%,58%,60%,65%,70%,75%,80%,85%,90%,95%,100%")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    import torch

    result = {"model": CONFIG.stem, "machine": machine_name(), "torch": torch.__version__, "threads": 2, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        library = build_allocator(pathlib.Path(folder))
        for malloc in options.mallocs.split(","):
            for precision in options.precisions.split(","):
                rows = measure(options.snug, library, precision, malloc, options.methods.split(","), options.rounds,
                               options.budgets.split(","))
                verdicts(rows)
                result["runs"].append({"precision": precision, "malloc": malloc, "rows": rows})
    stem = options.results / f"peers_{CONFIG.stem}_{result['machine']}_{datetime.date.today()}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = f"# {CONFIG.stem} on {result['machine']}, PyTorch {torch.__version__}\n"
    for run in result["runs"]:
        title = f"{run['precision']}, {run['malloc']}"
        text += f"\n## {title}\n\n" + table(run["rows"])
        pathlib.Path(f"{stem}_{run['precision']}_{run['malloc']}.svg").write_text(picture(run["rows"], f"{CONFIG.stem}, {title}"))
    pathlib.Path(f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    pathlib.Path(f"{stem}.md").write_text(text)
    print(text)


main()
