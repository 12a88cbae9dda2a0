"""Custom operators and autograd functions in regions and sessions, with and without autocast: every bit is that of plain
PyTorch, or the first backward pass raises an error that names the operator or says what wrote."""

import contextlib
import functools
import gc
import itertools
import re

import pytest
import torch
from conftest import only_on_the_cpu
from custom_operators import CALLS, CASES, STATE, Case, Network, bits, define, forget, operator, raw

import snug

pytestmark = [
    only_on_the_cpu("kernels that write to memory through NumPy"),
    pytest.mark.filterwarnings("ignore:own..turned. an autograd kernel was", "ignore:.torch.jit.script. is deprecated"),
]

REGIONS = {
    "recompute": snug.Recompute(),
    "twice": snug.Recompute(),
    "selective": snug.Selective(keep=["aten::mm"]),
    "keep": snug.Keep(),
}
SESSIONS = ("40%", "60%", "90%", "all recomputed")
FEW, SEVERAL = 3, 4  # layers: several where a plan has to have a choice
# Percent of the unplanned peak that plans of a case with so many layers need, as far as is known.
least: dict[tuple[Case, int], float] = {}


@pytest.fixture(autouse=True)
def one_thread():
    """Steps are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    forget()


@pytest.fixture
def few_objects(monkeypatch):
    """fit looks through all objects of the process for gradients, which takes longer than the rest of a test."""
    monkeypatch.setattr(gc, "get_objects", lambda: [])


def run(net, step_and_backward, left=None):
    """Adds to `left` what each of two steps leaves: the loss, gradients and everything else that it may change. An update
    follows each."""
    left = left if left is not None else []
    for batch in net.batches:
        loss = step_and_backward(batch)
        left.append({"loss": bits(loss), "gradients": net.gradients(), **net.state()})
        net.update()
        left[-1]["after"] = net.state()["parameters"]
    return left


@functools.cache
def plain(case, autocast, layers, passes=1):
    """What plain PyTorch leaves, and how often the counted operator has run."""
    net = Network(case, autocast, layers)

    def step(batch):
        loss = net.step(batch)
        for i in range(passes):
            loss.backward(retain_graph=i + 1 < passes)
        return loss

    net.restore()
    net.plain = True
    return run(net, step), CALLS[case.counts]


def differences(one, other):
    pairs = enumerate(zip(one, other, strict=True))
    return [f"step {i + 1}: {what}" for i, (a, b) in pairs for what in a if a[what] != b[what]]


def cases(places):
    """Every case with and without autocast in each of the places, if that means anything.

    Planning takes most of the time: every second case has one of the budgets in turn, each has regions with or without
    autocast, and make test-long has all.
    """
    chosen = []
    budgets = [(autocast, place) for place in places if place.endswith("%") for autocast in (False, True)]
    for (i, case), autocast, place in itertools.product(enumerate(CASES), (False, True), places):
        is_broken = bool(case.broken) and place in case.broken_in
        if autocast and (not case.autocast or place == "twice") or place == "twice" and not case.repeats:
            continue
        if case.broken and place.endswith("%") and not is_broken:
            continue
        marks = [pytest.mark.xfail(strict=True, reason=case.broken)] if is_broken else []
        if place.endswith("%"):
            is_in_turn = i % 2 == 0 and (autocast, place) == budgets[i // 2 % len(budgets)]
        else:
            is_in_turn = autocast == (case.autocast and i % 2 == 1)
        if not is_in_turn or (place == "twice" and case.counts is not None):
            marks.append(pytest.mark.long)
        name = f"{case.name}-{'autocast' if autocast else 'fp32'}-{place}"
        chosen.append(pytest.param(case, autocast, place, id=name, marks=marks))
    return chosen


@contextlib.contextmanager
def everything_recomputed():
    """Demands that every result be dropped, whatever a plan says."""
    with snug.Region(lambda op: snug.Choice.MustRecompute):
        yield


@pytest.mark.parametrize("case, autocast, place", cases(REGIONS))
def test_in_a_region(case, autocast, place):
    net = Network(case, autocast, FEW)
    passes = 2 if place == "twice" else 1
    expected, calls = plain(case, autocast, FEW, passes)
    replayed = []

    def step(batch):
        with snug.Region(REGIONS[place], verify_replay=True) as region:
            loss = net.step(batch)
        for i in range(passes):
            loss.backward(retain_graph=i + 1 < passes)
        replayed.append(region.replayed_ops)
        return loss

    net.restore()
    before = net.state()["parameters"]
    is_replayed = place in ("recompute", "twice") or (place == "selective" and case.replayed_when_mm_is_kept)
    if case.error is not None and is_replayed:
        with pytest.raises(snug.Error, match=case.error):
            step(net.batches[0])
        assert net.state()["parameters"] == before
        return
    assert differences(expected, run(net, step)) == []
    if place == "keep":
        assert (replayed == [0, 0] and CALLS[case.counts] == calls) or not case.keeps
    else:
        assert min(replayed) > 0
    if place == "recompute" and case.counts is not None and case.replays is not None:
        assert calls > 0 and CALLS[case.counts] == calls + case.replays * net.layers * len(net.batches)


def fitted(net, step, place):
    """A session with the budget, or with the smallest that fits."""
    if place == "all recomputed":
        return snug.fit(step, net.batches[0], "100%", strategy="none")
    asked, key = float(place[:-1]), (net.case, net.layers)
    for _ in range(4):
        percent = min(max(asked, least.get(key, 0)), 100)
        try:
            session = snug.fit(step, net.batches[0], f"{percent:.1f}%")
        except snug.DoesNotFit as error:
            least[key] = 1.05 * percent * error.floor / error.budget
        else:
            least[key] = max(least.get(key, 0), 103 * session.plan.floor / session.plan.unplanned_peak)
            return session
    raise AssertionError(f"{percent} % do not fit")


@pytest.mark.parametrize("case, autocast, place", cases(SESSIONS))
def test_in_a_session(case, autocast, place, few_objects):
    net = Network(case, autocast, SEVERAL if place == "40%" else FEW)
    expected, calls = plain(case, autocast, net.layers)
    net.restore()
    before = net.state()

    def step(batch):
        if place != "all recomputed":
            return net.step(batch)
        with everything_recomputed():
            return net.step(batch)

    left, reports, ran_again, failed = [], [], [], ""

    def step_and_backward(batch):
        CALLS.clear()
        try:
            return session.backward(batch)
        finally:
            reports.append(session.last_step)
            ran_again.append(CALLS[case.counts] - calls // len(net.batches))

    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(fitted(net, step, place))
            if case.undone:
                assert differences([before], [net.state()]) == [] and not any(net.gradients())
            net.restore()
            run(net, step_and_backward, left)
        except snug.Error as error:
            assert case.error is not None and re.search(case.error, str(error)), error
            failed = str(error)
        if failed and reports:  # nothing is trained by the step, and the next finds it, too
            assert net.state()["parameters"] == (left[-1]["after"] if left else before["parameters"])
            assert not any(net.gradients()) or "verify_replay" not in failed
            with pytest.raises(snug.Error, match=f"{case.error}|does not fit"):
                session.backward(net.batches[0])
    assert differences(expected[: len(left)], left) == []  # where the first step did not replay what the second did
    assert not any(ran_again[: len(left)]) or case.error is None
    if failed:
        return
    assert place != "all recomputed" or case.error is None
    if place == "all recomputed":
        assert min(r.replayed_ops for r in reports) > 0 and reports[0].compared_values > 0
    if case.replays == 0 and case.counts is not None:
        assert ran_again == [0, 0]


# --- what the cases have no place for ---------------------------------------------------------------------------------


FAILURES = {}  # what the next calls of the operator raise


@operator("failing", lambda ctx, g: g * 2)
def failing(x: torch.Tensor) -> torch.Tensor:
    if FAILURES.get(CALLS["failing"]):
        raise FAILURES[CALLS["failing"]]
    return x * 2


@pytest.mark.parametrize("where", ["region", "session"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_replay_that_an_operator_ends_with_an_exception_can_run_again(error, where, few_objects):
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    x = torch.randn(1024, 64)

    def step(b, around=everything_recomputed):
        with around():
            for w in weights:
                b = torch.tanh(torch.nn.functional.dropout(failing(b @ w), 0.3, True))
            return b.square().mean()

    def left():
        return [bits(w.grad) for w in weights], bits(torch.get_rng_state())

    def start():
        CALLS.clear()
        torch.manual_seed(7)

    FAILURES.clear()
    start()
    step(x, contextlib.nullcontext).backward()
    expected = left()
    for w in weights:
        w.grad = None
    with contextlib.ExitStack() as stack:
        if where == "session":
            session = stack.enter_context(snug.fit(step, x, "100%", strategy="none"))
            start()
            backward = lambda: session.backward(x)  # noqa: E731
        else:
            start()
            backward = step(x).backward
        FAILURES[len(weights) + 2] = error  # the second operator that is replayed
        with pytest.raises(error):
            backward()
        assert CALLS["failing"] == len(weights) + 2 and not any(w.grad is not None for w in weights)
        FAILURES.clear()
        if where == "session":
            start()
        backward()
        assert left() == expected


@pytest.mark.parametrize("where", ["region", "session"])
def test_a_write_to_a_part_that_another_node_saves_is_found(where, few_objects):
    """As of an attention layer that saves q, k and v, which lie in one memory."""
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    x = torch.randn(1024, 64)

    def step(b):
        with everything_recomputed():
            total = 0
            for w in weights:
                h = b @ w
                raw(h)[:, 32:] = 0
                q, k = h.chunk(2, 1)
                total = total + q.sin().mean() + k.sin().mean()
            return total

    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(snug.Error, match="aten::mm"))
        if where == "session":
            stack.enter_context(snug.fit(step, x, "100%", strategy="none")).backward(x)
        else:
            with snug.Region(snug.Recompute(), verify_replay=True):
                loss = step(x)
            loss.backward()


def test_a_write_that_no_version_tells_of_is_found_in_a_later_step(few_objects):
    """As of a kernel that clips activations, when nothing is to be clipped in the first step."""
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    small, large = torch.randn(1024, 64) / 1e6, torch.randn(1024, 64)

    def step(b):
        with everything_recomputed():
            for w in weights:
                b = b @ w
                raw(b).clip(-4, 4, out=raw(b))
                b = torch.tanh(b)
            return b.square().mean()

    with snug.fit(step, small, "100%", strategy="none") as session:
        session.backward(small)
        assert session.last_step.compared_values > 0
        values = session.last_step.compared_values
        with pytest.raises(snug.Error, match="compared before, at this place, it had the same bits"):
            for _ in range(values):  # one is compared in each step
                session.backward(large)


@define("own_counter(Tensor x) -> Tensor")
def own_counter(x):
    return STATE["counters"]


@pytest.mark.xfail(strict=True, reason="a replayed write goes to the memory that the operator returned")
def test_a_replay_leaves_a_buffer_alone_that_an_operator_returns(few_objects):
    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    STATE["counters"] = torch.zeros(2)
    with snug.Region(snug.Recompute(), verify_replay=True):
        counters = own_counter(x)
        counters.add_(1)
        loss = ((x @ w) * counters[0].clone()).sum()
    with contextlib.suppress(snug.Error):
        loss.backward()
    assert STATE["counters"].tolist() == [1, 1]


class OneByOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]


def test_what_a_function_has_saved_is_recomputed_once_however_often_it_looks():
    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    with snug.Region(snug.Recompute()):
        loss = OneByOne.apply(failing(x @ w), failing(x @ w)).sum()
    CALLS.clear()
    loss.backward()
    assert CALLS["failing"] == 2
