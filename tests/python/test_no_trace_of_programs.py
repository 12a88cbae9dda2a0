"""Recording leaves no trace in what a script, its helpers and its classes keep: global variables, hooks' lists, attributes of
classes, slots and parameters. What cannot be put back is an error."""

import argparse
import collections
import itertools
import random

import pytest
import torch
from torch import nn

import snug

history, carried, seen = [], {"h": None}, collections.Counter()
draws = random.Random(3)
calls = 0
numbers = itertools.count()


class Meter:
    total = 0

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1
        Meter.total += 1


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


meter, slotted, options = Meter(), Slotted(), argparse.Namespace(steps=0)


def warm_up():
    global calls
    calls += 1
    return calls


def state():
    return (
        list(history), carried["h"], dict(seen), draws.getstate(), calls, repr(numbers),
        Meter.total, meter.sum, meter.count, slotted.count, vars(options).copy(), hasattr(Meter, "best"),
    )


def test_what_a_script_keeps_is_as_it_was():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step(batch):
        loss = model(batch).square().mean() * warm_up() * draws.random()
        if carried["h"] is not None:
            loss = loss + carried["h"].sum()
        carried["h"] = batch.detach()
        history.append(1)
        seen["steps"] += 1
        next(numbers)
        meter.update(1.0)
        Meter.best = 1
        slotted.count += 1
        options.steps += 1
        return loss

    before = state()
    session = snug.fit(step, x, "100%")
    assert state() == before
    session.backward(x)
    session.close()
    assert len(history) == calls == slotted.count == options.steps == Meter.total == meter.count == seen["steps"] == 1


features = []


def test_lists_that_hooks_fill():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8)
    model[1].register_forward_hook(lambda module, inputs, output: features.append(output))

    def step(batch):
        loss = model(batch).square().mean() + features[0].square().mean()
        loss.backward()
        features.clear()
        return loss.detach()

    with snug.fit(step, x, "100%") as session:
        assert not features
        session.backward(x)


def test_attributes_of_parameters():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    model.weight.uses = 5

    def step(batch):
        for p in model.parameters():
            if not hasattr(p, "momentum"):
                p.momentum = torch.zeros_like(p)
            p.uses = getattr(p, "uses", 0) + 1
        return model(batch).square().mean()

    with snug.fit(step, x, "100%") as session:
        assert not hasattr(model.weight, "momentum") and model.weight.uses == 5 and not hasattr(model.bias, "uses")
        session.backward(x)
        assert model.weight.uses == 6 and model.bias.uses == 1


batches = iter([torch.ones(4, 8)] * 9)
endless = itertools.cycle([torch.ones(4, 8)] * 2)
pairs = zip([torch.ones(4, 8)] * 9, range(9))


@pytest.mark.parametrize("take", [lambda: next(endless), lambda: next(pairs)[0], lambda: next(itertools.chain(pairs))[0]])
def test_iterators_of_a_script_that_cannot_be_put_back_are_refused(take):
    model = nn.Linear(8, 8)
    with pytest.raises(snug.UsageError, match="took items from an iterator .(cycle|zip). that cannot be put back"):
        snug.fit(lambda _: model(take()).square().mean(), torch.ones(4, 8), "100%")


def test_iterators_of_a_script_that_can_be_put_back():
    model = nn.Linear(8, 8)
    with snug.fit(lambda _: model(next(batches)).square().mean(), torch.ones(4, 8), "100%"):
        assert len(list(batches)) == 9
