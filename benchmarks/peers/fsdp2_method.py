"""Training steps of gpt-12x384 under FSDP2 on Gloo, weights, gradients and AdamW's moments in shards: counted bytes and
seconds.

Usage: fsdp2_method.py ALLOCATOR.so ROWS CHECKPOINTED [CAP], under a launcher's variables. The first CHECKPOINTED blocks are
checkpointed. With CAP, in bytes, steps run under snug.fit, within that, and snug counts. Prints one JSON object, then trains a step for every line of input and answers with its seconds, and ends
with another JSON object. Peaks are of all that tensors take, weights and all.
"""
import ctypes
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils import checkpoint as ac

if len(sys.argv) > 4:
    import snug

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gpt_12x384 as gpt


class CheckpointedGpt(gpt.Gpt):
    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed

    def run_blocks(self, x):
        for i, block in enumerate(self.blocks):
            x = ac.checkpoint(block, x, use_reentrant=False) if i < self.checkpointed else block(x)
        return x


class CountedBySnug:
    """As the library that counts for those without."""

    def bytes_peak(self):
        return snug.memory_stats()["allocated_peak"]

    def reset_peak(self):
        snug._core.reset_peak(snug.devices.device_named(None))


def counted_by(library):
    counter = ctypes.CDLL(library)
    counter.bytes_used.restype = counter.bytes_peak.restype = ctypes.c_int64
    counter.count_allocations()
    return counter


def main(library, rows, checkpointed, cap):
    counter = counted_by(library) if cap is None else CountedBySnug()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = CheckpointedGpt(checkpointed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(1 + dist.get_rank())
    tokens = torch.randint(0, gpt.VOCABULARY, (rows, gpt.SEQUENCE))
    targets = torch.randint(0, gpt.VOCABULARY, (rows, gpt.SEQUENCE))
    loss = None
    session = None
    if cap is not None:
        try:
            session = snug.fit(lambda batch: model(*batch), (tokens, targets), cap, optimizer=optimizer)
        except snug.DoesNotFit as refused:
            print(json.dumps({"fits": False, "problem": str(refused)}), flush=True)
            return

    def step():
        nonlocal loss
        started = time.perf_counter()
        if session is None:
            loss = model(tokens, targets)
            loss.backward()
        else:
            loss = session.backward((tokens, targets))
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    step(), step()
    counter.reset_peak()
    step()
    print(json.dumps({"peak_bytes": counter.bytes_peak()}), flush=True)
    for _ in sys.stdin:
        print(step(), flush=True)
    print(json.dumps({"peak_bytes": counter.bytes_peak(), "loss": loss.item()}), flush=True)
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
