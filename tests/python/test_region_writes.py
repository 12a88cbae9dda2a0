"""Regions around what writes in place out of ATen's sight: custom operators, versions raised by hand, compiled code."""

import pytest
import torch
from conftest import only_on_the_cpu
from torch import nn

import snug


@torch.library.custom_op("snug_tests::double_", mutates_args={"h"})
def double_(h: torch.Tensor) -> None:
    h.mul_(2)


@torch.library.custom_op("snug_tests::fill_", mutates_args={"to"})
def fill_(x: torch.Tensor, to: torch.Tensor) -> None:
    to.copy_(x)


def test_custom_operators_that_write_their_arguments_are_replayed():
    x = torch.linspace(-1, 1, 256).requires_grad_()

    def program():
        h = x.sin().detach()
        double_(h)
        double_(h)
        to = torch.zeros_like(x)
        fill_(h.cos(), to)
        return (h * x * to).exp().sum()

    expected = torch.autograd.grad(program(), x)[0]
    with snug.Region(snug.Recompute()) as region:
        loss = program()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert region.opaque_values == [] and region.replayed_ops > 5


@torch.library.custom_op("snug_tests::rotate_", mutates_args={"q", "k"})
def rotate_(q: torch.Tensor, k: torch.Tensor) -> None:
    q.mul_(2)
    k.mul_(3)


def test_custom_operators_may_write_two_views_of_one_tensor():
    x = torch.linspace(-1, 1, 256).requires_grad_()

    def program():
        q, k = x.sin().detach().chunk(2)
        rotate_(q, k)
        return (q.exp() * k * x[:128]).sum()

    expected = torch.autograd.grad(program(), x)[0]
    with snug.Region(snug.Recompute()) as region:
        loss = program()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert region.opaque_values == []


def through_a_storage(h):
    torch.empty(0).set_(h.untyped_storage(), 0, h.shape, h.stride()).mul_(3)


def through_another_tensor(h):
    torch.empty(0).set_(h.detach()).mul_(3)


def of_the_storage(h):
    h.untyped_storage().fill_(0)


WRITES_BESIDE_THE_VERSION = [through_a_storage, through_another_tensor, of_the_storage]


@only_on_the_cpu("storages of PyTorch's own")
@pytest.mark.parametrize("write", WRITES_BESIDE_THE_VERSION)
def test_a_saved_result_that_is_written_through_its_storage_is_an_error(write):
    x = torch.linspace(-1, 1, 256).requires_grad_()
    with snug.Region(snug.Recompute()):
        h = (x * 2).sin()
        loss = (h * h).sum()
        write(h)
    with pytest.raises(snug.Error, match="modified in place since, in a way that its version does not"):
        loss.backward()


@only_on_the_cpu("storages of PyTorch's own")
@pytest.mark.parametrize("write", WRITES_BESIDE_THE_VERSION)
def test_a_result_may_be_written_through_its_storage_before_it_is_saved(write):
    x = torch.linspace(-1, 1, 256).requires_grad_()

    def program():
        h = (x * 2).sin().detach()
        write(h)
        return (h * x).exp().sum()

    expected = torch.autograd.grad(program(), x)[0]
    with snug.Region(snug.Recompute()) as region:
        loss = program()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert region.opaque_values == [] and region.replayed_ops > 2


@only_on_the_cpu("NumPy's memory")
def test_a_version_raised_by_hand_makes_a_value_of_its_own():
    x = torch.linspace(-1, 1, 256).requires_grad_()

    def program():
        h = x.sin().detach()
        before = h.exp()
        h.numpy()[:] *= 2
        torch.autograd.graph.increment_version(h)
        return (h.exp() * before * x).sin().sum()

    expected = torch.autograd.grad(program(), x)[0]
    with snug.Region(snug.Recompute()) as region:
        loss = program()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert len(region.opaque_values) == 1 and "aten::sin" in region.opaque_values[0]


@pytest.mark.long
@only_on_the_cpu("a compiler")
def test_results_of_compiled_code_are_kept():
    """Its kernels write over what operators made, the product of a layer among it."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 8))
    compiled, x = torch.compile(model), torch.randn(512, 64)
    scale = torch.ones(64, requires_grad=True)

    def step(batch):
        for _ in range(8):
            batch = (batch * scale).sin()
        return compiled(batch).tanh().square().mean()

    def gradients(run):
        model.load_state_dict(start)
        model.zero_grad()
        scale.grad = None
        run()
        return [p.grad.clone() for p in [scale, *model.parameters()]] + [b.clone() for b in model.buffers()]

    start = {k: v.clone() for k, v in model.state_dict().items()}
    gradients(lambda: step(x).backward())  # compiles
    plain = gradients(lambda: step(x).backward())

    def in_region():
        with snug.Region(snug.Recompute()) as region:
            loss = step(x)
        loss.backward()
        assert region.replayed_ops > 0  # what is around it

    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(in_region)))
    held = [b.clone() for b in model.buffers()]
    with snug.fit(step, x, budget="1GiB", strategy="selective(aten::tanh)") as session:
        assert all(torch.equal(a, b) for a, b in zip(held, model.buffers()))  # its running statistics among it
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(lambda: session.backward(x))))
        assert session.last_step.replayed_ops > 0


def test_hidden_writes_of_an_operator_of_ones_own_are_declared():
    with torch.library._scoped_library("snug_test_declared", "DEF") as library:
        library.define("times_calls(Tensor x, Tensor calls) -> Tensor")

        def times_calls(x, calls):
            calls.data += 1
            return x * calls

        library.impl("times_calls", times_calls, "CompositeExplicitAutograd")
        weight = torch.rand(4, requires_grad=True)

        def calls_after_a_replay():
            calls = torch.zeros(1)
            with snug.Region(snug.Recompute()) as region:
                loss = (weight * torch.ops.snug_test_declared.times_calls(torch.ones(4), calls).sin()).sum()
            weight.grad = None
            loss.backward()
            assert region.replayed_ops > 1
            return calls.item()

        snug.declare_operator(torch.ops.snug_test_declared.times_calls, writes=[1])
        assert calls_after_a_replay() == 1
        assert torch.equal(weight.grad, torch.ones(4).sin())
    snug.declare_operator(double_, writes=[0])  # what torch.library.custom_op returns
    with pytest.raises(snug.UsageError, match="no tensor is argument 5"):
        snug.declare_operator(double_, writes=[5])
    with pytest.raises(snug.UsageError, match="is not the name of an operator"):
        snug.declare_operator("times_calls")
    with pytest.raises(snug.UsageError, match="at -1"):
        snug.declare_operator("snug_test_declared::times_calls", writes=[-1])


def test_a_declaration_of_an_operator_of_pytorch_adds_to_what_is_known():
    norm, x = torch.nn.BatchNorm1d(8), torch.randn(32, 8)
    w = torch.randn(8, 8, requires_grad=True)
    snug.declare_operator("aten::native_batch_norm", draws=False)
    norm((x @ w)).sin().sum().backward()
    expected, w.grad = w.grad, None
    norm.reset_running_stats()
    with snug.Region(snug.Recompute()):
        loss = norm(x @ w).sin().sum()
    loss.backward()
    assert torch.equal(w.grad, expected) and norm.num_batches_tracked == 1
