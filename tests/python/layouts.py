"""Models in the layouts of torch.distributed, and whole runs of them, plain and under plans, for tests with several processes."""

import gc
import hashlib
import warnings
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import snug
from processes import in_processes, what_became

VOCABULARY, WIDTH, LENGTH, ROWS = 256, 64, 64, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        normed = self.norm1(x)
        heads = [layer(normed).unflatten(-1, (-1, 16)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self, blocks=4, repeated=1, turns=1, writes=False, reduces=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.repeated, self.turns = repeated, turns  # each block, one behind the other; all blocks
        self.writes, self.reduces = writes, reduces  # in place, over what blocks have made; the latter by a collective

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in list(self.blocks) * self.turns:
            for _ in range(self.repeated):
                x = block(x)
            if self.writes:
                other = x.sigmoid()
                x.mul_(1.1)
                x += other
                other = x.exp().clamp(max=2)
                x = x.relu_() + other * 0.1
            if self.reduces:
                other = x.exp().clamp(max=2)
                dist.all_reduce(x.detach())
                x = x / dist.get_world_size() + other.tanh()
        return self.head(self.norm(x))


def fsdp(model, mesh, nested=False, prefetch=False, **options):
    for block in model.blocks:
        if nested:
            for layer in (block.query, block.key, block.value, block.out):
                fully_shard(layer, mesh=mesh, **options)
            fully_shard([block.up, block.down], mesh=mesh, **options)
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if prefetch:
        for block, following in zip(model.blocks, model.blocks[1:]):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])
    return model


def tensor_parallel(model, mesh, sequences=False):
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    plan |= {name: RowwiseParallel() for name in ("out", "down")}
    if sequences:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "dropout": SequenceParallel()}
        for name in ("out", "down"):
            plan[name] = RowwiseParallel(output_layouts=Shard(1))
        for name in ("query", "key", "value", "up"):
            plan[name] = ColwiseParallel(input_layouts=Shard(1))
        parallelize_module(model, mesh, {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        })
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


@dataclass
class Layout:
    """How a model is divided among the processes."""

    divide: object  # (model, mesh) -> model
    mesh: tuple = ()  # of named axes; without any: one of all processes
    axes: tuple = ()
    same_batch: tuple = ()  # axes along which all have the same rows
    model: dict = field(default_factory=dict)
    around: object = None  # a context of each step
    accumulate: int = 1
    budgets: tuple = ("80%", "60%")


def data_parallel(model, mesh):
    return DistributedDataParallel(model)


def last_dimension(parameter):
    return Shard(parameter.ndim - 1)


def digest(tensor):
    """Which takes no memory that counts."""
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy()).hexdigest()


TWO = {
    "ddp": Layout(data_parallel),
    "fsdp": Layout(fsdp),
    "fsdp, weights that stay": Layout(partial(fsdp, reshard_after_forward=False)),
    "fsdp, root too": Layout(partial(fsdp, reshard_after_forward=True)),
    "fsdp, layers in blocks": Layout(partial(fsdp, nested=True)),
    "fsdp, fetched ahead": Layout(partial(fsdp, prefetch=True)),
    "fsdp, bf16": Layout(partial(fsdp, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))),
    # Since PyTorch 2.15 gradients are then reduced in the type of the parameters, and before in that of the computation.
    "fsdp, bf16 reduced as it comes": Layout(partial(fsdp, mp_policy=MixedPrecisionPolicy(torch.bfloat16))),
    "fsdp, blocks twice": Layout(fsdp, model={"blocks": 2, "repeated": 2}),
    "fsdp, blocks in turns": Layout(partial(fsdp, reshard_after_forward=False), model={"blocks": 2, "turns": 2}, budgets=("80%",)),
    "fsdp, written in place": Layout(fsdp, model={"writes": True}),
    "fsdp, reduced in place": Layout(fsdp, model={"reduces": True}),
    "fsdp, columns": Layout(partial(fsdp, shard_placement_fn=last_dimension)),
    "fsdp, two micro-batches": Layout(fsdp, accumulate=2),
    "tensor": Layout(tensor_parallel, same_batch=("all",)),
    "tensor, sequences and loss": Layout(partial(tensor_parallel, sequences=True), same_batch=("all",), around=loss_parallel),
}


def fsdp_over_tensor(model, mesh):
    return fsdp(tensor_parallel(model, mesh["tensor"]), mesh["data"])


FOUR = {
    "hybrid": Layout(fsdp, mesh=(2, 2), axes=("replicate", "shard")),
    "fsdp over tensor": Layout(fsdp_over_tensor, mesh=(2, 2), axes=("data", "tensor"), same_batch=("tensor",)),
}


def at_the_floor(layout):
    return replace(layout, budgets=("floor",))


def buffer_bytes():
    """Of the largest collective: the weights of a block, or what is between layers."""
    return max(sum(p.nbytes for p in Block().parameters()), 4 * ROWS * LENGTH * WIDTH)


def run(layout, budget, steps=3):
    """Losses, gradients and weights of all steps; what the session says of each of them, where there is one."""
    gc.collect()  # the models of the runs before
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", layout.mesh or (dist.get_world_size(),), mesh_dim_names=layout.axes or ("all",))
    model = layout.divide(Model(**layout.model), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank = 0  # of the rows
    for axis in mesh.mesh_dim_names:
        if axis not in layout.same_batch:
            rank = rank * mesh[axis].size() + mesh.get_local_rank(axis)
    rows = torch.randint(0, VOCABULARY, (steps, layout.accumulate, ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(rank))

    def forward(batch):
        return nn.functional.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())

    def step(batch):
        if layout.around is None:
            return forward(batch)
        with layout.around():  # whose backward pass has to be inside as well
            loss = forward(batch)
            loss.backward()
        return loss

    bits, said = [], []
    session = None
    if budget == "floor":  # of the process that needs most, and a collective's buffer
        with snug.fit(step, rows[0][0], "100%", optimizer=optimizer, micro_batches=layout.accumulate) as unplanned:
            floors = torch.tensor([unplanned.plan.floor])
        dist.all_reduce(floors, dist.ReduceOp.MAX)
        budget = int(floors) + buffer_bytes()
    if budget is not None:
        session = snug.fit(step, rows[0][0], budget, optimizer=optimizer, micro_batches=layout.accumulate)
    torch.manual_seed(7 + rank)
    for batches in rows:
        for batch in batches:
            if session is None:
                loss = step(batch)
                if layout.around is None:
                    loss.backward()
            else:
                snug._core.reset_peak(snug.devices.device_named(None))
                loss = session.backward(batch)
                stats = snug.memory_stats()
                said.append((session.last_step, session.plan, session.predicted_peak, stats["allocated_peak"], stats["limit"]))
            bits.append(digest(loss))
            del loss
        bits += [digest(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        bits += [digest(p) for p in model.parameters()]
    if session is not None:
        session.close()
    return bits, said


def _all_of(rank, results, layouts):
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    for name, layout in layouts.items():
        plain, _ = run(layout, None)
        for budget in layout.budgets:
            bits, said = run(layout, budget)
            buffer = 2 * buffer_bytes() if layout.divide is not data_parallel else 0
            results[name, budget, rank] = {**what_became(plain, bits, said), "buffer": buffer}


def run_all(processes, layouts):
    """What became of each: by name, budget and rank."""
    return in_processes(processes, _all_of, layouts)
