"""Training steps of gpt-12x384 under FSDP2 on Gloo, weights, gradients and AdamW's moments in shards: counted bytes and
seconds.

Usage: fsdp2_method.py ALLOCATOR.so ROWS CHECKPOINTED, under a launcher's variables. The first CHECKPOINTED blocks are
checkpointed. Prints one JSON object, then trains a step for every line of input and answers with its seconds, and ends
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


def main(library, rows, checkpointed):
    counter = ctypes.CDLL(library)
    counter.bytes_used.restype = counter.bytes_peak.restype = ctypes.c_int64
    counter.count_allocations()
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

    def step():
        nonlocal loss
        started = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
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


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
