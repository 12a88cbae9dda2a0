"""Which tensor a node of autograd.Function gets for one that it saved: the program's own, with that one's attributes."""

import contextlib
import gc
import weakref

import pytest
import torch
from conftest import only_on_the_cpu
from plain_and import bits, leaf

import snug

pytestmark = only_on_the_cpu("budgets of the CPU")

AROUND = {
    "plain": contextlib.nullcontext,
    "recompute": lambda: snug.Region(snug.Recompute()),
    "keep": lambda: snug.Region(snug.Keep()),
}


@pytest.fixture(params=AROUND.values(), ids=AROUND)
def around(request):
    """Runs a function plainly or in a region, and goes backward from what it returns."""

    def run(loss_of):
        with request.param():
            loss = loss_of()
        loss.backward()

    return run


class IntoMainGrad(torch.autograd.Function):
    """Two products whose gradients go where Megatron-LM has them."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return x @ a + x.sin() @ b

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        a.main_grad.add_(x.t() @ g)
        b.main_grad.add_(x.sin().t() @ g)
        return g @ a.t() + (g @ b.t()) * x.cos(), None, None


@pytest.mark.parametrize("kind", ["parameters", "tensors"])
def test_two_that_show_the_same_bytes_are_told_apart(around, kind):
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    shared = torch.ones(16, 16)
    if kind == "parameters":
        a, b = torch.nn.Parameter(shared), torch.nn.Parameter(torch.empty(0))
        b.data = shared
    else:
        a, b = shared.detach().requires_grad_(), shared.detach().requires_grad_()
    a.main_grad, b.main_grad = torch.zeros(16, 16), torch.zeros(16, 16)
    of_a, of_b = a.main_grad, b.main_grad
    around(lambda: IntoMainGrad.apply(x, a, b).sum())
    assert a.main_grad is of_a and b.main_grad is of_b
    ones = torch.ones(16, 16)
    assert torch.equal(of_a, x.t() @ ones) and torch.equal(of_b, x.sin().t() @ ones)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b * a.scale, g * a * b.scale


def test_attributes_of_two_that_show_the_same_bytes(around):
    x, w = torch.ones(4, 4), leaf(4, 4)
    with torch.no_grad():
        w.fill_(0.1)
    found = {}

    def loss():
        h = torch.tanh(x @ w)
        alias = h.view_as(h)
        h.scale, alias.scale = 2.0, 5.0
        found.update(h=h, alias=alias)
        return Scaled.apply(h, alias).sum()

    around(loss)
    h = torch.tanh(x @ w).detach()
    assert torch.allclose(w.grad, x.t() @ (7 * h * (1 - h * h)))
    assert found["h"].scale == 2.0 and found["alias"].scale == 5.0


def test_attributes_that_are_set_after_it_was_saved(around):
    x, w = torch.ones(4, 4), leaf(4, 4)
    with torch.no_grad():
        w.fill_(0.1)

    def loss():
        a, b = torch.tanh(x @ w), torch.sin(x @ w)
        product = Scaled.apply(a, b)
        a.scale, b.scale = 4.0, 4.0
        return product.sum()

    around(loss)
    a, b = torch.tanh(x @ w).detach(), torch.sin(x @ w).detach()
    assert torch.allclose(w.grad, 4 * x.t() @ (b * (1 - a * a) + a * (x @ w).detach().cos()))


def test_what_attributes_refer_to_goes_with_the_saved_tensor():
    x, w = torch.randn(64, 64), leaf(64, 64)
    lost = []

    def step(x):
        a, b = torch.tanh(x @ w), torch.sin(x @ w)
        a.scale = b.scale = 1.0
        product = Scaled.apply(a, b)
        a.auxiliary = product.square().mean()  # leads back to the node
        lost.append(weakref.ref(a.auxiliary))
        return product.sum() + a.auxiliary

    with snug.fit(step, x, "100%") as session:
        lost.clear()
        for _ in range(3):
            session.backward(x)
    with snug.Region(snug.Recompute()):
        loss = step(x)
    loss.backward()
    del loss
    gc.collect()
    assert len(lost) == 4 and all(one() is None for one in lost)


def flat_parameters():
    flat = torch.randn(3 * 256, generator=torch.Generator().manual_seed(2))
    parameters = [torch.nn.Parameter(part.view(16, 16)) for part in flat.chunk(3)]
    for p in parameters:
        p.main_grad = torch.zeros(16, 16)
    return parameters


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        w.main_grad.add_(g.t() @ x)
        return g @ w, None


def renormalized(x, parameters):
    for p in parameters:
        p.data.div_(p.data.norm())
        x = torch.tanh(Linear.apply(x, p))
    return x.square().sum()


def test_parameters_of_one_storage_that_is_written_between_their_uses():
    x = torch.randn(32, 16)
    expected = flat_parameters()
    renormalized(x, expected).backward()
    for place in ("region", "session"):
        parameters = flat_parameters()
        if place == "region":
            with snug.Region(snug.Recompute()):
                loss = renormalized(x, parameters)
            loss.backward()
        else:
            with snug.fit(lambda b: renormalized(b, parameters), x, "100%") as session:
                session.backward(x)
        assert bits(p.main_grad for p in parameters) == bits(p.main_grad for p in expected)
        assert all(p.grad is None for p in parameters)


def test_a_write_through_data_beside_a_saved_part_of_its_storage(around):
    flat = torch.zeros(16 * 16 + 16)
    weight, mean = torch.nn.Parameter(flat[:256].view(16, 16)), flat[256:]
    x = torch.ones(4, 16, requires_grad=True)
    with torch.no_grad():
        weight.fill_(0.01)

    def loss():
        h = torch.tanh(x @ weight)
        mean.data.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h.square().sum()

    around(loss)
    assert weight.grad is not None and mean.count_nonzero() == 16


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


@pytest.mark.parametrize("place", AROUND.values(), ids=AROUND)
def test_a_result_of_the_function_has_its_history_whatever_the_program_did_with_it(place):
    x = torch.linspace(0, 1, 5, requires_grad=True)
    with place():
        y = Exponential.apply(x * 1.0)
        loss = (y * 2).sum()
        y.detach_()  # the state of a recurrent network goes on without history
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert torch.equal(second, 2 * x.exp())


class SavesTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        with torch.enable_grad():
            a.detach().requires_grad_().sin()  # an operator inside of it that saves the same memory
            a.sin()  # and one that saves the same tensor
        return a * 2

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * a.scale


def test_attributes_of_what_an_operator_inside_of_the_function_saves_as_well(around):
    x, w = torch.ones(4, 4), leaf(4, 4)

    def loss():
        h = torch.tanh(x @ w)
        h.scale = 3.0
        return SavesTwice.apply(h).sum()

    around(loss)
    h = torch.tanh(x @ w).detach()
    assert torch.allclose(w.grad, 3 * x.t() @ (1 - h * h))


@pytest.mark.parametrize("place", AROUND.values(), ids=AROUND)
def test_attributes_of_a_result_that_lead_to_its_own_graph_do_not_keep_it(place):
    x = leaf(16, 16)
    with place():
        y = Exponential.apply(x * 1.0)
        y.statistics = y.mean()
        alive = weakref.ref(y.statistics)
        del y
    gc.collect()
    assert alive() is None
