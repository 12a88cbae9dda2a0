"""Ways in which steps go backward: by autograd.grad, by the engine itself, several times, not at all, in another thread."""

import threading

import pytest
import torch
from conftest import only_on_the_cpu

import snug

pytestmark = only_on_the_cpu("budgets of the CPU's memory")


def net():
    torch.manual_seed(5)
    return torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(256, 256), torch.nn.Tanh())])


@pytest.fixture(scope="module", autouse=True)
def _inputs():
    global X  # made here, and not at import, as it would be in the memory of all other files' tests
    X = torch.randn(1024, 256)
    yield
    del X


def run(make, budget, steps=4):
    """What `steps` steps leave, plain (no budget) or in a session, whose last report is the second result."""
    model = net()
    step = make(model)
    if budget is None:
        for _ in range(steps):
            step(X)
        report = None
    else:
        with snug.fit(step, X, budget) as session:
            assert all(p.grad is None for p in model.parameters()), "fit leaves no gradients"
            for _ in range(steps):
                session.backward(X)
            report = session.last_step
    return [t.detach().clone() for p in model.parameters() for t in (p, p.grad)], report


def same(make, budget):
    expected, _ = run(make, None)
    found, report = run(make, budget)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert report.followed_plan, report
    return report


def by_grad(model, **options):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()), **options), strict=True):
            p.grad = g
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("budget", ["100%", "80%"])
def test_autograd_grad_is_the_backward_pass_of_a_step_without_another(budget):
    report = same(by_grad, budget)
    assert (report.replayed_ops > 0) == (budget == "80%") and report.evictions == 0


def test_verify_stops_such_a_step_at_its_update():
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    assert len(snug.verify(by_grad(model), X, model, "80%")) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_engine_called_by_itself_is_seen_as_megatron_has_it():
    def make(model):
        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
            return loss

        return step

    assert same(make, "80%").replayed_ops > 0


def test_a_backward_pass_in_another_thread_is_named():
    model = net()

    def step(x):
        loss = model(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return loss

    with pytest.raises(snug.UsageError, match="another thread"):
        snug.fit(step, X, "100%")


@pytest.mark.parametrize("budget", ["100%", "80%"])
def test_a_budget_that_fit_accepts_holds_where_gradients_are_zeroed_and_stay(budget):
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def step(x):
            optimizer.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    report = same(make, budget)
    assert report.evictions == 0 and report.known == 2, "with gradients before, and without, from the start"


def test_a_step_of_two_passes_has_two_plans():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def step(x):
            for sign in (1, -1):
                optimizer.zero_grad()
                loss = (sign * model(x)).square().mean() if sign > 0 else model(-x).abs().mean()
                loss.backward()
                optimizer.step()
            return loss

        return step

    report = same(make, "85%")
    assert report.known >= 2 and report.replayed_ops > 0


@pytest.mark.parametrize("returns", ["nothing", "the loss", "a detached loss"])
def test_a_step_may_leave_out_its_own_backward_pass(returns):
    model = net()

    def step(x):
        loss = model(x).square().mean()
        if not torch.isfinite(loss):
            return {"nothing": None, "the loss": loss, "a detached loss": loss.detach()}[returns]
        loss.backward()
        return loss

    with snug.fit(step, X, "100%") as session:
        session.backward(X)
        model.zero_grad()
        session.backward(X * float("nan"))
        assert all(p.grad is None for p in model.parameters())
        session.backward(X)
        assert session.last_step.followed_plan and all(p.grad is not None for p in model.parameters())


def test_a_step_of_another_kind_still_has_its_loss_gone_backward_from():
    model = net()

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with snug.fit(step, X, "100%") as session:
        session.backward(X)
        model.zero_grad()
        session.backward(X, step=lambda x: model(x).square().mean())
        assert all(p.grad is not None for p in model.parameters())


def test_verify_without_a_budget_takes_the_smallest_where_60_percent_do_not_fit():
    model = torch.nn.Linear(2048, 8)  # whose weights are most of what there is
    x = torch.randn(4, 2048)
    with pytest.raises(snug.DoesNotFit):
        snug.fit(lambda b: model(b).sum(), x, "60%")
    assert "gradient of weight" in snug.verify(lambda b: model(b).sum(), x, model)


def test_an_inner_optimizer_behind_autograd_grad_is_no_update():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)

        def step(x):
            optimizer.zero_grad()
            delta = torch.zeros_like(x[:1]).requires_grad_()
            inner = torch.optim.SGD([delta], 0.1)
            delta.grad = torch.autograd.grad(model(x + delta).square().mean(), delta)[0]
            inner.step()
            loss = model(x + delta.detach()).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    assert same(make, "90%").known == 1
    model = net()
    assert "gradient of 0.weight" in snug.verify(make(model), X, model, "90%")


def test_steps_of_other_functions_do_not_change_what_becomes_of_the_own_one():
    model = net()
    with snug.fit(lambda x: model(x).square().mean(), X, "100%") as session:
        session.backward(X, step=lambda x: model(x).mean().backward())
        model.zero_grad()
        session.backward(X)
        assert all(p.grad is not None for p in model.parameters()), "the session goes backward from the loss"


def test_a_batch_may_be_skipped_where_the_forward_pass_takes_gradients_or_has_micro_batches():
    model = net()

    def forces(x):
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        loss = slope.square().mean()
        if not torch.isfinite(loss):
            return None
        loss.backward()
        return loss

    def parts(x):
        losses = []
        for part in x.chunk(2):
            with snug.micro_batch():
                losses.append(model(part).square().mean())
        if not all(map(torch.isfinite, losses)):
            return None
        for loss in losses:
            loss.backward()
        return torch.stack(losses).sum().detach()

    for step in (forces, parts):
        model.zero_grad()
        with snug.fit(step, X[:64], "1GiB") as session:
            for x in (X[:64], X[:64] * float("nan"), X[:64]):
                model.zero_grad()
                session.backward(x)
                finite = bool(x.isfinite().all())
                assert all((p.grad is not None) == finite for p in model.parameters()), (step.__name__, finite)
