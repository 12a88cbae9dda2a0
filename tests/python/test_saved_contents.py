"""Contents of saved tensors that a program treats in unusual ways: several views, freed storages, removed operators."""
import pytest
import torch

import snug
from conftest import only_on_the_cpu
from plain_and import in_region, leaf, plain_and

pytestmark = only_on_the_cpu("kernels that write to memory through NumPy")


@pytest.mark.parametrize("first", ["written", "untouched"])
def test_every_saved_view_of_a_value_is_compared(first):
    x, w = torch.randn(4, 64), leaf(64, 64)
    with snug.Region(snug.Recompute()):
        h = x @ w
        h.detach().numpy()[:, 32:] = 0
        parts = [h.cos().sum(), h[:, :32].sin().sum()]
        loss = parts[0] + parts[1] if first == "written" else h[:, :32].sin().sum() + h.cos().sum()
    del h  # what the program still has is not recomputed
    with pytest.raises(snug.Error, match="aten::mm.*made other bits"):
        loss.backward()


def test_a_value_that_several_operators_save_is_compared_once():
    x, w = torch.randn(256, 64), leaf(64, 64)

    def step(b):
        h = torch.tanh(b @ w)
        first = h.sin()  # saves h
        return (first + h[:, :32].cos().sum() + h.exp()).square().mean()  # and so does what comes later

    with snug.fit(step, x, snug.plan(step, x).floor) as session:
        compared = []
        for _ in range(3):
            w.grad = None
            session.backward(x)
            compared.append(session.last_step.compared_values)
            assert session.last_step.replayed_ops > 0
    assert compared[0] > 1 and compared[1:] == [1, 1]


def test_moved_values_are_compared_in_the_first_step_and_then_one_in_each():
    weights = [leaf(64, 64) for _ in range(4)]

    def step(b):
        for w in weights:
            b = torch.tanh(b @ w)
        return b.square().mean()

    x = torch.randn(256, 64)
    plan = snug.plan(step, x, "100%", host_budget="1GiB", strategy="offload(1)")
    with snug.fit(step, x, plan=plan, host_budget="1GiB") as session:
        compared = []
        for _ in range(3):
            for w in weights:
                w.grad = None
            session.backward(x)
            compared.append(session.last_step.compared_values)
            assert session.last_step.replayed_ops == 0
        assert compared[0] > 1 and compared[1:] == [1, 1]


def test_a_result_whose_storage_is_freed_in_the_forward_pass_is_recomputed():
    class Frees(torch.autograd.Function):
        """Frees its input, which nothing else in plain PyTorch needs, and makes its gradient of its result."""

        @staticmethod
        def forward(ctx, h):
            result = h.tanh()
            ctx.save_for_backward(result)
            h.untyped_storage().resize_(0)
            return result

        @staticmethod
        def backward(ctx, g):
            (result,) = ctx.saved_tensors
            return g * (1 - result * result)

    x, w = torch.randn(4, 16), leaf(16, 16)
    plain, planned = plain_and(
        lambda: Frees.apply(x @ w).sum(), [w], lambda run: in_region(run, snug.Selective(keep=["aten::mm"]))
    )
    assert plain == planned


def test_an_operator_that_is_removed_before_backward_is_named():
    library = torch.library.Library("saved_contents", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    x, w = torch.randn(4, 16), leaf(16, 16)
    with snug.Region(snug.Recompute()):
        with torch.no_grad():
            factor = torch.ops.saved_contents.twice(x)
        loss = (w * factor.sum()).sin().sum() + (factor @ w).sum()
    del factor
    library._destroy()
    with pytest.raises(snug.Error, match="saved_contents::twice has been removed"):
        loss.backward()


class LooksTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]


def test_a_node_that_looks_twice_has_its_tensors_recomputed_once():
    x, w = torch.randn(4, 16), leaf(16, 16)

    def run():
        h = x @ w
        return LooksTwice.apply(h.sin(), h.cos()).sum()

    regions = []
    plain, planned = plain_and(run, [w], lambda f: regions.append(in_region(f)))
    assert plain == planned and regions[0].replayed_ops == 3, "the product, its sine, its cosine"


def test_a_node_that_looks_a_second_time_sees_what_it_has_written():
    class WritesBetween(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            ctx.save_for_backward(h)
            return h * h

        @staticmethod
        def backward(ctx, g):
            ctx.saved_tensors[0].data.mul_(3)
            return g * ctx.saved_tensors[0]

    x, w = torch.randn(4, 16), leaf(16, 16)
    plain, planned = plain_and(lambda: WritesBetween.apply((x @ w).sin()).sum(), [w], in_region)
    assert plain == planned
