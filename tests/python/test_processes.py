"""Processes that train one model together decide together what changes what each of them runs."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import snug


def small():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)])
    return model, torch.randn(8192, 64)


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def _refused(rank, port, results, explicit):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    model, x = small()
    part = x.chunk(2)[rank]
    ddp = None if explicit else nn.parallel.DistributedDataParallel(model)
    calls = [0]

    def step(batch):
        calls[0] += 1
        loss = (model if explicit else ddp)(batch).square().mean()
        # Only one of them finds no room, and only in the second run of its recording.
        if rank == 1 and calls[0] == 2:
            torch.empty(1 << 28)
        if not explicit:
            return loss
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        return loss

    def gradients_of(backward):
        model.zero_grad()
        torch.manual_seed(10 + rank)
        backward()
        return gradients(model)

    group = dist.group.WORLD if explicit else None
    with snug.fit(step, part, "400MiB", process_group=group) as session:
        recorded = calls[0]
        planned = gradients_of(lambda: session.backward(part))
    plain = gradients_of((lambda: step(part)) if explicit else lambda: step(part).backward())
    results[rank] = (recorded, all(torch.equal(a, b) for a, b in zip(plain, planned)))
    dist.destroy_process_group()


@pytest.mark.parametrize("explicit", [False, True])
def test_what_one_process_refuses_is_recorded_again_in_all(explicit):
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(_refused, args=(29500 + os.getpid() % 1000 + 3, results, explicit), nprocs=2)
        assert dict(results) == {0: (2 + 2, True), 1: (2 + 2, True)}


def test_a_process_group_that_is_none_is_refused():
    model, x = small()
    with pytest.raises(snug.UsageError, match="process group is a str; give one of torch.distributed"):
        snug.fit(lambda b: model(b).square().mean(), x, "60%", process_group="world")
