"""A thousand steps in one process: nothing grows."""

import gc
import sys

import pytest
import torch
from torch import nn

import snug
from conftest import allocated


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_steps_grow_nothing(count):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)])
    x = torch.randn(2048, 64)
    calls = 0

    def step(batch):
        nonlocal calls
        calls += 1
        with snug.Region(snug.Selective(keep=["aten::addmm"])):
            y = model(batch)
        return snug.checkpoint(lambda t: t.square().mean(), y, mode=snug.Rerun())

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with snug.fit(step, x, budget="75%") as session:

        def steps(number):
            for _ in range(number):
                session.backward(x)
                optimizer.step()
                optimizer.zero_grad()
            gc.collect()
            return resident(), allocated(), sys.getrefcount(model), sys.getrefcount(x), len(gc.get_objects())

        steps(100)
        before = steps(10)
        after = steps(count)
    assert after[1] == before[1], "live bytes"
    assert after[2:4] == before[2:4], "reference counts"
    assert after[4] - before[4] < 50, "objects"
    assert after[0] - before[0] < 8 << 20, "resident memory"
    assert calls == 110 + count, "recording leaves no trace"


def test_a_saved_batch_that_is_written_from_what_was_made_of_it_is_let_go():
    weight = torch.randn(8, 8, requires_grad=True)
    before = allocated()
    for _ in range(2):
        batch = torch.randn(8, 8)
        with snug.Region(snug.Recompute()):
            result = batch[:, :4].mm(weight[:4])
            batch.copy_(result * 2)
            loss = result.sum() + batch.sum()
        with pytest.raises(snug.Error, match="modified in place"):
            loss.backward()
        del batch, result, loss
    gc.collect()
    assert allocated() == before
