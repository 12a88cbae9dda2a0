"""Autograd functions: what they save and write."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .network import case, raw


class Swish(Function):
    """Saves what it was given, an intermediate, its result and a number."""

    @staticmethod
    def forward(ctx, x, beta, name):
        gate = torch.sigmoid(x * beta)
        y = x * gate
        ctx.save_for_backward(x, None, gate, y, x)
        ctx.beta, ctx.name, ctx.shape = beta, name, x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        x, none, gate, y, again = ctx.saved_tensors
        assert none is None and ctx.name == "swish" and ctx.shape == x.shape and torch.equal(x, again)
        return g * (gate + ctx.beta * y * (1 - gate)), None, None


@case("a function saves inputs, an intermediate, its result and numbers")
def _(net, h, i):
    return Swish.apply(h, 1.5, "swish")


class InContext(Function):
    """Keeps its tensors as attributes of the context."""

    @staticmethod
    def forward(ctx, x):
        ctx.cos = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.cos


@case("a function keeps tensors in its context")
def _(net, h, i):
    return InContext.apply(h)


class WritesSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(g)


@case("a function writes to what it has saved", repeats=False)
def _(net, h, i):
    return WritesSaved.apply(h) + h.exp() * 0.1


class WritesSavedRaw(Function):
    """As WritesSaved, with a kernel that raises no version."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        raw(x)[...] = raw(x * 2 * g)
        return x


@case("a function writes to what it has saved by NumPy", repeats=False)
def _(net, h, i):
    return WritesSavedRaw.apply(h) + h.exp() * 0.1


class ReadsTwice(Function):
    """Writes to what it has saved in a way that no version tells, and takes it once more."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        ctx.saved_tensors[0].data.mul_(2)
        return ctx.saved_tensors[0] * g


@case("a function takes what it has saved twice and writes in between", repeats=False)
def _(net, h, i):
    return ReadsTwice.apply(h * 1)


class OneForBoth(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g, g


@case("a function returns one gradient for both inputs")
def _(net, h, i):
    return OneForBoth.apply(WritesGradient.apply(h), h * 2)


class ReturnsSaved(Function):
    """Makes its gradient in forward, by autograd, and returns it in backward."""

    @staticmethod
    def forward(ctx, x, scale):
        with torch.enable_grad():
            xd, sd = x.detach().requires_grad_(), scale.detach().requires_grad_()
            y = (xd * sd).sin().sum()
            gx, gs = torch.autograd.grad(y, (xd, sd))
        ctx.save_for_backward(gx, gs)
        return x.new_zeros(()) + y.detach()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors


@case("a function computes its gradients in forward and returns them")
def _(net, h, i):
    return h + ReturnsSaved.apply(h, net.scales[i]) * 1e-3


class WritesGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g.mul_(ctx.saved_tensors[0].cos())


@case("a function writes to the gradient that it is given")
def _(net, h, i):
    return WritesGradient.apply(h * 2)


class Partial(Function):
    """Two results, of which the second is often not used, and gradients that may be None."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        index = x.argmax(1)
        ctx.mark_non_differentiable(index)
        return x * y, x + y, index

    @staticmethod
    def backward(ctx, g, g_sum, g_index):
        assert g_index is None
        x, y = ctx.saved_tensors
        gx = None if g is None else g * y
        gy = None if g is None else g * x
        if g_sum is not None:
            gx = g_sum if gx is None else gx + g_sum
        return gx, gy if ctx.needs_input_grad[1] else None


@case("a function has results without gradients")
def _(net, h, i):
    product, total, index = Partial.apply(h, h.detach().cos() if i == 1 else h.cos())
    picked = h.gather(1, index[:, None])
    return product + picked if i % 2 else total + picked


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@case("a function writes its input in place and saves it")
def _(net, h, i):
    return InPlace.apply(h * 0.5) * h


class Cube(Function):
    """In the newer style, twice differentiable."""

    @staticmethod
    def forward(x):
        return x**3, x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, g, g_square):
        x, square = ctx.saved_tensors
        return g * 3 * square + g_square * 2 * x
