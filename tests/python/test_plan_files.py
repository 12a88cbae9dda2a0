"""Plans that are saved, read again, and used in place of a search."""

import json

import pytest
import torch
from conftest import only_on_the_cpu
from test_lossy import made
from torch import nn

import snug

pytestmark = only_on_the_cpu("plans for the CPU's memory")


class Task:
    def __init__(self, width=128):
        torch.manual_seed(3)
        self.model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(width, width), nn.GELU())])
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batch = torch.randn(2048, width)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        return [p.detach().clone() for p in self.model.parameters()]


def trained(task, **options):
    with snug.fit(task.step, task.batch, **options) as session:
        for _ in range(3):
            session.backward(task.batch)
            assert session.last_step.followed_plan
        return session.plan, session.last_step.replayed_ops


@pytest.fixture
def saved(tmp_path):
    task = Task()
    plan = snug.plan(task.step, task.batch, "80%")
    plan.save(tmp_path / "plan.json")
    plan.save_graph(tmp_path / "graph.json")
    return plan, tmp_path / "plan.json", tmp_path / "graph.json"


@pytest.mark.parametrize("form", ["Plan", "loaded", "path", "text"])
def test_a_session_follows_the_plan_that_it_is_given(saved, form):
    plan, path, _ = saved
    given = {"Plan": plan, "loaded": snug.Plan.load(path), "path": path, "text": str(path)}[form]
    plain = Task()
    for _ in range(3):
        plain.step(plain.batch)
    expected = [p.numpy().copy() for p in plain.state()]  # outside of what is counted
    del plain
    task = Task()
    used, replayed = trained(task, plan=given)
    assert used.budget == plan.budget and replayed == plan.explain()["replayed_ops"] > 0
    assert all((a == b.numpy()).all() for a, b in zip(expected, task.state(), strict=True))


def test_a_given_plan_is_not_searched(saved, monkeypatch):
    task = Task()
    session = snug.fit(task.step, task.batch, plan=saved[1])
    assert session.plan.is_searched  # a given plan is its own result
    assert session.plan.floor <= saved[0].budget
    session.close()


def test_a_larger_budget_may_be_given_beside_it(saved):
    plan, path, _ = saved
    used, _ = trained(Task(), plan=path, budget=plan.budget + (1 << 20))
    assert used.budget == plan.budget + (1 << 20) and used.explain()["replayed_ops"] == plan.explain()["replayed_ops"]


def test_a_budget_that_it_does_not_fit_is_refused(saved):
    plan, path, _ = saved
    task = Task()
    with pytest.raises(snug.DoesNotFit, match="the given plan can do with .* or leave out the plan"):
        snug.fit(task.step, task.batch, plan.predicted_peak * 9 // 10, plan=path)


def test_a_plan_that_was_read_tells_what_it_says_itself(saved):
    plan, path, graph = saved
    read = snug.Plan.load(path)
    assert read == plan
    assert (read.strategy, read.budget, read.predicted_peak) == (plan.strategy, plan.budget, plan.predicted_peak)
    assert repr(read) == repr(plan) == str(read)
    for question in (lambda: read.floor, read.explain, read.timeline, read.lower_bound, lambda: read.save_graph(path)):
        with pytest.raises(snug.UsageError, match="read without its step"):
            question()
    whole = snug.Plan.load(path, graph)
    assert str(whole) == str(plan) and whole.floor == plan.floor and whole.timeline() == plan.timeline()


def test_a_plan_of_another_strategy_has_that_ones_floor(tmp_path):
    task = Task()
    plan = snug.plan(task.step, task.batch, strategy="sequential(2)")
    plan.save(tmp_path / "plan.json")
    plan.save_graph(tmp_path / "graph.json")
    read = snug.Plan.load(tmp_path / "plan.json", tmp_path / "graph.json")
    assert read.floor == plan.floor and read.curve() == plan.curve()


def test_a_plan_that_was_read_is_written_as_it_was(saved, tmp_path):
    snug.Plan.load(saved[1]).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved[1].read_bytes()


def test_a_plan_for_another_step_is_refused(saved):
    task = Task()
    with pytest.raises(snug.UsageError, match="for another step: operator"):
        snug.fit(task.step, task.batch[:1024], plan=saved[1])
    other = Task(64)
    snug.plan(other.step, other.batch).save_graph(saved[2])
    with pytest.raises(snug.UsageError, match="for another step: operator"):
        snug.Plan.load(saved[1], saved[2])


def test_files_that_hold_no_plan(saved, tmp_path):
    _, path, graph = saved
    with pytest.raises(snug.UsageError, match="absent.json"):
        snug.Plan.load(tmp_path / "absent.json")
    with pytest.raises(snug.UsageError, match="graph.json"):
        snug.Plan.load(graph)
    text = json.loads(path.read_text())
    del text["operators"]
    path.write_text(json.dumps(text))
    with pytest.raises(snug.UsageError, match="operators"):
        snug.Plan.load(path)


def test_wrong_use(saved):
    task, plan = Task(), saved[0]
    with pytest.raises(snug.UsageError, match="the plan is a int"):
        snug.fit(task.step, task.batch, plan=7)
    with pytest.raises(snug.UsageError, match="there is a plan, and the strategy"):
        snug.fit(task.step, task.batch, plan=plan, strategy="every_block")
    with pytest.raises(snug.UsageError, match="made without a budget"):
        snug.fit(task.step, task.batch, plan=snug.plan(task.step, task.batch))
    with pytest.raises(snug.UsageError, match="plan needs a step that is recorded in advance"):
        snug.fit(task.step, budget="1GiB", plan=plan)


def test_a_plan_that_moves_values_needs_a_place_for_them(tmp_path):
    task = Task(256)
    plan = snug.plan(task.step, task.batch, "60%", host_budget="1GiB", strategy="offload(1)")
    assert plan.explain()["moved_bytes"] > 0
    used, _ = trained(Task(256), plan=plan, host_budget="1GiB")
    assert used.explain()["moved_bytes"] == plan.explain()["moved_bytes"]
    task = Task(256)
    with pytest.raises(snug.UsageError, match="host_budget"):
        snug.fit(task.step, task.batch, plan=plan)


def test_a_plan_with_a_lossy_codec_has_to_be_allowed():
    _, x, step = made()
    allow = ["bf16_activations"]
    for _ in range(8):  # which plan is the quickest is measured, each time anew
        plan = snug.plan(step, x, "70%", allow=allow)
        if plan.explain()["lossy_bytes"] > 0:
            break
    else:
        pytest.fail("no plan was lossy")
    with pytest.raises(snug.UsageError, match="allow names no codec"):
        snug.fit(step, x, plan=plan)
    with snug.fit(step, x, plan=plan, allow=allow) as session:
        session.backward(x)
        assert session.last_step.lossy_bytes > 0


def test_errors_name_parameters():
    task = Task()

    def step(x):
        loss = task.model(x).square().mean()
        with torch.no_grad():
            task.model[4].weight.add_(1)
        loss.backward()
        return loss.detach()

    with pytest.raises(snug.Error, match=r"4\.weight"), snug.fit(step, task.batch, "60%") as session:
        session.backward(task.batch)
