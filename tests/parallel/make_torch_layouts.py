"""Writes the files beside it with PyTorch's own ways to train in several processes: make_torch_layouts.py (needs torch).

A small Llama, with the weights of ../models/llama.safetensors, takes STEPS steps of SGD with momentum on batches that follow
from a formula, in two processes each time: DistributedDataParallel, fully_shard (FSDP2), parallelize_module (DTensor:
columns and rows), and ScheduleGPipe, Schedule1F1B of torch.distributed.pipelining.

torch_layouts.json: of each, the losses and the norms of gradients, of the whole batch and model.
torch_layouts.safetensors: the weights behind the last step of DistributedDataParallel.
"""
import json
import math
import os
import pathlib
import struct
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HERE = pathlib.Path(__file__).parent
LAYERS, WIDTH, INNER, HEADS, KEY_HEADS, VOCABULARY = 2, 32, 48, 4, 2, 64
HEAD = WIDTH // HEADS
BATCH, SEQUENCE, STEPS, PROCESSES, MICRO_BATCHES = 8, 24, 5, 2, 4
RATE, MOMENTUM = 0.5, 0.9


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def turned(x):
    """Rotary embeddings, halves of a head turning together."""
    positions = torch.arange(x.size(-2), dtype=torch.float32)
    angles = torch.outer(positions, 10000.0 ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD))
    cosines, sines = (torch.cat([f(angles), f(angles)], -1) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        for name, out in (("q_proj", HEADS), ("k_proj", KEY_HEADS), ("v_proj", KEY_HEADS)):
            setattr(self, name, nn.Linear(WIDTH, out * HEAD, bias=False))
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = lambda y: y.unflatten(-1, (-1, HEAD)).transpose(-2, -3)  # noqa: E731
        q, k, v = turned(heads(self.q_proj(x))), turned(heads(self.k_proj(x))), heads(self.v_proj(x))
        k, v = (y.repeat_interleave(HEADS // KEY_HEADS, dim=-3) for y in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), FeedForward()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), Norm()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.lm_head = Decoder(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))


class Stage(nn.Module):
    """One of two: the embedding and the first block, or the second block and the head."""

    def __init__(self, whole, rank):
        super().__init__()
        self.rank, self.block = rank, whole.model.layers[rank]
        if rank == 0:
            self.embed_tokens = whole.model.embed_tokens
        else:
            self.norm, self.lm_head = whole.model.norm, whole.lm_head

    def forward(self, x):
        x = self.block(self.embed_tokens(x) if self.rank == 0 else x)
        return self.lm_head(self.norm(x)) if self.rank == 1 else x


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[8 + length:][slice(*about["data_offsets"])]), dtype=torch.float32)
            .view(about["shape"]) for name, about in header.items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def tokens_of(step):
    rows = torch.arange(BATCH).view(-1, 1)
    columns = torch.arange(SEQUENCE + 1)
    return (7 * rows + columns * columns + 5 * step + 3 * rows * columns + columns // 3) % VOCABULARY


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def norm_of(parameters, group_of_all):
    """Of the gradients of all parameters, those that each process has once."""
    total = 0.0
    for p in parameters:
        gradient = p.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        total += gradient.double().square().sum().item()
    if group_of_all:
        sums = [None] * PROCESSES
        dist.all_gather_object(sums, total)
        total = sum(sums)
    return math.sqrt(total)


def mean_over_processes(loss):
    losses = [None] * PROCESSES
    dist.all_gather_object(losses, loss.item())
    return sum(losses) / PROCESSES


def train(model, one_step, all_have_all=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses, norms = [], []
    for step in range(STEPS):
        tokens = tokens_of(step)
        losses.append(one_step(tokens[:, :-1], tokens[:, 1:]))
        norms.append(norm_of(model.parameters(), not all_have_all))
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "norms": norms}


def data_parallel_step(model, rank):
    rows = slice(rank * BATCH // PROCESSES, (rank + 1) * BATCH // PROCESSES)

    def step(inputs, targets):
        loss = loss_of(model(inputs[rows]), targets[rows])
        loss.backward()
        return mean_over_processes(loss)
    return step


def ddp(whole, rank):
    model = nn.parallel.DistributedDataParallel(whole)
    found = train(model, data_parallel_step(model, rank))
    if rank == 0:
        write_safetensors(HERE / "torch_layouts.safetensors", {n: p.detach() for n, p in whole.named_parameters()})
    return found


def fsdp2(whole, rank):
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in whole.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return train(whole, data_parallel_step(whole, rank))


def tensor(whole, _rank):
    mesh = init_device_mesh("cpu", (PROCESSES,))
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    for block in whole.model.layers:
        parallelize_module(block, mesh, {name: ColwiseParallel() for name in columns} |
                           {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")})

    def step(inputs, targets):
        loss = loss_of(whole(inputs), targets)
        loss.backward()
        return loss.item()
    return train(whole, step)


def pipeline(schedule_class):
    def run(whole, rank):
        part = Stage(whole, rank)
        stage = PipelineStage(part, rank, PROCESSES, torch.device("cpu"))
        schedule = schedule_class(stage, MICRO_BATCHES, loss_fn=loss_of)

        def step(inputs, targets):
            losses = []
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=targets, losses=losses)
            told = [torch.stack(losses).mean().item() if losses else None]
            dist.broadcast_object_list(told, src=PROCESSES - 1)
            return told[0]
        return train(part, step, all_have_all=False)
    return run


LAYOUTS = {"ddp": ddp, "fsdp2": fsdp2, "tensor": tensor, "gpipe": pipeline(ScheduleGPipe),
           "1f1b": pipeline(Schedule1F1B)}


def process(rank, name, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    whole = Llama()
    whole.load_state_dict(read_safetensors(HERE.parent / "models" / "llama.safetensors"))
    found = LAYOUTS[name](whole, rank)
    if rank == 0:
        (pathlib.Path(folder) / name).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main():
    found = {"torch": torch.__version__, "batch": BATCH, "sequence": SEQUENCE, "micro_batches": MICRO_BATCHES,
             "rate": RATE, "momentum": MOMENTUM, "layouts": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in LAYOUTS:
            torch.multiprocessing.spawn(process, args=(name, folder), nprocs=PROCESSES)
            found["layouts"][name] = json.loads((pathlib.Path(folder) / name).read_text())
    (HERE / "torch_layouts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
