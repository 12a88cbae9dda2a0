"""snug in the place of torch.utils.checkpoint: the cases of PyTorch's own checkpoint tests, by their meaning, run
through torch.utils.checkpoint as it is and through snug.patch()."""

import contextlib

import pytest
import torch
import torch.utils.checkpoint as tc
from torch import nn

import snug


@pytest.fixture(params=["torch", "snug"])
def patched(request):
    with snug.patch() if request.param == "snug" else contextlib.nullcontext():
        yield request.param == "snug"


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x).relu()


def test_is_undone():
    original = tc.checkpoint
    with snug.patch():
        assert tc.checkpoint is not original
    assert tc.checkpoint is original


def test_trigger(patched):
    """test_checkpoint_trigger: ten modules in two segments; a replay calls nothing again."""
    modules = [Counting() for _ in range(10)]
    y = tc.checkpoint_sequential(nn.Sequential(*modules), 2, torch.randn(4, 16, requires_grad=True),
                                 use_reentrant=False)
    assert [m.calls for m in modules] == [1] * 10
    y.sum().backward()
    assert [m.calls for m in modules] == ([1] * 10 if patched else [2] * 5 + [1] * 5)


def test_valid(patched):
    """test_checkpoint_valid: autograd.grad works, and backward after it."""
    model = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1))
    x = torch.randn(1, 10, requires_grad=True)
    y = tc.checkpoint_sequential(model, 2, x, use_reentrant=False)
    torch.autograd.grad(y.sum(), [x], create_graph=True)
    y.sum().backward()
    assert model[0].weight.grad is not None


def test_rng(patched):
    """test_checkpoint_rng_cpu: dropout has one mask; five repeats."""
    for _ in range(5):
        x = torch.randn(20000, requires_grad=True)
        torch.manual_seed(8)
        (plain,) = torch.autograd.grad(nn.functional.dropout(x, 0.5).sin().sum(), x)
        torch.manual_seed(8)
        y = tc.checkpoint(lambda t: nn.functional.dropout(t, 0.5).sin(), x, use_reentrant=False)
        (other,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(plain, other)


def test_without_preserving_rng_state(patched):
    """test_checkpoint_not_preserve_rng_state_and_without_reentrant: new random numbers, as asked."""
    x = torch.randn(20000, requires_grad=True)
    y = tc.checkpoint(lambda t: nn.functional.dropout(t, 0.5), x, use_reentrant=False, preserve_rng_state=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.count_nonzero() > 0


def test_non_tensor_inputs_and_outputs(patched):
    """test_checkpoint_non_tensor_inputs_outputs"""
    t1, t2, t3 = (torch.rand(10, requires_grad=True) for _ in range(3))

    def function(a, b, scale, c):
        t4 = a + b * c
        t5 = a * b + c
        return scale, t4 * scale, None, True, t5 * scale, "bar", a

    out = tc.checkpoint(function, t1, t2, 10, t3, use_reentrant=False)
    assert out[0] == 10 and out[2] is None and out[3] is True and out[5] == "bar"
    out[1].sum().backward(retain_graph=True)
    out[4].sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        out[4].sum().backward()


def test_kwargs(patched):
    x = torch.randn(4, requires_grad=True)
    tc.checkpoint(lambda a, *, scale, mode: (a * scale).sin() if mode else a, x, use_reentrant=False, scale=2,
                  mode="named as snug's own").sum().backward()
    assert torch.equal(x.grad, 2 * (2 * x.detach()).cos())


def test_saved_tensors_of_a_function_can_be_read_twice(patched):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.clone())
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            if isinstance(g, torch.Tensor) and snug_is_here:
                (b,) = ctx.saved_tensors
                assert torch.equal(a, b)
            return g * a.cos()

    snug_is_here = patched  # torch raises "Unpack is being triggered ... already unpacked once"
    x = torch.randn(4, requires_grad=True)
    tc.checkpoint(Twice.apply, x, use_reentrant=False).sum().backward()


def test_a_different_number_of_saved_tensors(patched):
    """What torch can only refuse, a replay gets right: the function is not called again."""
    calls = []

    def function(x):
        calls.append(1)
        return x.sin().cos().exp() if len(calls) == 1 else x.sin()

    x = torch.randn(4, requires_grad=True)
    y = tc.checkpoint(function, x, use_reentrant=False).sum()
    if patched:
        y.backward()
        assert torch.equal(x.grad, torch.autograd.grad(x.sin().cos().exp().sum(), x)[0])
    else:
        with pytest.raises(tc.CheckpointError):
            y.backward()


def test_nested(patched):
    def inner(x):
        return nn.functional.dropout(x.sin().exp(), 0.3)

    def outer(x):
        return tc.checkpoint(inner, tc.checkpoint(inner, x, use_reentrant=False).cos(), use_reentrant=False).tanh()

    x = torch.randn(64, requires_grad=True)

    def gradient(f):
        torch.manual_seed(4)
        return torch.autograd.grad(f(x).sum(), x)[0]

    plain = gradient(lambda t: inner(inner(t).cos()).tanh())
    assert torch.equal(plain, gradient(outer))
    assert torch.equal(plain, gradient(lambda t: tc.checkpoint(outer, t, use_reentrant=False)))


def test_selective_policies(patched):
    """create_selective_checkpoint_contexts with a policy and with a list."""
    w = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(16, 16, requires_grad=True)

    def function(t):
        return (t.sin() @ w).exp() @ w

    plain = torch.autograd.grad(function(x).sum(), (x, w))

    def policy(ctx, op, *args, **kwargs):
        return tc.CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else tc.CheckpointPolicy.PREFER_RECOMPUTE

    for what in (policy, [torch.ops.aten.mm.default]):
        def contexts():
            return tc.create_selective_checkpoint_contexts(what)

        y = tc.checkpoint(function, x, use_reentrant=False, context_fn=contexts)
        for a, b in zip(plain, torch.autograd.grad(y.sum(), (x, w))):
            assert torch.equal(a, b)


def test_policies_that_look_at_operands_and_results(patched):
    w = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(4, 16, requires_grad=True)
    calls = 0

    def policy(ctx, op, *args, **kwargs):
        if op == torch.ops.aten.mm.default and args[1].shape == (16, 16):
            return tc.CheckpointPolicy.MUST_SAVE
        return tc.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        nonlocal calls
        calls += 1
        return tc.create_selective_checkpoint_contexts(policy)

    def function(t):
        return (t.sin() @ w).exp() @ w

    plain = torch.autograd.grad(function(x).sum(), (x, w))
    found = torch.autograd.grad(tc.checkpoint(function, x, use_reentrant=False, context_fn=contexts).sum(), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(plain, found)) and calls == 1


def test_modules_imported_while_it_holds_are_undone_too():
    import types

    original = tc.checkpoint
    module = types.ModuleType("snuggle_model")
    import sys

    sys.modules["snuggle_model"], sys.modules["no module"] = module, object()
    try:
        module.before = original
        patched = snug.patch()
        assert module.before is not original
        module.checkpoint = tc.checkpoint
        patched.undo()
        assert module.checkpoint is original and module.before is original and tc.checkpoint is original
    finally:
        del sys.modules["snuggle_model"], sys.modules["no module"]


def test_contexts_around_both_calls(patched):
    """Contexts that are not a policy: the function is called again, in the second one."""
    entered = []

    @contextlib.contextmanager
    def noting(name):
        entered.append(name)
        yield

    x = torch.randn(8, requires_grad=True)
    y = tc.checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False,
                      context_fn=lambda: (noting("forward"), noting("again")))
    y.sum().backward()
    assert entered == ["forward", "again"]


def test_batchnorm_statistics(patched):
    """pytorch#96136: torch updates them twice."""
    bn = nn.BatchNorm1d(8)
    x = torch.randn(16, 8, requires_grad=True)
    tc.checkpoint(bn, x, use_reentrant=False).sum().backward()
    assert bn.num_batches_tracked.item() == (1 if patched else 2)


def test_bad_arguments(patched):
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: a,b"):
        tc.checkpoint(lambda t, a, b: t, x, use_reentrant=True, a=1, b=2)
    with pytest.raises(ValueError, match="Passing `context_fn`"):
        tc.checkpoint(torch.sin, x, use_reentrant=True, context_fn=lambda: (None, None))


def test_transformers_gradient_checkpointing():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=2, n_positions=32))
    tokens = torch.randint(0, 64, (2, 16))

    def gradients():
        model.zero_grad()
        torch.manual_seed(1)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    with snug.patch():
        model.gradient_checkpointing_enable()
        model.train()
        patched = gradients()
        model.gradient_checkpointing_disable()
    assert all(torch.equal(a, b) for a, b in zip(plain, patched))


def test_patches_nest():
    original = tc.checkpoint
    with snug.patch():
        patched = tc.checkpoint
        assert patched is not original
        with snug.patch() as inner:
            assert tc.checkpoint is patched
            inner.undo()
            inner.undo()
            assert tc.checkpoint is patched
        assert tc.checkpoint is patched
    assert tc.checkpoint is original


def test_thread_state_of_the_first_context_stays_there(patched):
    """A mode that the first context sets is not around the second call."""
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    forward, again = Counting(), Counting()
    x = torch.randn(8, requires_grad=True)
    y = tc.checkpoint(lambda t: t.sin().exp().cos(), x, use_reentrant=False, context_fn=lambda: (forward, again),
                      early_stop=False)
    first = forward.calls
    y.sum().backward()
    assert first == 3 and again.calls == 3 and forward.calls == first


def test_scopes_that_override_options(patched):
    calls = []

    def function(x):
        y = x.sin().exp() + 1
        calls.append("end")
        return y

    for early_stop, expected in ((True, 1), (False, 2)):
        calls.clear()
        x = torch.randn(8, requires_grad=True)
        with tc.set_checkpoint_early_stop(early_stop):
            y = tc.checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()
        assert len(calls) == expected


def test_more_bad_arguments(patched):
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(ValueError, match="Passing `context_fn`"):
        tc.checkpoint(torch.sin, x, use_reentrant=True, debug=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: early"):
        tc.checkpoint_sequential([torch.sin], 1, x, use_reentrant=False, early=True)


def test_contexts_are_not_entered_without_gradients(patched):
    entered = []

    @contextlib.contextmanager
    def noting(name):
        entered.append(name)
        yield

    with torch.no_grad():
        tc.checkpoint(torch.sin, torch.randn(4), use_reentrant=False, context_fn=lambda: (noting("a"), noting("b")))
    assert entered == []
