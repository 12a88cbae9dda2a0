"""Steps of any arguments: session(x, y), Arguments as a sample, and step= by its name."""

import functools

import pytest
import torch
from torch import nn

import snug


class Task:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
        self.x, self.y = torch.randn(2048, 64), torch.randint(0, 4, (2048,))
        self.mask = torch.rand(2048, 64) < 0.9

    def step(self, x, y, mask=None):
        return nn.functional.cross_entropy(self.model(x if mask is None else x * mask), y)

    def gradients(self, run):
        self.model.zero_grad()
        torch.manual_seed(1)
        loss = run()
        return [loss.detach(), *(p.grad.clone() for p in self.model.parameters())]

    def plain(self, *args, **kwargs):
        def run():
            loss = self.step(*args, **kwargs)
            loss.backward()
            return loss

        return self.gradients(run)


@pytest.fixture
def task():
    return Task()


def same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_step_of_several_arguments(task):
    x, y, mask = task.x, task.y, task.mask
    with snug.fit(task.step, snug.Arguments(x, y, mask=mask), "64MiB") as session:
        loss = session(x, y, mask=mask)
        assert not loss.requires_grad and session.last_step.followed_plan
        same(task.plain(x, y, mask=mask), task.gradients(lambda: session(x, y, mask=mask)))
        same(task.plain(x, y, mask=mask), task.gradients(lambda: session(snug.Arguments(x, y, mask=mask))))
        same(task.plain(x, y, mask), task.gradients(lambda: session.backward(x, y, mask)))
        same(task.plain(x, y), task.gradients(lambda: session.backward(snug.Arguments(x, y=y))))


def test_a_tuple_or_a_dictionary_is_one_argument(task):
    def of_pair(batch):
        return task.step(*batch)

    def of_names(batch):
        return task.step(**batch)

    for step, batch in ((of_pair, (task.x, task.y)), (of_names, {"x": task.x, "y": task.y})):
        with snug.fit(step, batch, "64MiB") as session:
            for run in (lambda: session(batch), lambda: session.backward(batch)):
                same(task.plain(task.x, task.y), task.gradients(run))


def test_a_step_without_arguments(task):
    with snug.fit(lambda: task.step(task.x, task.y), snug.Arguments(), "64MiB") as session:
        same(task.plain(task.x, task.y), task.gradients(session))


def test_names_that_backward_takes_itself():
    weight = torch.ones(8, requires_grad=True)

    def step(self, step, update):
        return (weight * self * step * update).sum()

    sample = snug.Arguments(2.0, step=3.0, update=4.0)
    with snug.fit(step, sample, "1GiB") as session:
        assert session(self=2.0, step=3.0, update=4.0).item() == session(2.0, step=3.0, update=4.0).item() == 192


def test_plan_verify_and_gradient_errors_take_the_same(task):
    sample = snug.Arguments(task.x, task.y, mask=task.mask)
    assert snug.plan(task.step, sample).operators > 3
    assert "gradient of 0.weight" in snug.verify(task.step, sample, task.model, "90%")
    with snug.fit(task.step, sample, "64MiB") as session:
        assert "loss" in snug.verify(task.step, sample, task.model, session=session)
        errors = snug.gradient_errors(task.step, sample, task.model, session=session)
    assert set(errors) == {name for name, _ in task.model.named_parameters()} and not any(errors.values())


def test_the_device_is_found_among_arguments():
    there = torch.empty(1, device="meta")
    for sample in (snug.Arguments(1, there), snug.Arguments(torch.ones(1), batch={"x": [there]})):
        assert snug.devices.device_of(None, sample) == "meta"


def test_another_step_is_given_by_its_name(task):
    x, y = task.x, task.y
    with snug.fit(lambda batch: task.step(*batch), (x, y), "64MiB") as session:
        same(task.plain(x, y), task.gradients(lambda: session.backward(x, y, step=task.step)))
        for function in (task.step, lambda batch: task.step(*batch), functools.partial(task.step, x)):
            with pytest.raises(snug.UsageError, match=r"give another step by its name: backward\(batch, step=function\)"):
                session.backward((x, y), function)


def test_a_function_may_be_an_argument_of_the_step(task):
    def step(batch, loss_of):
        return loss_of(task.model(batch))

    def squares(t):
        return t.square().mean()

    with snug.fit(step, snug.Arguments(task.x, squares), "1GiB") as session:
        assert torch.equal(task.gradients(lambda: session(task.x, squares))[0],
                           task.gradients(lambda: session.backward(task.x, squares))[0])


def test_allowed_choices_pass_arguments_on(task):
    with snug.fit(task.step, snug.Arguments(task.x, task.y, mask=task.mask), "1GiB", allow=["tiled_loss"]) as session:
        session(task.x, task.y, mask=task.mask)


def test_wrong_arguments_are_the_steps_to_refuse(task):
    with snug.fit(task.step, snug.Arguments(task.x, task.y), "1GiB") as session:
        with pytest.raises(TypeError, match="y"):
            session(task.x)
        assert session(task.x, task.y).numel() == 1
    assert repr(snug.Arguments(1, "a", b=2)) == "Arguments(1, 'a', b=2)"
