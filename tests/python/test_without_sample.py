"""Sessions without a sample: the first real step is recorded as it runs, and nothing runs twice."""

import weakref

import pytest
import torch
from conftest import only_on_the_cpu

import snug

pytestmark = only_on_the_cpu("budgets of the CPU's memory")


class Counting(torch.nn.Module):
    """Initialises itself from its first batch, and counts its calls in a way that nobody can put back."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(128, 128), torch.nn.GELU())])
        self.register_buffer("shift", torch.zeros(128))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
            self.ready = True
        return self.layers(x + self.shift).square().mean()


def trained(steps, session_for=None):
    torch.manual_seed(0)
    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = iter([torch.randn(512, 128) for _ in range(steps)])
    calls = []

    def step(_):
        calls.append(1)
        optimizer.zero_grad()
        loss = model(next(batches))
        loss.backward()
        optimizer.step()
        return loss

    reports = []
    if session_for is None:
        for _ in range(steps):
            step(None)
    else:
        with session_for(step) as session:
            assert calls == [], "nothing has run"
            for _ in range(steps):
                session.backward(None)
                reports.append(session.last_step)
    assert len(calls) == steps, "each step ran once"
    return [p.detach().clone() for p in model.state_dict().values()], reports




def test_every_step_runs_once_and_leaves_the_bits_of_the_plain_one():
    expected, _ = trained(5)
    found, reports = trained(5, lambda step: snug.fit(step, budget="64MiB"))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not reports[0].followed_plan and reports[0].planned_anew
    assert "first step" in reports[0].divergence
    assert reports[-1].followed_plan, reports[-1]


def test_the_budget_holds_from_the_first_step_on_and_the_second_follows_a_plan():
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(256, 256), torch.nn.GELU())])
    x = torch.randn(2048, 256)

    def step(batch):
        return net(batch).square().mean()

    peak = snug.plan(step, x).unplanned_peak
    step(x).backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with snug.fit(step, budget=int(peak * 0.75)) as session:
        assert repr(session) == "Session(no step has run yet)"
        with pytest.raises(snug.UsageError, match="no step has run yet"):
            _ = session.plan
        for i in range(3):
            net.zero_grad()
            session.backward(x)
            assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), expected, strict=True))
            assert (session.last_step.evictions > 0) == (i == 0)
            assert session.last_step.followed_plan == (i > 0)
        assert session.last_step.replayed_ops > 0
        assert session.plan.predicted_peak <= peak * 0.75


def test_what_needs_a_recording_is_refused():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = lambda x: net(x).sum()  # noqa: E731
    with pytest.raises(snug.UsageError, match="in bytes"):
        snug.fit(step, budget="60%")
    with pytest.raises(snug.UsageError, match="optimizer needs a step that is recorded"):
        snug.fit(step, budget="1GiB", optimizer=optimizer)
    with pytest.raises(snug.UsageError, match="micro_batches needs"):
        snug.fit(step, budget="1GiB", micro_batches=2)
    with pytest.raises(snug.UsageError, match="lossy"):
        snug.fit(step, budget="1GiB", allow=["int8_activations"])
    with pytest.raises(snug.UsageError, match="there is no budget"):
        snug.fit(step, torch.randn(2, 8))


def test_lazy_modules_get_their_shapes_in_the_first_step():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.ReLU(), torch.nn.LazyLinear(1))
    with snug.fit(lambda x: net(x).sum(), budget="64MiB") as session:
        for _ in range(4):  # the second step is the first without initialization, and is planned when it comes again
            session.backward(torch.randn(4, 8))
        assert session.last_step.followed_plan


def test_keeps_no_inputs_that_need_a_gradient():
    net = torch.nn.Linear(64, 64)
    inputs = []
    with snug.fit(lambda x: net(x).square().mean(), budget="64MiB") as session:
        for _ in range(4):
            x = torch.randn(32, 64, requires_grad=True)
            inputs.append(weakref.ref(x))
            session.backward(x)
        del x
        assert all(one() is None for one in inputs)


def with_region(loss):
    with snug.Region(snug.Recompute()):
        return loss()


def with_saved_on_cpu(loss):
    with torch.autograd.graph.save_on_cpu():
        return loss()


@pytest.mark.parametrize("around", [with_region, with_saved_on_cpu])
@pytest.mark.parametrize("has_sample", [False, True])
def test_a_further_pass_may_lie_in_a_region(around, has_sample):
    """As that of a generator, behind the update of its critic."""

    def trained_weights(fits):
        torch.manual_seed(0)
        generator, critic = (torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(2))
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (critic, generator)]
        x = torch.randn(256, 64)

        def step(batch):
            optimizers[0].zero_grad()
            critic(generator(batch).detach()).square().mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            loss = around(lambda: critic(generator(batch)).square().mean())
            loss.backward()
            optimizers[1].step()
            return loss.detach()

        if not fits:
            for _ in range(4):
                step(x)
        else:
            sample = (x, "100%") if has_sample else (None, "64MiB")
            with snug.fit(step, *([sample[0]] if has_sample else []), budget=sample[1]) as session:
                for _ in range(4):
                    session.backward(x)
        return [p.detach().clone() for net in (generator, critic) for p in net.parameters()]

    assert all(map(torch.equal, trained_weights(False), trained_weights(True)))


def test_no_gradients_are_left_where_a_further_pass_turns_out_wrong():
    calls = bytearray(1)

    @torch.library.custom_op("without_sample::drifts", mutates_args=())
    def drifts(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return x * calls[0]

    drifts.register_autograd(lambda ctx, g: g.clone())
    w, v = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    x = torch.randn(64, 64)

    def step(batch):
        (batch @ w).sin().square().mean().backward()
        with snug.Region(lambda op: snug.Choice.MustRecompute):
            loss = drifts(torch.tanh(batch @ v)).sin().square().mean()
        loss.backward()

    with snug.fit(step, budget="64MiB") as session, pytest.raises(snug.Error, match="without_sample::drifts"):
        session.backward(x)
    assert w.grad is None and v.grad is None
