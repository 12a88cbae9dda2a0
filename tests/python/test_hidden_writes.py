"""Custom operators whose kernels write tensors that they were not given: counters, running averages, scratch memory."""

import numpy as np
import pytest
import torch
from conftest import allocated, only_on_the_cpu
from plain_and import leaf

import snug

pytestmark = only_on_the_cpu("budgets of the CPU's memory")

counter = torch.zeros(4)
mean = torch.zeros(64)
scratch = torch.zeros(64, 64)
of_numpy = np.zeros(1, np.float32)
generator = torch.Generator()
made_later: dict[str, torch.Tensor] = {}


@torch.library.custom_op("hidden_writes::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    counter.add_(1)
    return x * 2


@torch.library.custom_op("hidden_writes::centred", mutates_args=())
def centred(x: torch.Tensor) -> torch.Tensor:
    mean.lerp_(x.mean(0), 0.5)
    return x - mean


@torch.library.custom_op("hidden_writes::by_scratch", mutates_args=())
def by_scratch(x: torch.Tensor) -> torch.Tensor:
    torch.mul(x, 2, out=scratch)
    return scratch.clone()


@torch.library.custom_op("hidden_writes::by_temporaries", mutates_args=())
def by_temporaries(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    made.view(-1).add_(x.reshape(-1)).mul_(2)
    rows = torch.empty(len(x))
    torch.sum(made, 1, out=rows)
    return made


@torch.library.custom_op("hidden_writes::counted_backward", mutates_args=())
def counted_backward(g: torch.Tensor) -> torch.Tensor:
    counter.add_(1)
    return g * 2


@torch.library.custom_op("hidden_writes::forward_of_it", mutates_args=())
def forward_of_it(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("hidden_writes::counted_by_numpy", mutates_args=())
def counted_by_numpy(x: torch.Tensor) -> torch.Tensor:
    torch.from_numpy(of_numpy).add_(1)
    return x * 2


@torch.library.custom_op("hidden_writes::counted_in_a_tensor_of_its_own", mutates_args=())
def counted_in_a_tensor_of_its_own(x: torch.Tensor) -> torch.Tensor:
    if "counter" not in made_later:
        made_later["counter"] = torch.zeros(1)
    made_later["counter"].add_(1)
    return x * made_later["counter"]


@torch.library.custom_op("hidden_writes::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(x.shape, generator=generator)


noisy.register_autograd(lambda ctx, g: g.clone())
counted_in_a_tensor_of_its_own.register_autograd(lambda ctx, g: g.clone())
for operator in (counted, by_scratch, by_temporaries, counted_by_numpy):
    operator.register_autograd(lambda ctx, g: g * 2)
centred.register_autograd(lambda ctx, g: g.clone())
forward_of_it.register_autograd(lambda ctx, g: counted_backward(g))
STATE = (counter, mean, scratch)


def reset():
    for tensor in STATE:
        tensor.zero_()


def plain(steps, step, w):
    reset()
    w.grad = None
    for _ in range(steps):
        step()
    return [t.clone() for t in (w.grad, counter, mean)]


@pytest.mark.parametrize("operator", [counted, centred, by_scratch, by_temporaries, forward_of_it])
@pytest.mark.parametrize("reads", [pytest.param(False, marks=pytest.mark.long), True], ids=["", "the step reads it"])
def test_are_made_once_in_a_region_and_in_a_session(operator, reads):
    x, w = torch.randn(64, 64), leaf(64, 64)

    def loss():
        h = torch.tanh(x @ w)
        if reads:
            h = h + counter.sum() + mean
        h = operator(h).sin()
        if reads:
            h = h * (counter.sum() + mean + 1)
        return h.sin().square().mean()

    def regional():
        with snug.Region(snug.Recompute()) as region:
            found = loss()
        found.backward()
        assert region.replayed_ops > 0

    expected = plain(3, lambda: loss().backward(), w)
    found = plain(3, regional, w)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))

    for budget in ("100%", allocated() + (1 << 20)):
        reset()
        w.grad = None
        with snug.fit(lambda _: loss(), x, budget) as session:
            assert not counter.any() and not mean.any(), "fit leaves no trace"
            for _ in range(3):
                session.backward(x)
                assert session.last_step.followed_plan
        assert all(torch.equal(a, b) for a, b in zip(expected, (w.grad, counter, mean), strict=True))


@pytest.mark.parametrize("operator, is_replayed", [(by_temporaries, True), (counted, False)])
def test_only_what_writes_no_memory_of_others_is_replayed(operator, is_replayed):
    x, w = torch.randn(64, 64), leaf(64, 64)
    with snug.Region(snug.Recompute()) as region:
        found = operator(torch.tanh(x @ w)).sin().sum()
    found.backward()
    assert region.replayed_ops == (3 if is_replayed else 2)  # mm, tanh, and the operator


def test_who_says_that_an_operator_keeps_no_state_is_believed():
    x, w = torch.randn(64, 64), leaf(64, 64)
    snug.declare_operator("hidden_writes::by_scratch", keeps_state=False)
    try:
        with snug.Region(snug.Recompute()) as region:
            found = by_scratch(torch.tanh(x @ w)).sin().sum()
        found.backward()
        assert region.replayed_ops == 3
    finally:
        snug.declare_operator("hidden_writes::by_scratch", keeps_state=True)


@pytest.mark.parametrize("operator", [counted_by_numpy, counted_in_a_tensor_of_its_own, noisy])
def test_other_states_are_kept_too(operator):
    x, w = torch.randn(64, 64), leaf(64, 64)

    def loss():
        return operator(torch.tanh(x @ w)).sin().square().mean()

    def regional():
        with snug.Region(snug.Recompute()):
            found = loss()
        found.backward()

    def run(steps, step):
        of_numpy[0] = 0
        generator.manual_seed(1)
        made_later.clear()
        w.grad = None
        for _ in range(steps):
            step()
        return [w.grad.clone(), torch.tensor(of_numpy), generator.get_state(), *(t.clone() for t in made_later.values())]

    expected = run(3, lambda: loss().backward())
    assert all(map(torch.equal, expected, run(3, regional)))


@pytest.mark.parametrize("operator", [counted_by_numpy, noisy])
def test_recording_undoes_other_states(operator):
    x, w = torch.randn(64, 64), leaf(64, 64)
    of_numpy[0] = 0
    generator.manual_seed(1)
    before = generator.get_state()
    snug.fit(lambda _: operator(torch.tanh(x @ w)).sin().square().mean(), x, "100%").close()
    assert of_numpy[0] == 0 and torch.equal(generator.get_state(), before)
