"""Optimizers that refer to themselves, or keep their attributes in slots: fit rehearses them and leaves them as they were."""

import functools

import pytest
import torch
from small_step import Lion
from torch import nn

import snug


class Counted(torch.optim.Optimizer):
    """Updates by `self.apply`, which is made in __init__."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.updates = 0
        self.apply = self.make_apply()

    def make_apply(self):
        raise NotImplementedError

    @torch.no_grad()
    def update(self, p, rate=-0.1):
        self.updates += 1
        momentum = self.state[p].setdefault("momentum", torch.zeros_like(p)).add_(p.grad)
        p.add_(momentum, alpha=rate)

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.apply(p)


class ByBoundMethod(Counted):
    def make_apply(self):
        return self.update


class ByPartial(Counted):
    def make_apply(self):
        return functools.partial(self.update, rate=-0.2)


class Rule:
    def __init__(self, owner):
        self.owner, self.calls = owner, 0

    def update(self, p):
        self.calls += 1
        self.owner.update(p)


class ByHelper(Counted):
    def make_apply(self):
        self.rule = Rule(self)
        return self.rule.update


class Slotted:
    """A wrapper without a __dict__."""

    __slots__ = ("base", "updates")

    def __init__(self, base):
        self.base, self.updates = base, 0

    @property
    def param_groups(self):
        return self.base.param_groups

    @property
    def state(self):
        return self.base.state

    def step(self):
        self.updates += 1
        self.base.step()


MAKERS = {
    "a bound method": ByBoundMethod,
    "a partial of a bound method": ByPartial,
    "an object with a reference to it": ByHelper,
    "slots": lambda parameters: Slotted(torch.optim.Adam(parameters)),
    "slots around an optimizer of another class": lambda parameters: Slotted(Lion(parameters)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_optimizer_is_left_as_it_was(make):
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)), torch.randn(64, 16)

    def step(batch):
        return model(batch).square().mean()

    optimizer = make(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    with snug.fit(step, x, budget="1GiB", optimizer=optimizer) as session:
        assert optimizer.updates == 0 and not optimizer.state
        assert getattr(optimizer, "rule", Rule(None)).calls == 0
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        session.backward(x)
        optimizer.step()
    assert optimizer.updates > 0 and optimizer.state
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_the_state_of_such_an_optimizer_is_in_the_plan():
    model, x = nn.Linear(256, 256), torch.randn(8, 256)
    bytes_of = {}
    for name, optimizer in (("none", None), ("one", ByBoundMethod(model.parameters()))):
        bytes_of[name] = snug.plan(lambda b: model(b).square().mean(), x, optimizer=optimizer).floor
    assert bytes_of["one"] - bytes_of["none"] > 256 * 256 * 4 // 2
