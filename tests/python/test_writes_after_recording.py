"""Tensors that are written after the region or step that saved them: backward reads what plain autograd reads, wherever snug has
another copy of the contents."""

import contextlib

import pytest
import torch
from conftest import only_on_the_cpu
from plain_and import bits

import snug
from snug import _core

pytestmark = only_on_the_cpu("kernels that write to memory through NumPy")

lib = torch.library.Library("after_recording", "DEF")
lib.define("set_some_(Tensor(a!) x) -> ()")
lib.define("triple_(Tensor(a!) x) -> ()")


def set_some(x):
    x.numpy()[100:104] = 100.0


def triple(x):
    x.numpy()[...] *= 3  # as a kernel writes through data_ptr


lib.impl("set_some_", set_some, "CPU")
lib.impl("triple_", triple, "CPU")

REGIONS = {
    "recompute": lambda: snug.Region(snug.Recompute()),
    "keep": lambda: snug.Region(snug.Keep()),
    "offload": lambda: snug.Region(snug.Offload(min_bytes=1)),
}


def read_by_one(x, w):
    y = (x * 1.0).exp()
    return (y * w).sum(), y


def read_for_another_first(x, w):
    y = (x * 1.0).exp()
    z = y * w  # to make z again, y is made again
    return z.sin().sum(), y


def saved_under_another_version(x, w):
    y = (x.detach() * 1.0).exp()
    return (y.data * w).sum(), y


WRITES = {"data": lambda y: y.data.mul_(3), "kernel": lambda y: torch.ops.after_recording.triple_(y.detach())}


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("step", [read_by_one, read_for_another_first, saved_under_another_version])
def test_what_the_program_has_is_read_from_there(region, write, step):
    found = []
    for around in (contextlib.nullcontext, region):
        x, w = torch.linspace(0.1, 1, 8).requires_grad_(), torch.ones(8, requires_grad=True)
        with around():
            loss, y = step(x, w)
        write(y)
        loss.backward()
        found.append(bits([w.grad, x.grad]))
    assert found[0] == found[1]


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_write_that_raises_another_version(region):
    found = []
    for around in (contextlib.nullcontext, region):
        x, w = torch.linspace(0.1, 1, 8), torch.ones(8, requires_grad=True)
        with around():
            loss, y = saved_under_another_version(x, w)
        y.add_(1)
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


class ReturnsWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, y):
        ctx.save_for_backward(y)
        return (p * y).sum()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None


ALIASES = {
    "data": lambda y: y.data,
    "detach": lambda y: y.detach(),
    "set": lambda y: torch.empty(0).set_(y.untyped_storage(), 0, (8,)),
}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
@pytest.mark.parametrize("is_written", [False, True])
def test_a_gradient_is_not_the_programs_memory_while_the_graph_is_kept(alias, is_written):
    for around in (contextlib.nullcontext, REGIONS["recompute"]):
        p, x = torch.ones(8, requires_grad=True), torch.linspace(0.1, 1, 8)
        with around():
            y = (x * 1.0).exp()
            loss = ReturnsWhatItSaved.apply(p, y)
            if is_written:
                torch.ops.after_recording.triple_(y)
        state = alias(y)
        before = state.clone()
        del y
        for _ in range(2):
            p.grad = None
            loss.backward(retain_graph=True)
            assert torch.equal(p.grad, before)
            p.grad.zero_()
            assert torch.equal(state, before)


OPTIMIZERS = {
    "amp": lambda y: torch._amp_foreach_non_finite_check_and_unscale_([y], torch.zeros(1), torch.full((1,), 0.5)),
    "fused": lambda y: torch._fused_sgd_(
        [y], [torch.ones(8)], [], weight_decay=0.0, momentum=0.0, lr=1.0, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=True,
    ),
}


@pytest.mark.parametrize("write", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_operators_of_optimizers_in_another_region(write):
    found = []
    for around in (contextlib.nullcontext, REGIONS["recompute"]):
        w, x = torch.ones(8, requires_grad=True), torch.linspace(0.1, 1, 8)
        with around():
            y = (x * 1.0).exp()
            loss = (y * w).sum()
        with around(), torch.no_grad():
            write(y)
        assert y._version == 0
        del y
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


@pytest.mark.parametrize("keep", [snug.Keep(), snug.Selective(keep=["aten::mm"])])
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("argument", ["written", "maybe_written"])
def test_a_kernel_in_backward_that_is_told_to_write_what_was_kept(keep, is_there, argument):
    """Launches of Triton kernels count as writes to all that they are given, most of which they only read."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            ctx.save_for_backward(h)
            return h * 2

        @staticmethod
        def backward(ctx, gradient):
            with _core.Unrecorded(**{"written": [], argument: [*ctx.saved_tensors, gradient]}):
                return gradient * 2

    found = []
    for around, inner in ((contextlib.nullcontext, contextlib.nullcontext), (lambda: snug.Region(keep), REGIONS["recompute"])):
        torch.manual_seed(0)
        x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
        with around():
            h = x @ w
            with inner():
                a = h.sin().cos()
            b = Doubled.apply(h)
            loss = a.sum() + (b * 0.01).sin().sum()
        if not is_there:
            del h, a, b
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


def test_a_write_to_what_was_kept_and_cannot_be_made_again():
    """Its operator's inputs have gone when the region was over."""
    found = []
    for around, inner in ((contextlib.nullcontext, contextlib.nullcontext), (REGIONS["keep"], REGIONS["recompute"])):
        torch.manual_seed(0)
        w = torch.randn(64, 64, requires_grad=True)
        with around():
            h = torch.randn(64, 64) @ torch.randn(64, 64)
            with inner():
                loss = (h.sin() * w).sum()
        with REGIONS["recompute"]() if inner is not contextlib.nullcontext else contextlib.nullcontext():
            torch.ops.after_recording.triple_(h)
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


@pytest.mark.parametrize("argument, in_another", [("written", False), ("written", True), ("maybe_written", False)])
def test_a_raw_kernel_that_writes_a_saved_leaf(argument, in_another):
    found = []
    for around in (contextlib.nullcontext, REGIONS["recompute"]):
        w, x = torch.ones(8, requires_grad=True), torch.linspace(0.1, 1, 8)

        def kernel(x):
            with _core.Unrecorded(**{"written": [], argument: [x]}):  # as graphs of torch.compile and Triton kernels are
                x.detach().numpy()[:] = 7

        with around():
            (x * w).sin().sum()
            loss = (x * w).sum()
            if not in_another:
                kernel(x)
        with around():
            if in_another:
                kernel(x)
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


def test_a_raw_kernel_that_writes_a_saved_result():
    found = []
    for around in (contextlib.nullcontext, REGIONS["recompute"]):
        w, x = torch.ones(512, requires_grad=True), torch.linspace(0.1, 1, 512)
        with around():
            h = x.sin()
            loss = (h * w).sum()
            with _core.Unrecorded([h]):
                h.numpy()[:] = 7
        del h
        loss.backward()
        found.append(bits([w.grad]))
    assert found[0] == found[1]


def test_a_write_to_what_was_kept_and_two_replays_read():
    """To make it again would take what no replay is counted to read."""
    found = []
    for around, inner in ((contextlib.nullcontext, contextlib.nullcontext), (REGIONS["keep"], REGIONS["recompute"])):
        torch.manual_seed(0)
        x, w = torch.randn(64, 64), torch.randn(64, 64)
        p, q = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
        with around():
            h = x @ w
            with inner():
                a = (h + p).sin()
            with inner():
                b = (h + q).cos()
            loss = a.sum() + b.sum()
        with around():
            torch.ops.after_recording.triple_(h)
        loss.backward()
        found.append(bits([p.grad, q.grad]))
    assert found[0] == found[1]


def test_a_write_that_raises_the_version_of_what_was_kept_for_replays():
    found = []
    for around, inner in ((contextlib.nullcontext, contextlib.nullcontext), (REGIONS["keep"], REGIONS["recompute"])):
        torch.manual_seed(0)
        x, w, p = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
        with around():
            h = x @ w
            with inner():
                loss = (h + p).sin().sum()
        with _core.Unrecorded([h]):  # as a graph of torch.compile, behind which its version rises
            h.detach().numpy()[...] *= 3
        torch.autograd.graph.increment_version(h)
        loss.backward()
        found.append(bits([p.grad]))
    assert found[0] == found[1]


def test_weights_that_are_updated_after_backward_are_not_copied():
    w = torch.zeros(1 << 20, requires_grad=True)
    with snug.Region(snug.Recompute(), verify_replay=False) as region:
        loss = (torch.ones(1 << 20) * w).sin().sum()
    loss.backward()
    before = snug.memory_stats("cpu")["allocated"]
    with _core.Unrecorded([w.detach()]):
        w.detach().numpy()[...] = 1
    assert snug.memory_stats("cpu")["allocated"] - before < 1 << 20
    del region, loss


def test_a_pass_within_a_pass_lets_go_of_nothing_of_the_outer_one():
    class Nested(ReturnsWhatItSaved):
        aux = None

        @staticmethod
        def backward(ctx, gradient):
            saved, = ctx.saved_tensors
            with torch.enable_grad():
                torch.autograd.grad(*Nested.aux, retain_graph=True)
            return saved, None

    for around in (contextlib.nullcontext, REGIONS["recompute"]):
        p, x, q = torch.ones(8, requires_grad=True), torch.linspace(0.1, 1, 8), torch.ones(8, requires_grad=True)
        with around():
            y = (x * 1.0).exp()
            Nested.aux = (q * y).sum(), q
            loss = Nested.apply(p, y)
        state = y.detach()
        before = state.clone()
        del y
        loss.backward(retain_graph=True)
        p.grad.zero_()
        assert torch.equal(state, before)


def test_a_write_that_is_tried_again_after_there_was_no_memory_to_keep_what_it_writes():
    gradients = []
    for limited in (False, True):
        b, w = torch.linspace(0.1, 1, 1 << 20), torch.ones(1 << 20, requires_grad=True)
        with snug.Region(snug.Recompute(), verify_replay=False):
            loss = (b.sin() * w).sum()
        with REGIONS["recompute"]():
            if limited:
                snug.release_cached("cpu")
                snug.set_memory_limit(snug.memory_stats("cpu")["mapped"] + (1 << 20))
                try:
                    with pytest.raises(snug.OutOfBudget):
                        torch.ops.after_recording.set_some_(b)
                finally:
                    snug.set_memory_limit(None)
            torch.ops.after_recording.set_some_(b)
        loss.backward()
        gradients.append(w.grad)
    assert torch.equal(gradients[0], torch.linspace(0.1, 1, 1 << 20).sin())
    assert torch.equal(gradients[1], gradients[0])
