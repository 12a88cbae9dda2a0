"""Sessions: same bits under a budget, and what goes wrong says so."""

import gc

import pytest
import torch
from conftest import DEVICE
from torch import nn

import snug


def mlp(width=64, depth=6, dropout=0.1):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.BatchNorm1d(width), nn.Linear(width, 4))


class Task:
    def __init__(self, batch=512):
        self.model = mlp()
        self.batch = (torch.randn(batch, 64), torch.randint(0, 4, (batch,)))

    def step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)


@pytest.fixture
def task():
    return Task()


def test_gives_the_same_bits_under_a_budget(task):
    plan = snug.plan(task.step, task.batch)
    for share in ("90%", "60%", "45%"):
        compared = snug.verify(task.step, task.batch, task.model, share)
        assert "loss" in compared and "buffer 18.running_mean" in compared and len(compared) > 15
    assert plan.floor < plan.unplanned_peak


def test_a_session_that_is_verified_has_its_budget_already(task):
    with snug.fit(task.step, task.batch, budget="60%") as session:
        for other in ({"budget": "50%"}, {"strategy": "none"}):
            with pytest.raises(snug.UsageError, match="the session has its budgets, its device and its strategy"):
                snug.verify(task.step, task.batch, task.model, session=session, **other)


def test_stays_within_its_budget(task):
    unplanned = snug.plan(task.step, task.batch).unplanned_peak
    with snug.fit(task.step, task.batch, budget="55%") as session:
        share = int(0.55 * unplanned)
        assert share < session.plan.budget <= share + (2 << 20)  # and the allocator's reserve
        for _ in range(3):
            with snug.Monitor() as monitor:
                loss = session.backward(task.batch)
            assert monitor.peak <= session.plan.budget
            assert snug.memory_stats()["mapped_peak"] <= session.plan.budget
        assert session.last_step.replayed_ops > 0
        assert session.last_step.followed_plan
        assert not loss.requires_grad and loss.numel() == 1


def test_recording_leaves_no_trace(task):
    state = {k: v.clone() for k, v in task.model.state_dict().items()}
    random = torch.get_rng_state()
    snug.fit(task.step, task.batch, budget="70%").close()
    assert all(p.grad is None for p in task.model.parameters())
    assert all(torch.equal(v, state[k]) for k, v in task.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_trains_as_plain_pytorch_does(task):
    def train(session):
        torch.manual_seed(5)
        model = task.model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        if session:
            session = snug.fit(task.step, task.batch, budget="60%")
        for _ in range(5):
            if session:
                losses.append(session.backward(task.batch).item())
            else:
                loss = task.step(task.batch)
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        if session:
            session.close()
        return losses, [p.detach().clone() for p in model.parameters()]

    random = torch.get_rng_state()
    plain_losses, plain = train(False)
    torch.set_rng_state(random)
    losses, planned = train(True)
    assert losses == plain_losses
    assert all(torch.equal(a, b) for a, b in zip(plain, planned))


def test_plans_steps_of_other_shapes_as_they_come(task):
    session = snug.fit(task.step, task.batch, budget="70%")
    small = (task.batch[0][:100], task.batch[1][:100])
    for _ in range(3):
        session.backward(small)
    assert session.last_step.followed_plan
    assert session.last_step.known == 2
    session.close()


def test_takes_the_loss_from_an_output(task):
    class Output:
        def __init__(self, loss):
            self.loss = loss

    with snug.fit(lambda b: Output(task.step(b)), task.batch, budget="80%") as session:
        assert session.backward(task.batch).numel() == 1


def test_a_plan_tells_what_it_does(task, tmp_path):
    plan = snug.plan(task.step, task.batch, "55%")
    assert plan.predicted_peak <= plan.budget < plan.unplanned_peak
    assert plan.explain()["replayed_ops"] > 0
    assert max(plan.timeline()) == plan.predicted_peak
    peak, seconds = plan.lower_bound()
    assert peak <= plan.floor and seconds <= plan.predicted_seconds
    curve = plan.curve(5)
    assert len(curve) == 5 and [b for b, _ in curve] == sorted((b for b, _ in curve), reverse=True)
    assert [s for _, s in curve] == sorted(s for _, s in curve)
    assert "predicted peak" in str(plan) and "optimal" in repr(plan)
    plan.save(tmp_path / "plan.json")
    plan.save_graph(tmp_path / "graph.json")
    assert (tmp_path / "plan.json").stat().st_size > 100 and (tmp_path / "graph.json").stat().st_size > 100
    with pytest.raises(snug.Error, match="missing"):
        plan.save_graph(tmp_path / "missing" / "graph.json")


def test_a_budget_that_is_too_small_names_the_smallest(task):
    with pytest.raises(snug.DoesNotFit, match="smallest") as caught:
        snug.fit(task.step, task.batch, budget="10%")
    assert caught.value.floor > caught.value.budget and not caught.value.only_begun
    with snug.fit(task.step, task.batch, budget=caught.value.floor * 101 // 100) as session:
        session.backward(task.batch)
    # In bytes it is a limit while the step is recorded, too: then only so much of the step is known.
    with pytest.raises(snug.DoesNotFit, match="would have taken") as caught:
        snug.fit(task.step, task.batch, budget="200KiB")
    assert caught.value.floor > caught.value.budget == 200 << 10 and caught.value.only_begun


@pytest.mark.parametrize(
    ("budget", "words"),
    [("8 bananas", "bananas"), (0, "positive"), (-5, "positive"), ("0%", "percentage"), ("x%", "percentage"), ("150%", "percentage"),
     (1.5, "float"), (True, "bool"), ("", "empty"), (" ", "empty"), ("0", "no memory"), ("+70%", "percentage"), ("7_0%", "percentage")],
)
def test_a_budget_that_cannot_be_read(task, budget, words):
    with pytest.raises(snug.UsageError, match=words):
        snug.fit(task.step, task.batch, budget=budget)


def test_a_step_that_returns_no_loss(task):
    for step, words in [
        (lambda b: None, "it returned None, and did not call backward"),
        (lambda b: 3.0, "float"),
        (lambda b: task.model(b[0]), "2048 elements"),
        (lambda b: task.step(b).detach(), "does not require a gradient"),
    ]:
        with pytest.raises(snug.UsageError, match=words):
            snug.fit(step, task.batch, budget="1GiB")
    with pytest.raises(snug.UsageError, match="function"):
        snug.fit(42, task.batch, budget="1GiB")
    with pytest.raises(snug.UsageError, match="has two budgets"):
        snug.fit(task.step, task.batch, budget="1GiB", other_budgets={DEVICE: "1GiB"})


class Interrupted(Exception):
    pass


def test_after_an_exception_it_goes_on(task):
    before = None
    with snug.fit(task.step, task.batch, budget="60%") as session:
        torch.manual_seed(1)
        session.backward(task.batch)
        plain = [p.grad.clone() for p in task.model.parameters()]
        for p in task.model.parameters():
            p.grad = None

        def fails(batch):
            task.model(batch[0])
            raise Interrupted("in the middle")

        gc.collect()
        before = snug.memory_stats()["allocated"]
        with pytest.raises(Interrupted, match="in the middle"):
            session.backward(task.batch, step=fails)
        gc.collect()
        assert snug.memory_stats()["allocated"] == before

        class FailsInBackward(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                raise Interrupted("going back")

        with pytest.raises(Interrupted, match="going back"):
            session.backward(task.batch, step=lambda b: FailsInBackward.apply(task.step(b)))
        for p in task.model.parameters():
            p.grad = None
        torch.manual_seed(1)
        session.backward(task.batch)
        again = [p.grad.clone() for p in task.model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_keyboard_interrupt_comes_through(task):
    with snug.fit(task.step, task.batch, budget="60%") as session:
        def interrupted(batch):
            task.model(batch[0])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            session.backward(task.batch, step=interrupted)
        session.backward(task.batch)


def test_a_closed_session_says_so(task):
    session = snug.fit(task.step, task.batch, budget="60%")
    session.close()
    session.close()
    assert repr(session) == "Session(closed)"
    with pytest.raises(snug.UsageError, match="closed"):
        session.backward(task.batch)


def test_one_step_at_a_time(task):
    with snug.fit(task.step, task.batch, budget="60%") as session:
        with pytest.raises(snug.UsageError, match="one at a time"):
            session.backward(task.batch, step=lambda b: session.backward(b))


def test_a_model_that_moved_to_another_dtype_after_fit(task):
    with snug.fit(task.step, task.batch, budget="80%") as session:
        snug.set_memory_limit(None)  # twice the bytes
        task.model.double()
        batch = (task.batch[0].double(), task.batch[1])
        loss = session.backward(batch)
        assert loss.dtype == torch.float64
        assert all(p.grad.dtype == torch.float64 for p in task.model.parameters())


def test_verify_names_what_differs(task):
    calls = bytearray(1)  # which nothing puts back

    class Drifting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls[0] += 1
            return x + calls[0]

        @staticmethod
        def backward(ctx, g):
            return g * calls[0]

    with pytest.raises(snug.Mismatch, match="loss") as caught:
        snug.verify(lambda b: Drifting.apply(task.step(b)), task.batch, task.model, "90%")
    assert "loss" in caught.value.names
    assert all(p.grad is None for p in task.model.parameters())


def test_verify_replays_and_detects_anomalies(task):
    with snug.fit(task.step, task.batch, budget="80%") as session:
        session.verify_replays = True
        session.backward(task.batch)
        session.verify_replays = False
        session.detect_anomalies = True
        session.backward(task.batch)
        bad = (task.batch[0].clone(), task.batch[1])
        bad[0][3, 3] = float("nan")
        with pytest.raises(snug.Error, match="aten::"):
            session.backward(bad)


def test_sessions_that_replace_each_other_leave_the_limit_in_order(task):
    session = snug.fit(task.step, task.batch, budget="1GiB")
    session = snug.fit(task.step, task.batch, budget="64MiB")  # as a notebook's cell that is run again
    gc.collect()
    assert snug.memory_stats()["limit"] == 64 << 20
    other = snug.fit(task.step, task.batch, budget="32MiB")
    session.close()
    assert snug.memory_stats()["limit"] == 32 << 20
    other.close()
    assert snug.memory_stats()["limit"] is None


def test_verify_runs_steps_as_they_are(task):
    def clips(batch):
        task.step(batch).backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1e-3)

    assert len(snug.verify(clips, task.batch, task.model, "90%")) > 15

    def scaled(batch):
        loss = task.step(batch)
        (loss / 4).backward()
        return loss

    assert len(snug.verify(scaled, task.batch, task.model, "90%")) > 15

    def auxiliary(batch):
        task.model[0].weight.square().sum().backward()
        return task.step(batch)

    with pytest.raises(snug.UsageError, match="another"):
        snug.verify(auxiliary, task.batch, task.model, "90%")
    with pytest.raises(snug.UsageError, match="it returned None"):
        snug.verify(lambda b: None, task.batch, task.model, "90%")


def test_a_recording_that_does_not_fit_leaves_no_trace(task):
    before = {k: v.clone() for k, v in task.model.state_dict().items()}
    with pytest.raises(snug.DoesNotFit):
        snug.fit(task.step, task.batch, budget="1MiB")
    assert all(torch.equal(v, before[k]) for k, v in task.model.state_dict().items())

    def fails(batch):
        task.model(batch[0])
        raise Interrupted

    with pytest.raises(Interrupted):
        snug.fit(fails, task.batch, budget="1GiB")
    assert all(torch.equal(v, before[k]) for k, v in task.model.state_dict().items())


def test_a_plan_does_not_keep_the_model_alive():
    task = Task()
    plan = snug.plan(task.step, task.batch)
    gc.collect()
    with_model = snug.memory_stats()["allocated"]
    del task
    gc.collect()
    assert snug.memory_stats()["allocated"] < with_model - 4 * 64 * 64 * 6
    assert plan.unplanned_peak > 0


def test_other_wrappers_of_backward_stay(task):
    before = torch.Tensor.backward
    calls = []

    def wrapper(self, *args, **kwargs):
        calls.append(1)
        return before(self, *args, **kwargs)

    torch.Tensor.backward = wrapper
    try:
        snug.fit(task.step, task.batch, budget="1GiB").close()
        assert torch.Tensor.backward is wrapper
        task.step(task.batch).backward()
        assert calls
    finally:
        torch.Tensor.backward = before


def test_errors_of_the_program_with_names_like_ours(task):
    class Odd(Exception):
        _details = "mine"

    def fails(batch):
        task.model(batch[0])
        raise Odd("still mine")

    with pytest.raises(Odd, match="still mine"):
        snug.fit(fails, task.batch, budget="1GiB")


def test_out_of_budget_goes_to_another_process():
    import pickle

    snug.set_memory_limit(snug.memory_stats()["allocated"] + (1 << 20))
    try:
        with pytest.raises(snug.OutOfBudget) as caught:
            torch.zeros(64 << 20)
    finally:
        snug.set_memory_limit(None)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.requested == caught.value.requested


def test_recording_leaves_gradients_that_a_function_hides():
    """A reentrant checkpoint's parameters are not in the loss's own graph."""
    import torch.utils.checkpoint as tc

    model, x = mlp(dropout=0.0), torch.randn(64, 64, requires_grad=True)

    def step(batch):
        return tc.checkpoint(model, batch, use_reentrant=True).square().mean()

    step(x).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    with snug.fit(step, x, budget="1GiB") as session:
        assert all(p.grad is None for p in model.parameters())
        session.backward(x)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain))


def test_recording_runs_no_optimizer_in_backward(task):
    parameters = list(task.model.parameters())
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in parameters}
    steps = []

    def update(p):
        steps.append(p)
        optimizers[p].step()
        p.grad = None

    for p in parameters:
        p.register_post_accumulate_grad_hook(update)
    before = [p.detach().clone() for p in parameters]
    with snug.fit(task.step, task.batch, budget="1GiB") as session:
        assert not steps
        assert all(torch.equal(p, b) for p, b in zip(parameters, before))
        session.backward(task.batch)
    assert len(steps) == len(parameters) and not any(torch.equal(p, b) for p, b in zip(parameters[:2], before))


def test_a_session_holds_no_activation(task):
    """What a model detaches and asks gradients for is no parameter, though a leaf of the loss's graph."""
    frozen = nn.Embedding(100, 64).requires_grad_(False)
    tokens = torch.randint(0, 100, (512,))

    def step(batch):
        h = frozen(batch).requires_grad_()
        return task.model(h).square().mean()

    gc.collect()
    before = snug.memory_stats()["allocated"]
    with snug.fit(step, tokens, budget="1GiB") as session:
        assert snug.memory_stats()["allocated"] == before
        session.backward(tokens)


def test_the_plan_is_that_of_the_step_that_ran_last(task):
    x, y = task.batch
    short = (x[:64], y[:64])
    floors = {}
    for batch in (task.batch, short):
        floors[len(batch[0])] = snug.plan(task.step, batch).floor
    with snug.fit(task.step, task.batch, budget="70%") as session:
        for _ in range(3):
            session.backward(short)
            for p in task.model.parameters():
                p.grad = None
        plan = session.plan
    assert abs(plan.floor - floors[64]) < abs(plan.floor - floors[512])
    assert plan.floor <= plan.curve(3)[-1][0] <= max(plan.unplanned_peak * 17 // 16, plan.floor)
    assert f"{snug.format_bytes(plan.floor)}" in str(plan)


def test_a_share_is_recorded_without_another_sessions_limit(task):
    x, y = task.batch
    with snug.fit(task.step, (x[:32], y[:32]), budget="100%") as small:
        limit = small.plan.budget
        assert snug.memory_stats()["limit"] == limit
        assert snug.plan(task.step, task.batch).unplanned_peak > limit
        assert snug.memory_stats()["limit"] == limit
        with snug.fit(task.step, task.batch, budget="60%") as large:
            assert large.plan.budget > limit
            small.close()  # the older one goes first
            assert snug.memory_stats()["limit"] == large.plan.budget
    assert snug.memory_stats()["limit"] is None


def test_the_device_is_found_inside_of_what_batches_come_in():
    import collections
    import dataclasses

    from snug.devices import device_named, device_of

    @dataclasses.dataclass
    class Batch:
        tokens: torch.Tensor

    class Plain:
        def __init__(self, tokens):
            self.tokens = tokens

    tokens = torch.empty(1, device="meta")
    for batch in (tokens, {"a": [tokens]}, collections.UserDict(a=tokens), Batch(tokens), Plain({"b": (1, tokens)})):
        assert device_of(None, batch) == "meta", batch
    assert device_of(None, Batch(torch.ones(1, device="cpu"))) == "cpu" and device_of("cpu", tokens) == "cpu"
    with pytest.raises(snug.UsageError, match="names no device"):
        device_named("toaster")
