"""Rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019), as rockmate solves it, on the very step that snug plans.

Usage: rotor.py SNUG CONFIG RESULTS_DIR [--precisions fp32,bf16]
The chain is the model's blocks, each saved whole or not at all, which is all that Rotor knows. It is solved for falling
memory; each solution becomes a plan whose peak and time snug's exact simulator predicts, and beside it stands the plan
that snug makes for the same peak.
"""
import argparse
import bisect
import datetime
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types

RUN, DIE, SAVE, SETTLE, UNPACK, RELEASE, OTHER = range(7)  # snug::plan::Event::Kind
UNIT = 2**20
RESERVE = 2**21  # of a budget, for odds and ends: snug::plan::Budget
TRIES = 40


def rockmate_solver():
    """The module alone: rockmate as a whole needs a release of rkgb that PyPI does not have."""
    files = importlib.metadata.files("rockmate")
    path = next(f for f in files if str(f).endswith("rk_rotor/rotor_solver.py")).locate()
    for name in ("rockmate", "rockmate.solvers", "rockmate.solvers.rk_rotor"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    # What it makes of a solution for rockmate's executor; not called here.
    sequences = types.ModuleType("rockmate.solvers.rk_rotor.def_sequence")
    for name in ("SeqBlockFn", "SeqBlockFc", "SeqBlockFe", "SeqBlockBwd", "SeqLoss", "RK_Sequence"):
        setattr(sequences, name, object)
    sys.modules[sequences.__name__] = sys.modules["rockmate.solvers.rk_rotor.csequence"] = sequences
    sys.modules["rockmate.solvers.rk_rotor"].csequence = sequences
    spec = importlib.util.spec_from_file_location("rockmate.solvers.rk_rotor.rotor_solver", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snug_json(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


class Graph:
    """What Rotor's chain needs of a recorded step."""

    def __init__(self, graph, blocks):
        self.ops, self.values, self.events = graph["ops"], graph["values"], graph["events"]
        self.leaves = set(graph["leaves"])
        self.producer, self.reads = {}, []
        for index, op in enumerate(graph["flow"]):
            self.reads.append([v for v in op["inputs"] if v not in self.leaves])
            for value, _ in op["outputs"]:
                self.producer[value] = index
        # Stages without holes; what comes before the first block goes with it, what follows the last is the loss.
        ends = [end for _, end in blocks]
        self.stages = list(zip([0] + ends, ends + [len(self.ops)]))
        self.backward_seconds = graph["step_seconds"] - sum(op[2] for op in self.ops)

    def stage_of(self, op):
        return bisect.bisect_right([begin for begin, _ in self.stages], op) - 1

    def boundary(self, begin):
        """Values made before an operator and read from it on."""
        return {v for op in range(begin, len(self.ops)) for v in self.reads[op] if self.producer[v] < begin}

    def saved(self, begin, end):
        return {v for v, op in self.producer.items() if begin <= op < end and self.values[v][1]}

    def bytes(self, values):
        return sum(self.values[v][0] for v in values)

    def backward_extra(self):
        """By stage, the highest memory of its backward above that before it."""
        extra, level, stage, settled = [0] * len(self.stages), 0, len(self.stages) - 1, False
        for kind, which, peak, net in self.events:
            if kind == SETTLE:
                settled = True
            if not settled:
                continue
            if kind == UNPACK and which in self.producer:
                now = self.stage_of(self.producer[which])
                if now != stage:
                    stage, level = now, 0
            if kind == OTHER:
                extra[stage] = max(extra[stage], level + peak)
                level += net
        return extra


def chain_of(graph):
    """The attributes that rockmate's dynamic program reads. Sizes in MiB, rounded up; one way to save each stage."""
    up = lambda size: -(-size // UNIT)
    chain = types.SimpleNamespace()
    stages, extra = graph.stages, graph.backward_extra()
    chain.ln = len(stages) - 1
    seconds = [sum(op[2] for op in graph.ops[b:e]) for b, e in stages]
    workspace = [max((op[3] for op in graph.ops[b:e]), default=0) for b, e in stages]
    chain.cw = [0] + [up(graph.bytes(graph.boundary(b))) for b, _ in stages[1:]] + [0]
    chain.cbw = [[0]] + [[up(graph.bytes(graph.saved(b, e) | (graph.boundary(e) - graph.boundary(b))))] for b, e in stages]
    chain.fw = [[s] for s in seconds]
    chain.bw = [[graph.backward_seconds / len(stages)] for _ in stages]
    chain.fwd_tmp = [[up(w)] for w in workspace]
    chain.bwd_tmp = [[up(x)] for x in extra]
    chain.ff_fw = seconds
    chain.ff_fwd_tmp = [up(w) for w in workspace]
    chain.nb_sol = [1] * len(stages)
    return chain


def plan_of(template, graph, what, memory, chain):
    """Rotor's decisions as a plan of snug's: values that are kept, and nested segments for what is run again."""
    actions = ["k" if v in graph.leaves else "r" for v in range(len(graph.values))]
    segments = []

    def keep(values):
        for v in values:
            actions[v] = "k"

    def walk(m, a, b, outermost):
        while a <= b:
            if a == b == chain.ln:  # the loss runs once
                if outermost:
                    keep(graph.saved(*graph.stages[a]))
                return
            whole, choice = what[m][a][b]
            if whole:
                if outermost:
                    keep(graph.saved(*graph.stages[a]))
                    keep(graph.boundary(graph.stages[a][1]))
                m, a = m - chain.cbw[a + 1][choice], a + 1
                continue
            segments.append([graph.stages[a][0], graph.stages[choice - 1][1]])
            if outermost:
                keep(graph.boundary(graph.stages[choice][0]))
            walk(m, a, choice - 1, False)
            m, a = m - chain.cw[choice], choice

    walk(memory, 0, chain.ln, True)
    # A stage that is saved whole inside of a segment needs none of its own, and no segment twice.
    unique = sorted({tuple(s) for s in segments}, key=lambda s: (s[0], -s[1]))
    return dict(template, strategy="rotor", budget_bytes=0, actions="".join(actions), segments=[list(s) for s in unique])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snug")
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,bf16")
    options = parser.parse_args()
    solver = rockmate_solver()
    text = (f"# Rotor (rockmate {importlib.metadata.version('rockmate')}) and snug on the same recorded step of "
            f"{options.config.stem}\n\nPeaks of all memory in MiB and step times over the unplanned step's, both as snug's "
            "exact simulator predicts them.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for precision in options.precisions.split(","):
            text += f"\n## {precision}\n\n| Rotor: peak, time | snug within that peak: peak, time |\n|---|---|\n"
            graph_file, template_file, plan_file = folder / "graph.json", folder / "every_block.json", folder / "rotor.json"
            snug_json([options.snug, "plan", options.config, "--strategy", "every_block", "--graph-out", graph_file,
                       "--out", template_file, "--json", "--set", f"precision.compute={precision}"])
            template = json.loads(template_file.read_text())
            graph = Graph(json.loads(graph_file.read_text()), template["segments"])
            chain = chain_of(graph)
            most = sum(c[0] for c in chain.cbw) + max(x[0] for x in chain.bwd_tmp) + max(x[0] for x in chain.fwd_tmp)
            seen = set()
            for memory in range(most, 0, -max(1, most // TRIES)):
                best, what = solver.psolve_dp_functional(chain, memory)
                if best[memory][0][chain.ln] == float("inf"):
                    break
                plan_file.write_text(json.dumps(plan_of(template, graph, what, memory, chain)))
                rotor = snug_json([options.snug, "plan", "--graph", graph_file, "--plan", plan_file, "--json"])
                if rotor["predicted_peak_bytes"] in seen:
                    continue
                seen.add(rotor["predicted_peak_bytes"])
                try:
                    ours = snug_json([options.snug, "plan", "--graph", graph_file, "--json", "--budget",
                                      f"{rotor['predicted_peak_bytes'] + RESERVE}B"])
                except RuntimeError:  # below snug's floor
                    ours = None
                cell = lambda r: (f"{r['predicted_peak_bytes'] / UNIT:.1f}, "
                                  f"x {r['predicted_step_seconds'] / r['unplanned_step_seconds']:.3f}")
                text += f"| {cell(rotor)} | {cell(ours) if ours else 'does not fit'} |\n"
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"rotor_{options.config.stem}_{datetime.date.today()}.md").write_text(text)


main()
