"""snug against gradient checkpointing on models of transformers, in one process and in turns: one table, one picture.

Usage: peers.py RESULTS_DIR [--models smollm2-512,smollm2-1024,llama,bert,vit,gpt2] [--turns N] [--overhead MODEL]
                [--device cuda:0] [--compile 0.75,0.5]

For each model: the plain step, the same with gradient_checkpointing_enable(), with torch.compile at activation memory budgets, snug under a cap at checkpointing's peak, snug
with the smallest budget whose step is predicted to take no longer than checkpointing's, and snug with everything kept, for
what it costs to be there. Peaks are counted bytes above what is there before the step, gradients included, by the same
allocator for all. A turn during which other processes took more than 5 % of the machine is repeated, and of every two
steps in a row the second is timed. With --overhead the plain step and the one with everything kept alone, in turns, for
what snug costs where it has nothing to do.
"""
import argparse
import datetime
import functools
import gc
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch

import snug

BUSY = 0.05
MIB = 1 << 20


def smollm2(length):
    """SmolLM2-135M with LoRA of rank 16, weights in bf16."""
    from smollm2 import with_lora

    tokens = torch.randint(0, 49152, (1, length))
    return with_lora(), {"input_ids": tokens, "labels": tokens, "use_cache": False}


def small(name):
    import transformers as t

    tokens = torch.randint(0, 8192, (4, 256))
    text = {"input_ids": tokens, "labels": tokens}
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(
            vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
            num_key_value_heads=2)), {**text, "use_cache": False}
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=8192, n_embd=384, n_layer=8, n_head=6)), {
            **text, "use_cache": False}
    if name == "bert":
        return t.BertForMaskedLM(t.BertConfig(
            vocab_size=8192, hidden_size=384, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=6)), text
    if name == "vit":
        return t.ViTForImageClassification(t.ViTConfig(
            hidden_size=384, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=6, image_size=128,
            patch_size=8)), {"pixel_values": torch.randn(4, 3, 128, 128), "labels": torch.randint(0, 2, (4,))}
    sys.exit(f"bench-peers-python: no model \"{name}\"")


def make(name, device="cpu"):
    torch.manual_seed(0)
    model, batch = smollm2(int(name.split("-")[1])) if name.startswith("smollm2-") else small(name)
    return model.train().to(device), {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def wait_for(device):
    """For what it still has to do."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def jiffies():
    """(of all processes, of this one)"""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(x) for x in file.readline().split()[1:]]
    with open("/proc/self/stat", encoding="ascii") as file:
        mine = file.read().rsplit(")", 1)[1].split()
    return sum(fields) - fields[3] - fields[4], int(mine[11]) + int(mine[12])


class Contender:
    """`before` and `after` set the stage; they are not timed."""

    def __init__(self, name, run, before=lambda: None, after=lambda: None, device="cpu"):
        self.name, self.run, self.before, self.after, self.device = name, run, before, after, device
        self.peak, self.seconds = 0, []

    def step(self, model):
        """Two steps, of which the second is timed: memory that the allocator still has from the one before is a
        contender's own, and not what another one left."""
        self.before()
        try:
            for _ in range(2):
                for p in model.parameters():
                    p.grad = None
                gc.collect()
                with snug.Monitor(self.device, interval=3600) as monitor:
                    wait_for(self.device)
                    started = time.perf_counter()
                    self.run()
                    wait_for(self.device)
                    seconds = time.perf_counter() - started
        finally:
            self.after()
        self.peak = max(self.peak, monitor.peak - monitor.before)
        return seconds


def quiet_turn(contenders, model):
    """A step of each; None when the machine was not ours."""
    all_before, mine_before = jiffies()
    started = time.perf_counter()
    seconds = [c.step(model) for c in contenders]
    available = (time.perf_counter() - started) * os.sysconf("SC_CLK_TCK") * os.cpu_count()
    all_after, mine_after = jiffies()
    others = (all_after - all_before) - (mine_after - mine_before)
    return seconds if others <= BUSY * available else None


def turns_of(contenders, model, turns):
    """That many quiet turns, as far as they come in ten times as many."""
    tried = (quiet_turn(contenders, model) for _ in range(10 * turns))
    return itertools.islice((seconds for seconds in tried if seconds is not None), turns)


def compiled(forward, batch, budget):
    """The plain step, compiled with that share of its activations."""
    import torch._functorch.config as settings

    with settings.patch(activation_memory_budget=budget):
        step = torch.compile(forward)
        torch.manual_seed(1)
        step(batch).backward()  # which compiles both passes

    def run():
        torch.manual_seed(1)
        step(batch).backward()
    return run


def compare(name, turns, device, compile_budgets):
    model, batch = make(name, device)
    contender = functools.partial(Contender, device=device)

    def forward(b):
        return model(**b).loss

    def plain():
        torch.manual_seed(1)
        forward(batch).backward()

    def under(session):
        def run():
            torch.manual_seed(1)
            session.backward(batch)
        return run

    base = [contender("plain", plain),
            contender("checkpoint", plain,
                      lambda: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}),
                      model.gradient_checkpointing_disable)]
    for c in base:
        c.step(model)
        c.peak = 0
    slower = statistics.median(b / a for a, b in turns_of(base, model, turns))
    for p in model.parameters():
        p.grad = None
    gc.collect()
    static = snug.memory_stats(device)["allocated"]
    plan = snug.plan(forward, batch)
    reserve = 2 * MIB
    budget = static + base[1].peak
    rows, contenders, sessions = {}, list(base), []
    floor = plan.floor
    # At checkpointing's peak, or as close as a plan comes.
    same_peak = max(budget + reserve, floor)
    same_time = next((b for b, s in reversed(plan.curve(200)) if s <= slower * plan.unplanned_seconds), same_peak)
    for title, size, strategy in (("snug, same peak", same_peak, "optimal"), ("snug, same time", same_time, "optimal"),
                                  ("snug, all kept", 2 * plan.unplanned_peak, "none")):
        session = snug.fit(forward, batch, size, strategy=strategy)
        sessions.append(session)
        # Several sessions hold one limit, the newest's: each step sets its own.
        snug.set_memory_limit(None, device)
        contenders.append(contender(title, under(session), lambda size=size: snug.set_memory_limit(size, device),
                                    lambda: snug.set_memory_limit(None, device)))
    for share in compile_budgets:
        contenders.append(contender(f"compile({share})", compiled(forward, batch, share)))
    for c in contenders:
        c.step(model)
        c.peak = 0
    for seconds in turns_of(contenders, model, turns):
        for c, s in zip(contenders, seconds):
            c.seconds.append(s)
    for session in sessions:
        session.close()
    for c in contenders:
        ratios = [s / t for s, t in zip(c.seconds, contenders[1].seconds)]
        against_plain = [s / t for s, t in zip(c.seconds, contenders[0].seconds)]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows[c.name] = {"peak_bytes": c.peak, "seconds": statistics.median(c.seconds),
                        "over_checkpoint": statistics.median(ratios), "quartiles": [quartiles[0], quartiles[2]],
                        "over_plain": statistics.median(against_plain)}
    return {"rows": rows, "turns": len(contenders[0].seconds), "floor_bytes": floor - static, "static_bytes": static}


def overhead(name, turns, device):
    """Quartiles of the step time with everything kept over the plain one's; each comes first in half of the turns."""
    model, batch = make(name, device)

    def run(backward):
        torch.manual_seed(1)
        backward()

    def forward(b):
        return model(**b).loss

    session = snug.fit(forward, batch, 2 * snug.plan(forward, batch).unplanned_peak, strategy="none")
    pair = [Contender("plain", lambda: run(lambda: forward(batch).backward()), device=device),
            Contender("snug, all kept", lambda: run(lambda: session.backward(batch)), device=device)]
    for c in pair:
        c.step(model)
    ratios = []
    for order in (pair, pair[::-1]):
        for seconds in turns_of(order, model, turns // 2):
            of = dict(zip((c.name for c in order), seconds))
            ratios.append(of["snug, all kept"] / of["plain"])
    session.close()
    return statistics.quantiles(ratios, n=4)


def table(results):
    lines = ["| model | method | peak | step / plain | step / checkpoint (quartiles) |", "|---|---|---|---|---|"]
    for model, result in results.items():
        for name, r in result["rows"].items():
            lines.append(f"| {model} | {name} | {r['peak_bytes'] / MIB:.1f} MiB | x {r['over_plain']:.3f} | "
                         f"x {r['over_checkpoint']:.3f} ({r['quartiles'][0]:.3f} to {r['quartiles'][1]:.3f}) |")
    return "\n".join(lines)


def picture(results, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 3
    count = (len(results) + columns - 1) // columns
    figure, axes = plt.subplots(count, columns, figsize=(12, 3.4 * count), squeeze=False, layout="constrained")
    colors = {"plain": "#777777", "checkpoint": "#d62728", "snug, same peak": "#1f77b4", "snug, same time": "#2ca02c",
              "snug, all kept": "#9467bd"}
    for axis, (model, result) in zip(axes.flat, results.items()):
        for name, r in result["rows"].items():
            axis.scatter(r["peak_bytes"] / MIB, r["over_plain"], s=60, color=colors.get(name, "#ff7f0e"), label=name)
        axis.set_title(model)
        axis.set_xlabel("peak, MiB above static")
        axis.set_ylabel("step / plain step")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(results):]:
        axis.axis("off")
    axes.flat[0].legend(fontsize=8)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--models", default="smollm2-512,smollm2-1024,llama,bert,vit,gpt2")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--overhead", metavar="MODEL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", type=lambda text: [float(share) for share in text.split(",")], default=[])
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    on_cpu = torch.device(options.device).type == "cpu"
    where = f"{torch.get_num_threads()}-cores" if on_cpu else torch.cuda.get_device_name(options.device).replace(" ", "-").lower()
    stem = options.results / f"python_{where}_{datetime.date.today()}"
    note = (f"torch {torch.__version__}, {where}; peaks above what is there before the step, "
            f"gradients included; medians of {options.turns} turns.\n\n")
    if options.overhead:
        low, middle, high = overhead(options.overhead, options.turns, options.device)
        line = (f"{options.overhead}, torch {torch.__version__}, {where}, {options.turns} turns: "
                f"step with everything kept / plain step x {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
        print(line)
        stem.with_name(f"{stem.name}_overhead.md").write_text(line + "\n")
        return
    results = {}
    for name in options.models.split(","):
        print(f"{name}: {options.turns} turns", flush=True)
        results[name] = compare(name, options.turns, options.device, options.compile)
        print(table({name: results[name]}), flush=True)
        stem.with_suffix(".md").write_text(note + table(results) + "\n")
        stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        gc.collect()
    picture(results, stem.with_suffix(".svg"))
    print(f"written: {stem}.md, .json, .svg")


if __name__ == "__main__":
    main()
