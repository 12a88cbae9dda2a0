"""checkpoint and checkpoint_sequential take the arguments of torch.utils.checkpoint, as functions and as decorators."""

import contextlib
import functools
import inspect

import pytest
import torch
import torch.utils.checkpoint as tc
from conftest import DEVICE
from torch import nn

import snug
from snug import checkpointing

SECOND_CALLS = [{"preserve_rng_state": False}, {"debug": True}, {"early_stop": False}]
REPLAYS = [{}, {"preserve_rng_state": True}, {"use_reentrant": False}, {"use_reentrant": True},
           {"determinism_check": "none"}, {"determinism_check": "values"}, {"early_stop": True}, {"debug": False},
           {"context_fn": tc.noop_context_fn}, {"respect_saved_tensors_hooks": True},
           {"use_reentrant": True, "early_stop": False}]


class Calls:
    """A function that counts its calls, those that reach its end, and the keyword arguments that it is given."""

    def __init__(self):
        self.begun = self.ended = 0
        self.named = {}
        self.weight = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()

    def __call__(self, x, **named):
        self.begun += 1
        self.named = named
        y = (x @ self.weight).sin().exp() + 1  # which saves nothing: a second call may stop in front of it
        self.ended += 1
        return y


def gradients(call):
    """Of a call with a Calls and an input."""
    function, x = Calls(), torch.linspace(0, 1, 32).reshape(4, 8).requires_grad_()
    call(function, x).sum().backward()
    return function, [x.grad, function.weight.grad]


PLAIN = gradients(lambda f, x: f(x))[1]


def test_the_signature_has_that_of_torch():
    ours, torchs = (inspect.signature(f).parameters for f in (snug.checkpoint, checkpointing.original))
    for name, parameter in torchs.items():
        assert name in ours and (name == "function" or ours[name].default == parameter.default), name
        assert ours[name].kind == parameter.kind
    assert set(ours) - set(torchs) <= {"mode", "preserve_rng_state", "respect_saved_tensors_hooks"}


@pytest.mark.parametrize("options", REPLAYS + SECOND_CALLS, ids=str)
def test_arguments_of_torch_decide_how_often_the_function_is_called(options):
    function, found = gradients(lambda f, x: snug.checkpoint(f, x, **options))
    assert all(torch.equal(a, b) for a, b in zip(PLAIN, found)) and function.named == {}
    assert function.begun == (2 if options in SECOND_CALLS else 1)
    assert function.ended == (2 if "early_stop" in str(options) and options in SECOND_CALLS else 1)
    assert all(torch.equal(a, b) for a, b in zip(PLAIN, gradients(lambda f, x: snug.checkpoint(**options)(f)(x))[1]))


def test_arguments_of_the_function_go_to_it():
    def call(f, x):
        return snug.checkpoint(f, x, use_reentrant=False, determinism_check="none", scale=2, key="value")

    assert gradients(call)[0].named == {"scale": 2, "key": "value"}
    decorate = snug.checkpoint(preserve_rng_state=False)
    assert gradients(lambda f, x: decorate(f)(x, mode="a", debug=3))[0].named == {"mode": "a", "debug": 3}


def test_without_preserving_the_second_call_draws_other_numbers():
    x = torch.ones(20000, requires_grad=True)
    for preserve in (True, False):
        torch.manual_seed(3)
        y = snug.checkpoint(lambda t: nn.functional.dropout(t * 2, 0.5).square(), x, preserve_rng_state=preserve)
        torch.manual_seed(4)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient != 0, y != 0) == preserve


def test_what_a_second_call_does_is_no_different_from_torch():
    """Contexts around both calls, and options that hold for a whole program."""
    entered = []

    @contextlib.contextmanager
    def noting(name):
        entered.append(name)
        yield

    def contexts():
        return noting("first"), noting("second")

    for mode, ended in ((None, 1), (snug.Rerun(), 1), (snug.Rerun(early_stop=False), 2)):
        entered.clear()
        function, found = gradients(lambda f, x: snug.checkpoint(f, x, context_fn=contexts, mode=mode))
        assert entered == ["first", "second"] and function.begun == 2 and function.ended == ended
        assert all(torch.equal(a, b) for a, b in zip(PLAIN, found))
    for scope, ended in ((tc.set_checkpoint_early_stop(False), 2), (tc.set_checkpoint_early_stop(True), 1)):
        with scope:
            assert gradients(lambda f, x: snug.checkpoint(f, x, mode=snug.Rerun()))[0].ended == ended
    with tc.set_checkpoint_early_stop(False):
        assert gradients(lambda f, x: snug.checkpoint(f, x))[0].ended == 2
    with tc.set_checkpoint_debug_enabled(True):
        assert gradients(lambda f, x: snug.checkpoint(f, x))[0].begun == 2
        assert gradients(lambda f, x: snug.checkpoint(f, x, use_reentrant=True))[0].begun == 1


def test_debug_names_operators_where_the_calls_differ():
    calls = []

    def function(x):
        calls.append(1)
        return x.sin().exp() if len(calls) == 1 else x.sin()[:3].exp()

    y = snug.checkpoint(function, torch.randn(8, requires_grad=True), debug=True, early_stop=False)
    with pytest.raises(snug.Error, match="aten::slice"):
        y.sum().backward()


@pytest.mark.parametrize("what", ["list", "function"])
def test_selective_contexts(what):
    def policy(ctx, op, *args, **kwargs):
        return op == torch.ops.aten.mm.default

    chosen = [torch.ops.aten.mm.default] if what == "list" else policy
    contexts = functools.partial(tc.create_selective_checkpoint_contexts, chosen)
    function, found = gradients(lambda f, x: snug.checkpoint(f, x, context_fn=contexts, use_reentrant=False))
    assert function.begun == (1 if what == "list" else 2)
    assert all(torch.equal(a, b) for a, b in zip(PLAIN, found))
    # What speaks of a second call has one.
    for options in ({"preserve_rng_state": False}, {"early_stop": False}, {"mode": snug.Rerun(early_stop=False)}):
        function, found = gradients(lambda f, x: snug.checkpoint(f, x, context_fn=contexts, **options))
        assert function.begun == 2 and function.ended == (1 if "preserve_rng_state" in options else 2)
        assert all(torch.equal(a, b) for a, b in zip(PLAIN, found))
    if not checkpointing._TORCH_RESPECTS_HOOKS:
        with pytest.raises(snug.UsageError, match="respect_saved_tensors_hooks=True needs torch 2.15"):
            gradients(lambda f, x: snug.checkpoint(f, x, context_fn=contexts, respect_saved_tensors_hooks=True))
        return
    seen = {True: [], False: []}
    for respects, packed in seen.items():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, packed.append(t)), lambda pair: pair[0]):
            gradients(lambda f, x: snug.checkpoint(f, x, context_fn=contexts, respect_saved_tensors_hooks=respects))
    assert len(seen[True]) > len(seen[False])


def test_a_selective_policy_under_autocast_names_the_cure():
    """torch: "aten._to_copy.default encountered during backward but not found in storage"."""
    model, x = nn.Linear(16, 16), torch.randn(4, 16, requires_grad=True)

    def policy(ctx, op, *args, **kwargs):
        return op in (torch.ops.aten.addmm.default, torch.ops.aten._to_copy.default)

    def loss(checkpoint, what, cache=True):
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=cache):
            first = model(x)  # the cast of the weight is in autocast's cache from here on
            contexts = functools.partial(tc.create_selective_checkpoint_contexts, what)
            again = checkpoint(model, x, use_reentrant=False, context_fn=contexts) if checkpoint else model(x)
            return (first + again.sin()).float().sum()

    def found(*arguments):
        return torch.autograd.grad(loss(*arguments), [x, *model.parameters()])

    def patched(*args, **kwargs):
        with snug.patch():
            return tc.checkpoint(*args, **kwargs)

    for checkpoint in (snug.checkpoint, patched):
        y = loss(checkpoint, policy)
        with pytest.raises(snug.Error, match="_to_copy.default ran in the second.*list of.*cache_enabled=") as caught:
            y.backward()
        cause = caught.value.__cause__
        assert isinstance(cause, RuntimeError) and "not found in storage" in str(cause)
        plain, uncached = found(None, None), found(None, None, False)
        assert all(torch.equal(a, b) for a, b in zip(plain, found(checkpoint, [torch.ops.aten.addmm.default])))
        assert all(torch.equal(a, b) for a, b in zip(uncached, found(checkpoint, policy, False)))


def test_errors_of_the_function_are_not_explained():
    def fails(t):
        raise RuntimeError("mine")

    contexts = functools.partial(tc.create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: False)
    with pytest.raises(RuntimeError, match="^mine$"):
        snug.checkpoint(fails, torch.randn(4, requires_grad=True), context_fn=contexts)


@pytest.mark.parametrize("options, message", [
    ({"use_reentrant": True, "scale": 2}, "Unexpected keyword arguments: scale; .*give use_reentrant=False"),
    ({"use_reentrant": True, "debug": True}, "Passing `context_fn` or `debug` is only supported when use_reentrant="),
    ({"use_reentrant": True, "respect_saved_tensors_hooks": False}, "`respect_saved_tensors_hooks` is only supported"),
    ({"determinism_check": "all"}, "determinism_check is 'all'; it can be none, default, values"),
    ({"debug": True, "context_fn": lambda: None}, "debug=True is incompatible with non-default context_fn"),
    ({"mode": snug.Replay(), "preserve_rng_state": False},
     r"preserve_rng_state=False cannot be honoured with mode=Replay\(...\).*give mode=Rerun"),
    ({"mode": snug.Replay(), "early_stop": False, "debug": True}, "debug=True, early_stop=False cannot be honoured"),
    ({"mode": snug.Replay(), "context_fn": lambda: None}, "context_fn=.* cannot be honoured.*; leave mode out"),
    ({"mode": snug.Replay(), "determinism_check": "values"}, r"write Replay\(verify_replay=True\)"),
    ({"mode": snug.Replay(), "determinism_check": "none"}, r"write Replay\(.*or False for no check"),
    ({"mode": snug.Replay(), "respect_saved_tensors_hooks": True}, "respect_saved_tensors_hooks=True cannot be"),
    ({"mode": snug.Rerun(), "early_stop": False}, r"early_stop=False is given in addition.*write Rerun\(early_stop="),
    ({"mode": snug.Rerun(determinism_check="all")}, "determinism_check is 'all'"),
    ({"mode": "fast"}, "the mode is 'fast'"),
], ids=str)
def test_what_cannot_be_honoured_is_refused(options, message):
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(snug.UsageError, match=message):
        snug.checkpoint(torch.sin, x, **options)
    with pytest.raises(snug.UsageError, match=message.partition(";")[0] if "scale" in options else message):
        snug.checkpoint(**options)


def test_what_is_no_function_is_refused():
    x = torch.randn(4)
    for call, message in (
        (lambda: snug.checkpoint(3, x), "the function is 3; give one that can be called"),
        (lambda: snug.checkpoint(None, x), "the function is None"),
        (lambda: snug.checkpoint(x), "the function is tensor"),
        (lambda: snug.checkpoint(scale=2), "Unexpected keyword arguments: scale; a decorator takes none"),
        (lambda: snug.checkpoint()(3), "it decorates functions, and this is of type int"),
        (lambda: snug.checkpoint()(nn.Linear), "this is the class Linear"),
    ):
        with pytest.raises(snug.UsageError, match=message):
            call()


def test_decorators():
    calls = []

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        @snug.checkpoint(use_reentrant=False)
        def forward(self, x, *, scale):
            """Computes y."""
            calls.append("forward")
            return (self.linear(x) * scale).sin().exp()

        @snug.checkpoint(mode=snug.Rerun())
        @staticmethod
        def twice(x):
            calls.append("twice")
            return x.sin().exp()

        @snug.checkpoint(use_reentrant=False)
        @classmethod
        def of_class(cls, x):
            assert cls is Block
            return x.cos().exp()

    def run(block):
        calls.clear()
        x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
        y = block.of_class(block.twice(block(x, scale=2)))
        return torch.autograd.grad(y.sum(), [x, *block.parameters()])

    class Plain(Block):
        forward = Block.forward.__wrapped__
        twice = staticmethod(Block.twice.__wrapped__)
        of_class = staticmethod(lambda x: x.cos().exp())

    assert Block.forward.__name__ == "forward" and Block.forward.__doc__ == "Computes y."
    torch.manual_seed(2)
    block, plain = Block(), Plain()
    plain.load_state_dict(block.state_dict())
    expected = run(plain)
    assert all(torch.equal(a, b) for a, b in zip(expected, run(block)))
    assert calls == ["forward", "twice", "twice"]
    # A module is called, and stays what it is.
    linear, x = nn.Linear(8, 8), torch.randn(2, 8)
    assert torch.equal(snug.checkpoint(use_reentrant=False)(linear)(x), linear(x))


def test_patched_decorators_and_names_of_ours():
    seen = []

    def function(x, mode):
        seen.append(mode)
        return x.sin().exp()

    x = torch.randn(4, requires_grad=True)
    plain = torch.autograd.grad(x.sin().exp().sum(), x)[0]
    with snug.patch():
        for call in (lambda: tc.checkpoint(function, x, use_reentrant=False, mode="its"),
                     lambda: tc.checkpoint(use_reentrant=False)(function)(x, mode="its")):
            assert torch.equal(plain, torch.autograd.grad(call().sum(), x)[0])
        assert inspect.signature(tc.checkpoint) == inspect.signature(checkpointing.original)
    assert seen == ["its", "its"]


def test_sequential():
    torch.manual_seed(5)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)])
    calls = [0] * 6
    for i, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, i=i: calls.__setitem__(i, calls[i] + 1))
    x = torch.randn(4, 8, requires_grad=True)

    def found(call):
        calls[:] = [0] * 6
        return torch.autograd.grad(call().sum(), [x, *layers.parameters()])

    plain = found(lambda: layers(x))
    for positional, options, times in (
        ((), {}, [1] * 6),
        ((False,), {"preserve_rng_state": True}, [1] * 6),
        ((True,), {}, [1] * 6),
        ((), {"preserve_rng_state": False}, [2] * 4 + [1] * 2),
        ((), {"use_reentrant": False, "mode": snug.Rerun()}, [2] * 4 + [1] * 2),
    ):
        again = found(lambda: snug.checkpoint_sequential(layers, 3, x, *positional, **options))
        assert all(torch.equal(a, b) for a, b in zip(plain, again)) and calls == times
    for options, message in (
        ({"early": True}, "Unexpected keyword arguments: early; it takes use_reentrant, preserve_rng_state and mode"),
        ({"mode": 3}, "the mode is 3"),
        ({"mode": snug.Replay(), "preserve_rng_state": False}, "cannot be honoured"),
    ):
        with pytest.raises(snug.UsageError, match=message):
            snug.checkpoint_sequential(layers, 1, x, **options)
