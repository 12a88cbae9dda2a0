"""Evaluation between the steps of a session: session.paused() lifts the limit, and the steps after it are as before."""

import gc

import pytest
import torch
from torch import nn

import snug

MIB = 1 << 20


class Task:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU())), nn.BatchNorm1d(64))
        self.x = torch.randn(4096, 64)

    def step(self, x):
        return self.model(x).square().mean()

    def gradients(self, session):
        self.model.zero_grad()
        session.backward(self.x)
        return [p.grad.clone() for p in self.model.parameters()]


@pytest.fixture
def task():
    return Task()


def limit():
    return snug.memory_stats()["limit"]


def test_an_evaluation_that_needs_more_than_the_budget(task):
    large = torch.randn(16 * 4096, 64)
    with snug.fit(task.step, task.x, "120MiB") as session:
        task.model.eval()
        with torch.no_grad(), pytest.raises(snug.OutOfBudget):
            [task.model(large) for _ in range(8)]
        with session.paused(), torch.no_grad():
            assert limit() is None
            outputs = [task.model(large) for _ in range(8)]
        assert limit() == session.plan.budget
        assert all(torch.equal(o, outputs[0]) for o in outputs)


def test_steps_after_a_pause_are_those_before(task):
    with snug.fit(task.step, task.x, "70%") as session:
        before = task.gradients(session)
        report = session.last_step
    task = Task()
    with snug.fit(task.step, task.x, "70%") as session:
        with session.paused(), torch.no_grad():
            task.model.eval()(torch.randn(4 * 4096, 64))
            task.model.train()
        after = task.gradients(session)
        assert session.last_step.known == 1 and session.last_step.followed_plan
        assert session.last_step.evictions == report.evictions == 0
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_plain_backward_pass_inside_is_not_recorded(task):
    with snug.fit(task.step, task.x, "70%") as session:
        task.gradients(session)
        with session.paused():
            task.step(task.x).backward()
        task.gradients(session)
        assert session.last_step.known == 1 and session.last_step.followed_plan


def test_other_limits_are_lifted_and_come_back(task):
    snug.set_memory_limit("512MiB")
    try:
        with snug.fit(task.step, task.x, "256MiB") as session, snug.fit(task.step, task.x, "128MiB") as newer:
            with session.paused():
                assert limit() is None
                with session.paused():
                    assert limit() is None
                assert limit() is None
                newer.backward(task.x)  # under its own limit
                assert newer.last_step.followed_plan
            assert limit() == 128 * MIB
            with pytest.raises(ZeroDivisionError), session.paused():
                1 / 0
            assert limit() == 128 * MIB
        assert limit() == 512 * MIB
    finally:
        snug.set_memory_limit(None)


def test_what_is_refused(task):
    with snug.fit(task.step, task.x, "128MiB") as session:
        with session.paused(), pytest.raises(snug.UsageError, match="session: it is paused; run steps after the end"):
            session.backward(task.x)

        def pauses(x):
            with session.paused():
                return task.step(x)

        with pytest.raises(snug.UsageError, match="inside of a step; pause the session between steps"):
            session.backward(task.x, step=pauses)
        session.backward(task.x)
        with session.paused():
            session.close()
    assert limit() is None
    with pytest.raises(snug.UsageError, match="closed"), session.paused():
        pass
    gc.collect()
