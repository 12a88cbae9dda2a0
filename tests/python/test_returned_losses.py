"""A step that calls backward() on its loss and returns that loss costs no walk of the autograd graph, and holds none."""

import weakref

import pytest
import torch
from torch import nn

import snug
from snug import _backward_passes


@pytest.fixture
def walks(monkeypatch):
    """The number of walks of the autograd graph so far, in a list."""
    count = [0]
    plain = _backward_passes._nodes_of

    def counted(*args):
        count[0] += 1
        return plain(*args)

    monkeypatch.setattr(_backward_passes, "_nodes_of", counted)
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


@pytest.mark.parametrize("returned", ["other", "sum"])
def test_a_loss_of_a_micro_batch_that_went_backward_by_another_is_refused(returned):
    model, x = small()

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                out = model(part)
                loss, other = out.square().mean(), (out * model[0].weight.sum()).mean()
            loss.backward(retain_graph=True)
        return {"other": other, "sum": other + loss}[returned]

    with pytest.raises(snug.UsageError, match="gradient would be missing"):
        snug.fit(step, x, budget="1GiB")


def test_graphs_of_micro_batches_go_with_them():
    model, x = small()
    alive = []

    def step(batch):
        before = []
        for part in batch.chunk(4):
            part = part.clone().requires_grad_()
            alive.append(sum(leaf() is not None for leaf in before))
            before.append(weakref.ref(part))
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
            assert part.grad is not None
            loss = part = None

    with snug.fit(step, x, budget="1GiB") as session:
        session.backward(x)
        model.zero_grad()
    assert alive and not any(alive)
