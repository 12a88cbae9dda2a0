"""Saved tensors: what a node writes to them or returns of them, and which object it gets. Gradients are plain PyTorch's, or
an error names what is wrong."""
import contextlib
import types
import weakref

import pytest
import torch

import snug
from conftest import only_on_the_cpu
from plain_and import bits, in_region, leaf, plain_and

pytestmark = only_on_the_cpu("kernels that write to memory through NumPy")


# --- writes that replays must not read -------------------------------------------------------------------------------


class WritesSaved(torch.autograd.Function):
    """Uses what it saved as scratch memory, as kernels written by hand do."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h * h

    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        return h.mul_(2).mul_(g)


@pytest.mark.parametrize("action", [snug.Recompute(), snug.Selective(keep=["aten::mm"]), snug.Keep()])
def test_a_node_that_writes_to_what_it_saved_spoils_no_other_gradient(action):
    x, w = torch.randn(4, 16) * 0.1, leaf(16, 16)

    def run():
        h = x @ w
        return h.exp().sum() + WritesSaved.apply(h).sum()  # exp saves its result, which is recomputed from h

    def around(f):
        with snug.Region(action):
            loss = f()
        loss.backward()

    plain, planned = plain_and(run, [w], around)
    assert plain == planned


def test_in_a_session_it_spoils_none_either():
    weights = [leaf(256, 256) for _ in range(6)]

    def step(b):
        total = 0
        for w in weights:
            h = b @ w * 0.05
            total = total + h.exp().mean() + WritesSaved.apply(h).mean()
            b = torch.tanh(h)
        return total

    for budget in ("90%", "80%", "70%"):
        assert snug.verify(step, torch.randn(2048, 256) * 0.1, weights, budget)


class GradientInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            inner = w.detach().requires_grad_()
            loss = (x @ inner).square().sum()
            (g,) = torch.autograd.grad(loss, inner)
        ctx.save_for_backward(g)
        return loss.detach()

    @staticmethod
    def backward(ctx, g):
        return None, ctx.saved_tensors[0]


@pytest.mark.parametrize("action", [snug.Keep(), snug.Recompute()])
def test_a_saved_tensor_that_a_node_returns_does_not_become_the_gradient_itself(action):
    x, w = torch.randn(4, 16), leaf(16, 16)
    with snug.Region(action):
        loss = GradientInForward.apply(x, w)
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert torch.equal(w.grad, once * 3)
    w.grad.zero_()
    loss.backward()
    assert torch.equal(w.grad, once)


def test_a_write_through_data_over_a_saved_result_is_refused():
    x, w = torch.randn(4, 16), leaf(16, 16)
    with snug.Region(snug.Recompute()):
        h = torch.relu(x @ w)
        loss = (h * h).sum()
        h.data.mul_(2)
    with pytest.raises(snug.Error, match="aten::relu.*modified in place since.*`.data`"):
        loss.backward()


def test_parts_of_a_result_may_be_written_with_counters_of_their_own():
    lstm = torch.nn.LSTM(16, 32, 2, bidirectional=True)
    x = torch.randn(7, 3, 16)
    plain, planned = plain_and(lambda: lstm(x)[0].square().sum(), list(lstm.parameters()), in_region)
    assert plain == planned


def write_with_numpy(h):
    h.detach().numpy()[:, ::2] = 0


@pytest.mark.parametrize("fill", [False, True], ids=["over a result", "into zeros"])
def test_a_write_that_pytorch_does_not_see_is_found_by_the_first_replay(fill):
    x, w = torch.randn(4, 16), leaf(16, 16)

    def region():
        with snug.Region(snug.Recompute()):
            h = x @ w
            if fill:
                out = torch.zeros_like(h)
                out.numpy()[...] = h.detach().numpy() ** 2
                return (h * out).sum()
            write_with_numpy(h)
            return (h * h).sum()

    with pytest.raises(snug.Error, match="zeros_like" if fill else "aten::mm"):
        region().backward()


class GoesBackwardThroughWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = (x * 3).sum()
        y.backward()
        return torch.zeros_like(g)


@pytest.mark.parametrize("kind", [torch.Tensor, type("Marked", (torch.Tensor,), {})])
def test_a_saved_tensor_has_the_history_that_it_was_saved_with(kind):
    found = []
    for around in (contextlib.nullcontext(), snug.Region(snug.Recompute())):
        w = leaf(4)
        with around:
            h = GoesBackwardThroughWhatItSaved.apply((w + 1).as_subclass(kind)).as_subclass(torch.Tensor)
            loss = h.sum()
        loss.backward()
        found.append(w.grad)
    assert torch.equal(*found) and found[0].any()


def test_in_a_session_the_first_step_finds_it_and_leaves_no_gradient():
    weights = [leaf(128, 128) for _ in range(6)]
    before = bits(weights)

    def step(b):
        for w in weights:
            b = b @ w
            write_with_numpy(b)
            b = torch.tanh(b)
        return b.square().mean()

    x = torch.randn(1024, 128)
    with snug.fit(step, x, "60%") as session:
        with pytest.raises(snug.Error, match="only operators of PyTorch lead to it, so something that PyTorch does not see"):
            session.backward(x)
        assert all(w.grad is None for w in weights) and bits(weights) == before


def test_the_first_step_of_a_kind_compares_all_values_and_each_further_step_one():
    weights = [leaf(128, 128) for _ in range(6)]

    def step(b):
        for w in weights:
            b = torch.tanh(b @ w)
        return b.square().mean()

    x = torch.randn(1024, 128)
    with snug.fit(step, x, "60%") as session:
        compared = []
        for _ in range(3):
            for w in weights:
                w.grad = None
            session.backward(x)
            compared.append(session.last_step.compared_values)
            assert session.last_step.replayed_ops > 0
        assert compared[0] > 1 and compared[1:] == [1, 1]
    for w in weights:
        w.grad = None
    with snug.fit(step, x, "60%", check=False) as session:
        session.backward(x)
        assert session.last_step.compared_values == 0 and session.last_step.replayed_ops > 0


def test_a_kernel_of_triton_is_a_write_to_its_tensors(monkeypatch):
    """Triton itself needs a GPU; its launches all go through JITFunction.run, which is played here."""
    module = types.ModuleType("triton.runtime.jit")

    class JITFunction:
        def run(self, *args, grid, warmup, **kwargs):
            (out,) = args
            out.detach().numpy()[...] *= 3

    module.JITFunction = JITFunction
    snug._raw_kernels._wrap_triton(module)
    x, w = torch.randn(4, 16), leaf(16, 16)

    def run():
        h = x @ w
        module.JITFunction().run(h, grid=(1,), warmup=False)
        return (h * h).sin().sum()

    plain, planned = plain_and(run, [w], in_region)
    assert plain == planned


# --- who a saved tensor is --------------------------------------------------------------------------------------------


class LinearIntoMainGrad(torch.autograd.Function):
    """As Megatron-LM's linear layers with gradient accumulation fusion."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if getattr(w, "main_grad", None) is not None:
            w.main_grad.add_(g.t() @ x)
            return g @ w, None
        return g @ w, g.t() @ x


def test_a_saved_parameter_is_the_parameter_itself():
    weights = [torch.nn.Parameter(torch.randn(64, 64) * 0.1) for _ in range(4)]
    x = torch.randn(256, 64, requires_grad=True)

    def step(b):
        for w in weights:
            b = torch.tanh(LinearIntoMainGrad.apply(b, w))
        return b.square().sum()

    def main_grads(run):
        for w in weights:
            w.main_grad, w.grad = torch.zeros(64, 64), None
        run()
        assert all(w.grad is None for w in weights)
        return bits([w.main_grad for w in weights])

    plain = main_grads(lambda: step(x).backward())
    with snug.fit(step, x, "95%") as session:
        assert main_grads(lambda: session.backward(x)) == plain
    assert main_grads(lambda: in_region(lambda: step(x))) == plain


def test_a_gradient_that_backward_writes_itself_stays():
    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            w.grad = g.t() @ x if w.grad is None else w.grad + g.t() @ x
            return g @ w, None

    x, w = torch.randn(4, 16, requires_grad=True), torch.nn.Parameter(torch.randn(16, 16))
    plain, planned = plain_and(lambda: torch.tanh(Direct.apply(x, w)).sum(), [w, x], in_region)
    assert plain == planned and plain[0][0] is not None


class Scaled(torch.Tensor):
    """A tensor with a method and an operator of its own."""

    def factor(self):
        return getattr(self, "scale", 1.0)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found + 1 if func is torch.Tensor.cos else found


class ReadsAttributes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, other):
        ctx.save_for_backward(h, other)
        return h * 2

    @staticmethod
    def backward(ctx, g):
        h, other = ctx.saved_tensors
        scale = getattr(h, "scale", 1.0)
        if isinstance(h, Scaled):
            scale *= h.factor()
        return torch.Tensor.as_subclass(g * h.cos() * scale, torch.Tensor), g * other


@pytest.mark.parametrize("where", [in_region, None])
@pytest.mark.parametrize("kind", [torch.Tensor, Scaled])
def test_saved_activations_have_their_attributes_and_their_class(where, kind):
    x, w = torch.randn(4, 16), leaf(16, 16)

    def loss():
        h = torch.tanh(x @ w).as_subclass(kind)
        h.scale = 3.0
        return ReadsAttributes.apply(h, torch.sin(x @ w)).as_subclass(torch.Tensor).square().mean()

    if where is not None:
        plain, planned = plain_and(loss, [w], where)
        assert plain == planned
        return
    loss().backward()
    expected, w.grad = w.grad, None
    with snug.fit(lambda _: loss(), x, "100%") as session:
        for _ in range(2):
            w.grad = None
            session.backward(x)
            assert torch.equal(w.grad, expected)


def test_attributes_of_a_saved_activation_keep_nothing_alive():
    x, w = torch.randn(64, 64), leaf(64, 64)
    with snug.Region(snug.Recompute()) as region:
        h = torch.tanh(x @ w)
        h.scale = 2.0
        found = ReadsAttributes.apply(h, torch.sin(x @ w)).sum()
    gone = weakref.ref(h)
    del h
    assert gone() is None
    found.backward()
    assert region.replayed_ops > 0 and w.grad is not None


class SavesTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tagged, plain):
        ctx.save_for_backward(tagged, x)
        ctx.save_for_backward(plain, x)
        return x * plain

    @staticmethod
    def backward(ctx, g):
        plain, x = ctx.saved_tensors
        return g * plain, None, g * x


@pytest.mark.parametrize("around", [contextlib.nullcontext, lambda: snug.Region(snug.Recompute())], ids=["plain", "region"])
def test_what_is_saved_first_leaves_nothing_at_what_is_saved_later(around):
    x, w, tagged, plain = torch.randn(4, 16), leaf(16, 16), torch.randn(4, 16), leaf(4, 16)
    tagged.tag = "first"
    plain.mine = 1
    del plain.mine
    with around():
        loss = SavesTwice.apply(torch.tanh(x @ w), tagged, plain).sum()
    loss.backward()
    assert not hasattr(plain, "tag")


class SavesItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        assert type(y) is torch.Tensor
        return torch.Tensor.as_subclass(g, torch.Tensor) * y


def test_code_without_snug_gets_what_pytorch_gives_it():
    x = leaf(4, 4).as_subclass(Scaled)
    SavesItsResult.apply(x).as_subclass(torch.Tensor).sum().backward()
