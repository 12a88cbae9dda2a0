"""Region, ModuleScope and tiled_loss around functions: each call has one of its own."""

import asyncio
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import allocated, only_on_the_cpu
from torch import nn

import snug

X = torch.linspace(-1, 1, 256 * 64).reshape(256, 64)


def plain(x):
    """Computes y."""
    return x.sin().cos().sin().exp().tanh()


@snug.Region(snug.Recompute())
def recomputed(x):
    """Computes y."""
    return x.sin().cos().sin().exp().tanh()


def gradient(function):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


PLAIN = gradient(plain)


def test_a_region_drops_in_every_call():
    def held(function):
        x = X.clone().requires_grad_()
        before = allocated()
        y = function(x)
        return allocated() - before - y.nbytes

    assert recomputed.__name__ == "recomputed" and recomputed.__doc__ == "Computes y."
    assert pickle.loads(pickle.dumps(recomputed)) is recomputed
    for _ in range(3):
        assert torch.equal(PLAIN, gradient(recomputed))
        assert held(recomputed) < X.nbytes // 2 < 2 * X.nbytes <= held(plain)
    # It is the object's own as a context manager, which counts its own operators alone.
    region = snug.Region(snug.Recompute())
    assert torch.equal(PLAIN, gradient(region(plain))) and region.replayed_ops == 0
    with region:
        inside = gradient(region(plain))
    assert torch.equal(PLAIN, inside)


def test_a_policy_sees_each_call_from_its_beginning():
    seen = []
    policy = lambda op: seen.append((op.name, op.module, op.invocation)) or snug.Choice.PreferRecompute  # noqa: E731

    @snug.ModuleScope("inner")
    @snug.Region(policy)
    def function(x):
        return x.sin()

    x = torch.ones(4, requires_grad=True)
    with snug.ModuleScope("outer"):
        function(x), function(x)
    assert seen == [("aten::sin", "outer.inner", 0)] * 2


def test_recursion():
    depth = []

    @snug.ModuleScope("r")
    @snug.Region(lambda op: depth.append(op.module) or snug.Choice.PreferRecompute, verify_replay=True)
    def function(x, n):
        return function(x.sin(), n - 1).exp() if n else x.cos()

    def same(x, n):
        return same(x.sin(), n - 1).exp() if n else x.cos()

    assert torch.equal(gradient(lambda x: function(x, 4)), gradient(lambda x: same(x, 4)))
    assert depth == ["r", "r.r", "r.r.r", "r.r.r.r", "r.r.r.r.r", "r.r.r.r", "r.r.r", "r.r", "r"]


def test_threads():
    inside = threading.Barrier(4, timeout=60)

    @snug.ModuleScope("t")
    @snug.Region(snug.Recompute(), verify_replay=True)
    def function(x):
        y = x.sin()
        inside.wait()  # all of them are in their regions
        y = y.cos().sin()
        inside.wait()
        return y.exp().tanh()

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: gradient(function), range(8)):
            assert torch.equal(PLAIN, found)


def test_methods_and_exceptions():
    class Block(nn.Module):
        @snug.Region(snug.Recompute())
        def forward(self, x, fail=False):
            if fail:
                raise KeyError("mine")
            return plain(x)

        @snug.Region(snug.Recompute())
        @staticmethod
        def alone(x):
            return plain(x)

    block = Block()
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            block(X, fail=True)
        assert torch.equal(PLAIN, gradient(block)) and torch.equal(PLAIN, gradient(block.alone))
        assert torch.equal(PLAIN, gradient(Block.alone))
    region = snug.Region(snug.Recompute())(block)
    assert torch.equal(PLAIN, gradient(region)) and not hasattr(region, "_parameters")


FACTOR = [1.0]


@torch.library.custom_op("snug_decorators::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR[0]


scaled.register_autograd(lambda ctx, g: g)


def test_each_function_that_a_region_decorates_is_a_place_of_its_own():
    """VerifyReplay.Once compares the first replay of each, and no other."""
    region = snug.Region(snug.Recompute(), verify_replay=snug.VerifyReplay.Once)

    @region
    def first(x):
        return scaled(x.sin()).square()

    @region
    @staticmethod
    def second(x):
        return scaled(x.sin()).square()

    def differs(function, factor=2.0):
        FACTOR[0] = 1.0
        y = function(torch.ones(64, requires_grad=True)).sum()
        FACTOR[0] = factor  # which the replay reads
        try:
            y.backward()
        except snug.Error as error:
            assert "snug_decorators::scaled" in str(error)
            return True
        return False

    assert not differs(first, 1.0) and differs(second.__func__) and not differs(first)


def test_anomalies_are_found_in_decorated_calls():
    @snug.Region(snug.Keep(), detect_anomalies=True)
    def function(x):
        return x.log()

    with pytest.raises(snug.Error, match="log"):
        function(-torch.ones(4, requires_grad=True))


def test_what_runs_after_its_call_is_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    async def both(x):
        yield x

    for decorator in (snug.Region(snug.Keep()), snug.ModuleScope("a"), snug.tiled_loss(), snug.checkpoint()):
        for function in (generator, coroutine, both):
            with pytest.raises(snug.UsageError, match=f"generator or coroutine .*{function.__name__} runs after its"):
                decorator(function)
        with pytest.raises(snug.UsageError, match="this is the class Linear; decorate a function or a method"):
            decorator(nn.Linear)
        with pytest.raises(snug.UsageError, match="this is of type list"):
            decorator([])
    assert asyncio.run(coroutine(3)) == 3


@only_on_the_cpu("figures of allocated bytes that no other test moves")
def test_calls_leave_nothing_behind():
    region = snug.Region(snug.Recompute())
    function = region(plain)
    gradient(function)
    gc.collect()
    before = allocated()
    for _ in range(20):
        gradient(function)
    gc.collect()
    assert allocated() == before


class Language(nn.Module):
    """With logits over a vocabulary of 8,192."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.out = nn.Embedding(8192, 16), nn.Linear(16, 8192, bias=False)

    def loss(self, tokens):
        logits = self.out(self.table(tokens))
        self.kind = type(logits)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def test_tiled_loss():
    model, tokens = Language(), torch.arange(64).reshape(2, 32)

    def found(loss):
        return torch.autograd.grad(loss(tokens), list(model.parameters())), model.kind

    tiled = snug.tiled_loss(tile=1 << 20)

    def nested(tokens):
        return tiled(lambda t: tiled(model.loss)(t))(tokens)

    def inside(tokens):
        with tiled:
            return model.loss(tokens)

    (expected, kind), (_, plain_kind) = found(inside), found(model.loss)
    assert kind is snug.LazyLogits and plain_kind is torch.Tensor
    for function in (tiled(model.loss), nested, tiled(model.loss)):
        gradients, kind = found(function)
        assert kind is snug.LazyLogits and all(torch.equal(a, b) for a, b in zip(expected, gradients))
    assert found(model.loss)[1] is torch.Tensor


def test_tiled_loss_in_threads():
    tokens = torch.arange(64).reshape(2, 32)
    decorate = snug.tiled_loss()

    def run(model):
        loss = decorate(model.loss)(tokens)
        return model.kind, torch.autograd.grad(loss, list(model.parameters()))

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, [Language() for _ in range(4)]))
    assert all(kind is snug.LazyLogits for kind, _ in results)
    assert all(torch.equal(a, b) for _, gradients in results for a, b in zip(results[0][1], gradients))
