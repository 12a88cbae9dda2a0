"""Step times beside plain PyTorch, in turns: python times.py [--turns N] [program...]; run by hand on an idle machine.

MixtralExperts, SwitchExperts, PaddedBert, PackedBert: steps under 100 % with the same batches, after ten steps and three
passes over all batches; in the size of the tests, whose operators take some 10 us each, and with a width of 256.
transformer: 12 layers of width 256 under 60 %; the first planned step, which is verified, and later ones."""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from written_programs import PROGRAMS, seed  # noqa: E402

import snug  # noqa: E402

WIDER = {
    "MixtralExperts": {"width": 256, "tokens": 1024},
    "SwitchExperts": {"width": 256, "tokens": 1024},
    "PaddedBert": {"width": 256, "times_as_long": 4},
    "PackedBert": {"width": 256, "times_as_long": 4},
}
WARM_UP, PASSES = 10, 3  # steps, and passes over all batches, whichever is more: a shape follows its plan from its third step


def seconds(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def quartiles(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"x {ratios[0]:.3f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"x {middle:.3f} ({low:.3f} to {high:.3f})"


def report(name: str, ratios: list[float], plain: list[float]) -> None:
    print(f"{name}: {quartiles(ratios)}, {len(ratios)} turns, plain step {1000 * statistics.median(plain):.1f} ms", flush=True)


def turn(plain, session, batches) -> tuple[float, float]:
    """Seconds of plain steps, without a limit, and of planned ones.

    To set a limit gives free memory back to the system, and the next step gets it page by page: not part of a step."""

    def all_of(step):
        for batch in batches:
            step(batch)

    snug.set_memory_limit(None)
    without = seconds(lambda: all_of(plain.step))
    snug.set_memory_limit(session.plan.budget)
    return without, seconds(lambda: all_of(session.backward))


def steady_state(name: str, size: dict[str, int], turns: int) -> None:
    """Ratios of passes over all batches: shapes vary, so that single steps do not compare."""
    make = type(name, (PROGRAMS[name],), size)
    seed()
    plain = make()
    seed()
    planned = make()
    warm_up = plain.batches * max(PASSES, -(-WARM_UP // len(plain.batches)))
    for batch in warm_up:
        plain.step(batch)  # what it holds between steps is counted by fit
    with snug.fit(planned.step, planned.sample(), "100%") as session:
        turn(plain, session, warm_up)
        ratios, times = [], []
        for _ in range(turns):
            without, with_ = turn(plain, session, plain.batches)
            ratios.append(with_ / without)
            times.append(without / len(plain.batches))
        sizes = "".join(f", {what} {value}" for what, value in size.items())
        report(f"{name}{sizes}, 100 %, later steps", ratios, times)


class Transformer:
    """12 layers of width 256, AdamW."""

    def __init__(self, layers: int = 12, width: int = 256, length: int = 128, rows: int = 24):
        seed()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(1000, width), encoder, nn.Linear(width, 1000))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.batch = torch.randint(0, 1000, (rows, length))

    def step(self, tokens):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        return loss


def transformer(turns: int) -> None:
    plain = planned = Transformer()  # one model takes both kinds of steps: another would take its part of the budget
    for _ in range(3):
        plain.step(plain.batch)  # the optimizer's state is there afterwards, so that all steps are of one kind
    sessions = max(3, turns // 5)  # only the first step of each is verified, and fit takes long
    firsts, laters, times = [], [], []
    for i in range(min(sessions, turns)):
        with snug.fit(planned.step, planned.batch, "60%") as session:
            without, with_ = turn(plain, session, [planned.batch])
            assert session.last_step.followed_plan and session.last_step.compared_values > 0, session.last_step
            firsts.append(with_ / without)
            for _ in range(turns // min(sessions, turns)):
                without, with_ = turn(plain, session, [planned.batch])
                laters.append(with_ / without)
                times.append(without)
    report("transformer, 60 %, the first step, verified", firsts, times)
    report("transformer, 60 %, later steps", laters, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=[*WIDER, "transformer"], metavar="program")
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    for name in arguments.programs:
        if name == "transformer":
            transformer(arguments.turns)
        elif name in PROGRAMS:
            for size in ({}, WIDER[name]) if name in WIDER else ({},):
                steady_state(name, size, arguments.turns)
        else:
            parser.error(f"unknown program {name!r}; known: transformer, {', '.join(sorted(PROGRAMS))}")


if __name__ == "__main__":
    main()
