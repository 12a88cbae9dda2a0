"""What each way to save memory gives, added one to the other: the ladder of a GPT (the command's configuration) and of a
ResNet (the Python package), as a table and a picture.

Usage: ladder.py BUILD_DIR CONFIG RESULTS_DIR [--nets gpt,resnet] [--compute fp32|bf16] [--turns N]

Each rung is a process; whole steps, update included, run in turns. Peaks are of all that is counted: weights, optimizer,
gradients, batch, activations. "At the least" is the smallest budget that has a plan. A turn during which other processes
took more than 5 % of the machine is repeated.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
from machine import machine_name
from turns import BUSY, Stepper, ratio, spread, turns_of

MIB = 1 << 20
CHOICES = [("plain", []),
           ("the loss in tiles of 8 MiB", ["model.loss=tiled", "model.loss_tile=8"]),
           ("attention by products", ["model.attention=products"]),
           ("optimizer in backward", ["optimizer.clip_norm=0", "optimizer.in_backward=true"]),
           ("AdamW in 8 bits", ["optimizer.kind=adamw_8bit"]),
           ("feed-forward of 512 tokens", ["model.mlp_tile=512"])]


class Gpt:
    title = "gpt-12x384, AdamW"

    def __init__(self, options):
        self.options = options
        self.base = [f"precision.compute={options.compute}", "memory.budget="]

    def rungs(self):
        settings = list(self.base)
        for name, more in CHOICES:
            settings += more
            yield name, list(settings), self.floor(settings)

    def floor(self, settings):
        command = [self.options.build / "snug", "plan", self.options.config, "--json"]
        for setting in settings:
            command += ["--set", setting]
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        return json.loads(run.stdout)["floor_bytes"]

    def with_budget(self, settings, budget):
        return [*settings, f"memory.budget={budget}"]

    def stepper(self, settings):
        stepper = Stepper([self.options.build / "benchmarks" / "config_step", self.options.config, *settings], os.environ)
        return stepper, stepper.answer()


class Resnet:
    title = "ResNet of transformers, AdamW"

    def __init__(self, options):
        self.options = options

    def rungs(self):
        for name, settings in (("plain", []), ("optimizer in backward", ["in_backward"])):
            stepper, made = self.stepper([*settings, "1000000MiB"])
            stepper.stop()
            yield name, settings, made["floor_bytes"]

    def with_budget(self, settings, budget):
        return [*settings, budget]

    def stepper(self, settings):
        stepper = Stepper([sys.executable, HERE / "resnet_step.py", self.options.compute, *settings], os.environ)
        return stepper, stepper.answer()


def measured(net, turns):
    """Rows: the choices without a plan, then plans of the last of them, down to the floor."""
    rows, steppers = [], []

    def add(name, settings, floor):
        print(name, flush=True)
        stepper, _ = net.stepper(settings)
        steppers.append(stepper)
        rows.append({"name": name, "settings": settings, "floor_bytes": floor})

    def add_smallest(settings, floor):
        """A step is recorded inside its budget, which may take more than the plan that comes of it."""
        budget = floor // MIB + 2
        while True:
            try:
                return add("a plan in the least that it can be recorded in", net.with_budget(settings, f"{budget}MiB"), floor)
            except RuntimeError as error:
                if "cannot be recorded within it" not in str(error):
                    raise
            budget += max(budget // 100, 1)

    try:
        for name, settings, floor in net.rungs():
            add(name, settings, floor)
        # The peak of the last choice is known when it has run twice.
        probe, _ = net.stepper(settings)
        probe.step()
        probe.step()
        peak = probe.end()["peak_bytes"]
        for share in (0.5, 0.2):
            budget = int(floor + share * (peak - floor))
            add(f"a plan with {share:.0%} of what lies between", net.with_budget(settings, f"{budget // MIB + 1}MiB"), floor)
        add_smallest(settings, floor)
        found, rejected = turns_of(steppers, turns)
        if len(found) < turns:
            sys.exit(f"ladder: other processes took over {BUSY:.0%} of the machine in {rejected} turns")
        for i, row in enumerate(rows):
            row |= steppers[i].end()
            row["seconds"] = statistics.median(turn[i] for turn in found)
            row["over_plain"] = ratio([(turn[i], turn[0]) for turn in found])
    finally:
        for stepper in steppers:
            stepper.stop()
    return rows


def table(title, rows):
    lines = [f"## {title}", "", "| added to what stands above it | peak (MiB) | at the least (MiB) | step / plain step |",
             "|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['peak_bytes'] / MIB:.1f} | {row['floor_bytes'] / MIB:.1f} | {spread(row['over_plain'])} |"
              for row in rows]
    return "\n".join(lines) + "\n"


def picture(nets):
    """Bars of the peaks, one below the other, with the step's time beside them."""
    left, bar, line, top = 250, 420, 22, 30
    parts, y = [], 10
    for title, rows in nets:
        most = max(row["peak_bytes"] for row in rows)
        parts.append(f'<text x="10" y="{y + 12}" font-weight="bold">{title}</text>')
        y += top
        for row in rows:
            width = bar * row["peak_bytes"] / most
            least = bar * row["floor_bytes"] / most
            colour = "#2ca02c" if row["name"].startswith("a plan") else "#1f77b4"
            parts += [f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{row["name"].replace("%", "&#37;")}</text>',
                      f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{line - 6}" fill="{colour}"/>',
                      f'<line x1="{left + least:.1f}" y1="{y - 1}" x2="{left + least:.1f}" y2="{y + line - 5}" stroke="#d62728" '
                      'stroke-width="2"/>',
                      f'<text x="{left + width + 6:.1f}" y="{y + 13}">{row["peak_bytes"] / MIB:.0f} MiB, '
                      f'x {row["over_plain"]["median"]:.2f}</text>']
            y += line
        y += 14
    parts.append(f'<text x="{left}" y="{y + 8}" fill="#d62728">| the smallest budget that has a plan</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + bar + 140} {y + 20}" font-family="sans-serif" '
            'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--nets", type=lambda text: text.split(","), default=["gpt", "resnet"])
    parser.add_argument("--compute", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if options.turns < 3:
        sys.exit("ladder: quartiles need 3 turns or more")
    nets = []
    for name, kind in (("gpt", Gpt), ("resnet", Resnet)):
        if name in options.nets:
            nets.append((kind.title, measured(kind(options), options.turns)))
            print(table(*nets[-1]), flush=True)
    stem = options.results / f"ladder_{machine_name()}_{datetime.date.today()}_{options.compute}"
    options.results.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(dict(nets), indent=1) + "\n")
    about = (f"# Each way to save memory, added to those above it, on {machine_name()}\n\nComputed in {options.compute}; whole "
             "steps with the update in turns, medians with quartiles. Peaks are of all that is counted; \"at the least\" is the "
             "smallest budget that has a plan.\n\n")
    stem.with_suffix(".md").write_text(about + "\n".join(table(*net) for net in nets))
    stem.with_suffix(".svg").write_text(picture(nets))
    print(f"written: {stem}.md, .json, .svg")


main()
