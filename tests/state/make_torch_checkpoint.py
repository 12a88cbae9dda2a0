"""Writes torch_checkpoint and torch_checkpoint_flat beside it with torch.distributed.checkpoint: make_torch_checkpoint.py
(needs torch).

torch_checkpoint: {"app": {"model": ..., "optim": ...}, "step": 3} of two processes, whose parameters fully_shard has divided.
torch_checkpoint_flat: a state dict as it is, of one process, with a tensor that lies the other way round.
"""
import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

HERE = pathlib.Path(__file__).parent


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(30.0).reshape(5, 6) / 7)
        self.bias = nn.Parameter(torch.arange(5.0) - 2)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("few_bits", torch.linspace(-1, 1, 6).bfloat16().reshape(2, 3))


def save(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    module = Module()
    fully_shard(module)
    optim = {"exp_avg": torch.zeros(4)}
    dcp.save({"app": {"model": module.state_dict(), "optim": optim}, "step": 3}, checkpoint_id="torch_checkpoint")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.chdir(HERE)
    for folder in ("torch_checkpoint", "torch_checkpoint_flat"):
        shutil.rmtree(folder, ignore_errors=True)
    mp.spawn(save, args=(29777,), nprocs=2)
    flat = {"layer.weight": torch.arange(12.0).reshape(3, 4).t(), "layer.none": torch.empty(0, 3)}
    dcp.save(flat, checkpoint_id="torch_checkpoint_flat", no_dist=True)
