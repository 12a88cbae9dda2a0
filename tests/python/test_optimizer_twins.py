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


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization, whose step takes a closure that goes backward once more."""

    def __init__(self, parameters, base):
        super().__init__(parameters, {})
        self.base = base(self.param_groups)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "Sharp needs its closure"
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = p.grad * 0.05
                p.add_(self.state[p]["step"])
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["step"])
        self.base.step()


def test_an_optimizer_that_needs_its_closure_is_tried_out_with_one():
    found = []
    for fits in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        optimizer = Sharp(net.parameters(), lambda groups: torch.optim.SGD(groups, 0.1, momentum=0.9))
        x = torch.randn(64, 64)

        def step(batch):
            def loss_of():
                loss = net(batch).square().mean()
                loss.backward()
                return loss

            optimizer.zero_grad()
            loss = loss_of()
            optimizer.step(loss_of)
            return loss.detach()

        if fits:
            with snug.fit(step, x, "4MiB") as session:
                for _ in range(3):
                    session.backward(x)
        else:
            for _ in range(3):
                step(x)
        found.append([p.detach().clone() for p in net.parameters()])
    assert all(map(torch.equal, *found))


class AsksForGradients(torch.optim.SGD):
    loss = None

    def step(self, closure=None):
        torch.autograd.grad(self.loss, self.param_groups[0]["params"])
        super().step()


class OfNobody(AsksForGradients):
    """Of a module that is not torch.optim's."""


def test_an_optimizer_that_cannot_be_tried_out_is_named():
    net, x = nn.Linear(32, 32), torch.randn(64, 32)
    optimizer = OfNobody(net.parameters(), 0.1)

    def step(batch):
        optimizer.zero_grad()
        optimizer.loss = net(batch).square().mean()
        optimizer.loss.backward(retain_graph=True)
        optimizer.step()
        return optimizer.loss.detach()

    with pytest.raises(snug.UsageError, match="the step of OfNobody cannot be tried out.*leave out the sample"):
        snug.fit(step, x, "100%")
