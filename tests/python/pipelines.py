"""Stages of torch.distributed.pipelining in processes that meet by Gloo, without snug and under plans."""

import hashlib
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble


import snug
from processes import in_processes, what_became

WIDTH, LENGTH, VOCABULARY, STEPS = 64, 32, 96, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        heads = lambda t: t.view(*t.shape[:2], 4, WIDTH // 4).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.norm1(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


def stage_module(index, stages, blocks):
    torch.manual_seed(index)
    layers = [Block() for _ in range(blocks // stages)]
    if index == 0:
        layers.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if index == stages - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*layers)


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Pipeline:
    """A schedule, with so many stages in each process."""

    schedule: type = Schedule1F1B
    chunks: int = 1
    micro_batches: int = 6
    rows: int = 48
    blocks: int = 8
    updates_inside: bool = False
    accumulate: int = 1  # steps of the schedule in one of ours

    exact: bool = True  # the peak is the predicted one; not where no gradient is there while most are in flight

    budgets: tuple = (80, 60, 0)  # percent of what the step takes, and no less than the smallest budget


class Run:
    """What one process does of it."""

    def __init__(self, how, rank):
        size = dist.get_world_size()
        stages = size * how.chunks
        indices = range(rank, stages, size)
        self.modules = [stage_module(i, stages, how.blocks) for i in indices]
        self.stages = [PipelineStage(m, i, stages, torch.device("cpu")) for m, i in zip(self.modules, indices)]
        of_schedule = self.stages if how.chunks > 1 else self.stages[0]
        self.schedule = how.schedule(of_schedule, n_microbatches=how.micro_batches, loss_fn=loss_of)
        self.parameters = [p for m in self.modules for p in m.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)
        self.is_first, self.is_last = rank == 0, rank == size - 1
        self.inside, self.accumulate = how.updates_inside, how.accumulate

        torch.manual_seed(5)
        self.batches = [torch.randint(VOCABULARY, (2, how.rows, LENGTH)) for _ in range(STEPS)]

    def meet(self):
        """Before torch 2.13 a stage runs its module on zeros, to learn what sizes it makes, before its first micro-batch, and so
        draws random numbers: fit's recording has done that."""
        for stage in self.stages:
            stage.has_backward = True
        first = (self.batches[0][0].chunk(self.schedule._n_microbatches)[0],) if self.is_first else ()
        initialize = getattr(self.schedule, "_initialize_stage", None) or self.schedule._initialize_stages
        initialize(first, {})

    def step(self, batch):
        losses = []
        for _ in range(self.accumulate):
            of_one = []
            self.schedule.step(*([batch[0]] if self.is_first else []), target=batch[1], losses=of_one if self.is_last else None)
            losses += of_one
        mean = torch.stack(losses).mean() if losses else None
        if self.inside:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return mean


def digest(tensor):
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:16]


def run(how, rank, budget):
    """Digests of losses, gradients and weights, and what the session said of each step."""
    one = Run(how, rank)
    session, said, bits = None, [], []
    optimizer = None if how.updates_inside else one.optimizer
    if budget is not None:
        plan = snug.plan(one.step, one.batches[0], "100%", optimizer=optimizer)
        # In bytes, so that the recording is under the limit, too. The last stage has all logits beside its steps.
        session = snug.fit(one.step, one.batches[0], max(plan.floor + 4096, plan.unplanned_peak * budget // 100), optimizer=optimizer)
    elif torch.__version__ < (2, 13):
        one.meet()
    torch.manual_seed(7 + rank)
    for batch in one.batches:
        if session is None:
            loss = one.step(batch)
        else:
            snug._core.reset_peak(snug.devices.device_named(None))
            loss = session.backward(batch)
            stats = snug.memory_stats()
            said.append((session.last_step, session.plan, session.predicted_peak, stats["allocated_peak"], stats["limit"]))
        bits.append(digest(loss) if loss is not None else "")
        if not how.updates_inside:
            bits += [digest(p.grad) for p in one.parameters]
            one.optimizer.step()
            one.optimizer.zero_grad()
        bits += [digest(p) for p in one.parameters]
    if session is not None:
        session.close()
    return bits, said


def _all_of(rank, results, table):
    warnings.filterwarnings("ignore")
    for name, how in table.items():
        plain, _ = run(how, rank, None)
        for budget in how.budgets:
            bits, said = run(how, rank, budget)
            results[name, budget, rank] = what_became(plain, bits, said)


def run_all(processes, table):
    """What became of each: by name, budget and rank."""
    return in_processes(processes, _all_of, table)


def _refused_in(rank, results):
    one = Run(Pipeline(ScheduleInterleavedZeroBubble, chunks=2, micro_batches=4), rank)
    try:
        snug.fit(one.step, one.batches[0], "80%")
    except snug.UsageError as error:
        results[rank] = str(error)


def refusals_of_zero_bubble(processes):
    return in_processes(processes, _refused_in)


TWO = {
    "1f1b": Pipeline(),
    "gpipe": Pipeline(ScheduleGPipe, exact=False),
    "interleaved": Pipeline(ScheduleInterleaved1F1B, chunks=2, exact=False),
    "updates inside": Pipeline(updates_inside=True),
    "two schedules' steps": Pipeline(accumulate=2, micro_batches=3, rows=24),

}
FOUR = {"1f1b": Pipeline(), "interleaved": Pipeline(ScheduleInterleaved1F1B, chunks=2, micro_batches=8, exact=False)}
