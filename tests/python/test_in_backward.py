"""Optimizers that update in the backward pass: the same weights to the bit, without all gradients at once."""

import pytest
import torch
from conftest import reset_peak
from torch import nn

import snug


def net(blocks=6, width=256):
    torch.manual_seed(0)
    layers = [layer for _ in range(blocks) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def batches(count=4, rows=2048):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 256, generator=generator) for _ in range(count)]


KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "groups": lambda p: torch.optim.AdamW([{"params": p[:3], "lr": 1e-3}, {"params": p[3:], "weight_decay": 0.0}]),
}


def loss(model, x):
    return model(x).square().mean()


def trained(model, optimizer, data):
    for x in data:
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


OFTEN = ("adamw", "adafactor", "groups")


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS])
def test_has_the_bits_of_an_update_behind(kind):
    data = batches()
    plain = net()
    expected = trained(plain, KINDS[kind](list(plain.parameters())), data)
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = KINDS[kind](list(model.parameters()))
    with snug.fit(lambda x: loss(model, x), data[0], "90%", optimizer=optimizer, in_backward=True) as session:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before)), "recording leaves no trace"
        assert not optimizer.state
        for x in data:
            session.backward(x)
            assert all(p.grad is None for p in model.parameters())
            assert session.last_step.followed_plan and session.last_step.evictions == 0
    assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected))


def test_a_budget_holds_in_which_the_gradients_have_no_room():
    data = batches(rows=8)
    model = net(blocks=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        return loss(model, x)

    behind = snug.plan(step, data[0], optimizer=optimizer)
    within = snug.plan(step, data[0], optimizer=optimizer, in_backward=True)
    gradients = sum(p.nbytes for p in model.parameters())
    assert within.floor < behind.floor - gradients // 2
    with snug.fit(step, data[0], within.floor + (256 << 10), optimizer=optimizer, in_backward=True) as session:
        for i, x in enumerate(data):
            reset_peak()
            session.backward(x)
            assert snug.memory_stats()["mapped_peak"] <= session.plan.budget
            if i > 0:  # the state has come
                assert abs(snug.memory_stats()["allocated_peak"] / session.plan.predicted_peak - 1) < 0.005
        assert session.last_step.evictions == 0


def test_micro_batches_are_added_up_before_the_last():
    data = batches()
    plain, model = net(), net()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for x in data[:3]:
        loss(plain, x).backward()
    reference.step()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with snug.fit(lambda x: loss(model, x), data[0], "100%", optimizer=optimizer, in_backward=True) as session:
        snug.set_memory_limit(None)  # which has no room for gradients of all
        session.backward(data[0], update=False)
        assert all(p.grad is not None for p in model.parameters())
        session.backward(data[1], update=False)
        session.backward(data[2])
        assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, e) for p, e in zip(model.parameters(), plain.parameters()))


def test_a_closed_session_leaves_plain_training_behind():
    data = batches()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in model.parameters()]
    session = snug.fit(lambda x: loss(model, x), data[0], "100%", optimizer=optimizer, in_backward=True)
    snug.set_memory_limit(None)
    loss(model, data[0]).backward()  # not the session's
    assert all(p.grad is not None and torch.equal(p, b) for p, b in zip(model.parameters(), before))
    session.close()
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


class Counting(torch.optim.SGD):
    """One whose groups count steps, as those of some schedule-free optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


def test_parameters_that_begin_to_train_later_are_updated_behind():
    data = batches()

    def run(model, optimizer, backward):
        backward(data[0])
        model[0].requires_grad_(True)
        backward(data[1])
        return [p.detach().clone() for p in model.parameters()]

    plain, model = net(), net()
    plain[0].requires_grad_(False)
    model[0].requires_grad_(False)
    reference = torch.optim.SGD(plain.parameters(), lr=1e-2)

    def plainly(x):
        loss(plain, x).backward()
        reference.step()
        reference.zero_grad()

    expected = run(plain, reference, plainly)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with snug.fit(lambda x: loss(model, x), data[0], "100%", optimizer=optimizer, in_backward=True) as session:
        snug.set_memory_limit(None)
        found = run(model, optimizer, session.backward)
        assert all(p.grad is None for p in model.parameters())
        optimizer.add_param_group({"params": [late := nn.Parameter(torch.ones(1))]})
        with pytest.raises(snug.UsageError, match="the optimizer was given parameters after fit"):
            session.backward(data[2], step=lambda x: loss(model, x) * late.sum())
    assert all(torch.equal(f, e) for f, e in zip(found, expected))


def test_gradients_of_earlier_micro_batches_alone_are_used():
    """As of an expert that no token of the last one went to."""
    data = batches(3)

    def make():
        torch.manual_seed(2)
        return nn.ModuleList([nn.Linear(256, 8), nn.Linear(256, 8)])

    def step(experts, x, which):
        return sum(experts[i](x).square().mean() for i in which)

    plain, experts = make(), make()
    reference, optimizer = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, experts))
    with snug.fit(lambda x: step(experts, x, (0, 1)), data[0], "100%", optimizer=optimizer, in_backward=True) as session:
        snug.set_memory_limit(None)
        for _ in range(2):
            step(plain, data[1], (0, 1)).backward()
            step(plain, data[2], (0,)).backward()
            reference.step()
            reference.zero_grad()
            session.backward(data[1], update=False)
            session.backward(data[2], step=lambda x: step(experts, x, (0,)))
            assert all(p.grad is None for p in experts.parameters())
    assert all(torch.equal(p, e) for p, e in zip(experts.parameters(), plain.parameters()))


def test_hooks_around_steps_are_refused():
    x = batches()[0]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with snug.fit(lambda b: loss(model, b), x, "100%", optimizer=optimizer, in_backward=True) as session:
        optimizer.register_step_post_hook(lambda *_: None)
        with pytest.raises(snug.UsageError, match="SGD has hooks around its step"):
            session.backward(x)
    with pytest.raises(snug.UsageError, match="SGD has hooks around its step"):
        snug.fit(lambda b: loss(model, b), x, "100%", optimizer=optimizer, in_backward=True)


def test_update_false_is_for_updates_in_backward():
    x = batches()[0]
    model = net()
    with snug.fit(lambda b: loss(model, b), x, "100%") as session:
        with pytest.raises(snug.UsageError, match="update=False is for sessions with in_backward=True"):
            session.backward(x, update=False)


def test_what_cannot_be_is_refused():
    x = batches()[0]
    model = net()

    def step(b):
        return loss(model, b)

    with pytest.raises(snug.UsageError, match="in_backward is True and there is no optimizer"):
        snug.fit(step, x, "100%", in_backward=True)
    with pytest.raises(snug.UsageError, match="the list of optimizers is empty"):
        snug.fit(step, x, "100%", optimizer=[], in_backward=True)
    with pytest.raises(snug.UsageError, match="LBFGS runs the step itself"):
        snug.fit(step, x, "100%", optimizer=torch.optim.LBFGS(model.parameters()), in_backward=True)
    with pytest.raises(snug.UsageError, match="Counting counts its steps for all parameters together"):
        snug.fit(step, x, "100%", optimizer=Counting(model.parameters(), lr=1e-2), in_backward=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with snug.fit(step, x, "100%", optimizer=optimizer, in_backward=True) as session:
        with pytest.raises(snug.UsageError, match="leaves no gradients"):
            snug.verify(step, x, model, session=session)
