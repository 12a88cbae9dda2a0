"""Gradients of several micro-batches are foreseen: each has a plan from the beginning, under one budget."""

import weakref

import pytest
import torch
from small_step import net

import snug

MIB = 1 << 20


def micro_batches(count=3, rows=4096):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 64, generator=generator) for _ in range(count)]


def loss_of(model, x):
    return model(x).square().mean() / 3


def accumulated(model, batches, run):
    model.zero_grad()
    torch.manual_seed(5)
    for x in batches:
        run(x)
    return [p.grad.clone() for p in model.parameters()]


def test_all_micro_batches_follow_their_plans_at_the_floor_of_all():
    model = net(depth=8)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = micro_batches()  # they count as well
    expected = accumulated(model, batches, lambda x: loss_of(model, x).backward())
    model = net(depth=8)
    optimizer = torch.optim.AdamW(model.parameters())
    x = batches[0]
    alone = snug.plan(lambda b: loss_of(model, b), x, optimizer=optimizer).floor
    floor = snug.plan(lambda b: loss_of(model, b), x, optimizer=optimizer, micro_batches=3).floor
    assert floor >= alone
    with snug.fit(lambda b: loss_of(model, b), x, floor, optimizer=optimizer, micro_batches=3) as session:

        def run(batch):
            session.backward(batch)
            step = session.last_step
            assert step.followed_plan and step.evictions == 0 and not step.planned_anew, step

        found = accumulated(model, batches, run)
        for p in model.parameters():
            p.grad = None
        session.backward(x)  # a first one
        assert session.plan.floor == floor
        for p in model.parameters():
            p.grad = None
        accumulated(model, batches, run)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        optimizer.step()
    with pytest.raises(snug.DoesNotFit) as refused:
        snug.fit(lambda b: loss_of(model, b), x, floor - 256 * 1024, optimizer=optimizer, micro_batches=3)
    assert refused.value.floor > floor - 256 * 1024


def test_what_cannot_be_is_refused():
    model, x = net(), micro_batches()[0]
    with pytest.raises(snug.UsageError, match="0 micro-batches"):
        snug.fit(lambda b: loss_of(model, b), x, 64 * MIB, micro_batches=0)
    with pytest.raises(snug.UsageError, match="with 2 micro-batches, whose gradients are there until the last"):
        snug.fit(lambda b: loss_of(model, b), x, 64 * MIB, optimizer=torch.optim.SGD(model.parameters(), 0.1),
                 in_backward=True, micro_batches=2)
    for wrong in (2.5, "4", True):
        with pytest.raises(snug.UsageError, match="micro_batches is"):
            snug.fit(lambda b: loss_of(model, b), x, 64 * MIB, micro_batches=wrong)
    with pytest.raises(snug.UsageError, match="the strategy is a NoneType"):
        snug.fit(lambda b: loss_of(model, b), x, 64 * MIB, strategy=None)
    with pytest.raises(snug.UsageError, match="allow is None; give a list of names"):
        snug.fit(lambda b: loss_of(model, b), x, 64 * MIB, allow=None)


def test_a_leaf_that_the_step_makes_between_two_of_them_is_not_kept():
    """Recomputing by hand: the second begins with a leaf whose gradient the first goes backward from."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    x = torch.randn(2048, 256)
    made = []

    def step(batch):
        with snug.micro_batch():
            h = first(batch).tanh()
        a = h.detach().requires_grad_()
        made.append(weakref.ref(a))
        with snug.micro_batch():
            loss = second(a).tanh().square().mean()
        loss.backward()
        h.backward(a.grad)
        return loss.detach()

    floor = snug.plan(step, x).floor
    with snug.fit(step, x, floor) as session:
        for _ in range(3):
            session.backward(x)
            assert session.last_step.followed_plan
            first.zero_grad()
            second.zero_grad()
    assert len(made) == 3 and all(leaf() is None for leaf in made)


def test_what_a_plan_says_of_one_of_several_kinds_is_of_the_plan():
    torch.manual_seed(0)
    small, large = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)), torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)
    )
    x = torch.randn(2048, 64)

    def step(batch):
        with snug.micro_batch():
            first = small(batch).square().mean()
        with snug.micro_batch():
            second = large(batch).square().mean()
        second.backward()
        first.backward()
        return (first + second).detach()

    floor = snug.plan(step, x).floor
    plan = snug.plan(step, x, floor + (1 << 20))
    peak, seconds = plan.lower_bound()
    assert max(plan.timeline()) == plan.predicted_peak
    assert peak <= plan.predicted_peak and seconds <= plan.predicted_seconds
