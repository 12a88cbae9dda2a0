"""A step that calls backward() on its loss and returns that loss costs no walk of the autograd graph."""

import pytest
import torch
from torch import nn

import snug
from snug import _capture


@pytest.fixture
def walks(monkeypatch):
    """The number of walks of the autograd graph so far, in a list."""
    count = [0]
    plain = _capture._nodes_of

    def counted(*args):
        count[0] += 1
        return plain(*args)

    monkeypatch.setattr(_capture, "_nodes_of", counted)
    return count


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)), torch.randn(32, 16)


@pytest.mark.parametrize("returned, walked", [("loss", False), ("detached", False), ("half", True)])
def test_the_graph_is_walked_only_for_another_tensor(walks, returned, walked):
    model, x = small()

    def step(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return {"loss": loss, "detached": loss.detach(), "half": loss / 2}[returned]

    step(x)
    expected = [p.grad.clone() for p in model.parameters()]
    with snug.fit(step, x, budget="1GiB") as session:
        model.zero_grad()
        walks[0] = 0
        loss = session.backward(x)
        assert not loss.requires_grad and bool(walks[0]) == walked
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_a_loss_of_another_micro_batch_is_returned_as_it_is(walks):
    model, x = small()

    def step(batch):
        losses = []
        for part in batch.chunk(2):
            with snug.micro_batch():
                losses.append(model(part).square().mean())
            losses[-1].backward()
        return losses[0]

    step(x)
    expected = [p.grad.clone() for p in model.parameters()]
    with snug.fit(step, x, budget="1GiB") as session:
        model.zero_grad()
        walks[0] = 0
        session.backward(x)
        assert walks[0] == 0
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
