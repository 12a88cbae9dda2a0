"""Steps that do not follow their plans are warned of, once for each reason, and plans and steps are logged."""

import logging
import types
import warnings

import pytest
import torch
from torch import nn

import snug
from snug.following import PlanWatch


class Task:
    def __init__(self):
        torch.manual_seed(0)
        layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(256, 1))

    def step(self, x):
        return self.model(x).square().mean()


@pytest.fixture
def task():
    return Task()


def batch(rows):
    return torch.randn(rows, 256)


def warned(run):
    """The warnings of a call, with their lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [w for w in caught if issubclass(w.category, snug.PlanNotFollowed)]


def times(session, x, n, before=lambda: None):
    """The number of warnings of each of n steps. `before` runs before each of them."""
    return [(before(), len(warned(lambda: session.backward(x))))[1] for _ in range(n)]


def test_steps_that_follow_their_plans_are_not_warned_of(task):
    large, small = batch(2048), batch(512)
    with snug.fit(task.step, large, "60%") as session:
        assert times(session, large, 3) == times(session, small, 3) == times(session, large, 3) == [0, 0, 0]
        assert session.last_step.known == 3  # and large ones that find gradients


class MomentumContrast:
    """The keys of earlier batches are in a queue, of which each step writes another part, once or in two parts."""

    def __init__(self, parts):
        self.parts = parts
        torch.manual_seed(0)
        self.encoder = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())))
        self.slow = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())))
        self.queue, self.at = torch.randn(256, 4096), 0

    def step(self, x):
        rows = len(x)
        with torch.no_grad():
            for mine, other in zip(self.slow.parameters(), self.encoder.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)
            keys = self.slow(x)
        queries = self.encoder(x)
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone()], 1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(rows, dtype=torch.long))
        with torch.no_grad():
            for part in keys.T.chunk(self.parts, 1):
                self.queue[:, self.at : self.at + part.shape[1]] = part
                self.at = (self.at + part.shape[1]) % 4096
        return loss


@pytest.mark.parametrize("parts", [1, 2])
def test_a_queue_that_is_written_elsewhere_in_each_step(parts):
    batches = [batch(512) for _ in range(10)]
    plain, planned = MomentumContrast(parts), MomentumContrast(parts)
    expected = []
    for x in batches:
        expected.append(torch.autograd.grad(plain.step(x), list(plain.encoder.parameters())))
    with snug.fit(planned.step, batches[0], "90%") as session:
        for x, gradients in zip(batches, expected):
            planned.encoder.zero_grad()
            assert not warned(lambda: session.backward(x)) and session.last_step.followed_plan
            assert all(torch.equal(p.grad, g) for p, g in zip(planned.encoder.parameters(), gradients))
        assert torch.equal(plain.queue, planned.queue)
        assert session.last_step.known == 1


def test_a_step_that_no_plan_fits(task):
    small, large = batch(256), batch(4096)
    budget = snug.plan(task.step, large).floor - 300 * 1024
    with snug.fit(task.step, small, budget) as session:
        zero = task.model.zero_grad
        assert times(session, large, 2, zero) == [0, 0]  # an unknown step, and the one that is planned
        session._core.finish_searches()
        zero()
        (warning,) = warned(lambda: session(large))
        assert warning.filename == __file__
        text = str(warning.message)
        assert text.startswith("session: no plan of this step fits the budget") and "\n" not in text
        assert f"{session.last_step.evictions} values were evicted" in text and "raise the budget" in text
        assert times(session, large, 3, zero) == [0, 0, 0]
        # For another reason it warns once more.
        counts = [times(session, batch(100 + i), 1, zero) for i in range(9)]
        assert counts == [[0]] * 7 + [[1]] + [[0]]


def test_shapes_that_are_new_again_and_again(task):
    with snug.fit(task.step, batch(512), "1GiB") as session:
        counts = [len(warned(lambda: session.backward(batch(100 + i)))) for i in range(14)]
        # The second is the first that finds gradients, of which a session plans the first at once.
        assert counts == [0] * 8 + [1] + [0] * 5
    with snug.fit(task.step, batch(512), "1GiB") as session:  # each session warns
        (warning,) = warned(lambda: [session.backward(batch(100 + i)) for i in range(10)])
    assert warning.filename == __file__
    assert "(operator " in str(warning.message) and "pad batches to a few shapes" in str(warning.message)


def report(**fields):
    known = {"followed_plan": True, "planned_anew": False, "stopped_planning": False, "divergence": "", "evictions": 0, "opaque": []}
    return types.SimpleNamespace(**{**known, **fields})


@pytest.mark.parametrize("fields, text", [
    ({}, None),
    ({"evictions": 4}, "the step followed its plan, and 4 values were evicted in addition"),
    ({"evictions": 4, "opaque": ["8 B of f"]}, "kept whatever a plan says: 8 B of f"),
    ({"evictions": 4, "planned_anew": True}, None),  # the first that finds gradients, say
    ({"opaque": ["8 B of f"]}, None),  # which the plan counts
    ({"followed_plan": False, "divergence": "operator 1: recorded a, ran b", "evictions": 4}, None),
    ({"followed_plan": False, "divergence": "it has no micro-batches, and the steps before it had some"},
     "put each forward pass into a `with snug.micro_batch"),
])
def test_each_reason_is_warned_of_once(fields, text):
    watch = PlanWatch()
    found = [warned(lambda: watch.look_at(report(**fields), stacklevel=1)) for _ in range(2)]
    assert [len(w) for w in found] == [int(text is not None), 0]
    assert all(text in str(w.message) and w.filename == __file__ for w in found[0])


def test_plans_and_steps_are_logged(task, caplog):
    x = batch(512)
    caplog.set_level(logging.DEBUG, "snug")
    plan = snug.plan(task.step, x)
    with snug.fit(task.step, x, "1GiB") as session:
        for rows in (512, 256, 256):
            task.model.zero_grad()
            session.backward(x[:rows])
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "INFO", "DEBUG", "DEBUG", "DEBUG", "INFO"]
    of_plan, of_fit, followed, new, _, anew = caplog.messages
    assert of_plan.startswith("plan: plan optimal: ") and "budget none" in of_plan
    assert f"smallest budget {snug.format_bytes(plan.floor)}" in of_plan
    assert of_fit.startswith("fit: plan optimal: ") and f"budget {snug.format_bytes(session_budget(of_fit))}" in of_fit
    assert "predicted peak" in of_fit and "recorded and planned in" in of_fit
    assert followed.startswith("step: followed its plan, ") and "0 evictions" in followed
    assert new.startswith("step: followed no plan (operator ")
    assert anew.startswith("step: plan ")


def session_budget(message):
    return snug.parse_bytes(message.partition(", budget ")[2].partition(",")[0])


def test_without_a_level_nothing_is_printed(task, capfd):
    with snug.fit(task.step, batch(64), "1GiB") as session:
        session.backward(batch(64))
    assert capfd.readouterr() == ("", "")
