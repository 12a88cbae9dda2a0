"""Autograd functions: gradients, attributes and nesting."""
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import snug

from .network import case
from .randomness import noisy
from .results import counting
from .functions import Cube, Swish


@case("a function in the newer style")
def _(net, h, i):
    cube, square = Cube.apply(h * 0.5)
    return cube + square


def penalty_step(net, batch):
    x = batch.clone().requires_grad_()
    loss = net.chain(x).float().square().mean()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + gradient.float().square().sum()


@case("a function is differentiated twice", step=penalty_step)
def _(net, h, i):
    cube, square = Cube.apply(h * 0.5)
    return cube + square


class MainGrad(Function):
    """Megatron's linear layer with fused accumulation of gradients."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.float() @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        w.main_grad.add_(g.t().float() @ x.float())
        return g @ w.to(g.dtype), None


def main_grad_step(net, batch):
    h = batch
    for w in net.weights:
        h = torch.tanh(MainGrad.apply(h, w) + net.scales[0])
    return h.float().square().mean()


@case("a function adds to main_grad of its weight", step=main_grad_step)
def _(net, h, i):
    return h


class ReadsAttribute(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * getattr(x, "gradient_scale", 1.0)


@case("a function reads an attribute of an activation that it saved")
def _(net, h, i):
    h.gradient_scale = 2.0
    return ReadsAttribute.apply(h)


class Nested(Function):
    """Calls another function, and differentiates a part of itself in backward."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return Swish.apply(x, 1.0, "swish") * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = torch.nn.functional.silu(x) * scale
        return torch.autograd.grad(y, (x, scale), g)


@case("a function differentiates inside of its backward")
def _(net, h, i):
    return Nested.apply(h, net.scales[i])


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, g):
        return g


@case("a straight-through estimator")
def _(net, h, i):
    return Straight.apply(h)


class Identity(Function):
    """Returns its input, as functions of tensor parallelism do, and writes to the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * 2


@case("a function returns a view of its input")
def _(net, h, i):
    return Identity.apply(h) + Identity.apply(h * 2)


class ActNorm(Function):
    """Initialises its scale from the first batch, and notes that in a buffer."""

    @staticmethod
    def forward(ctx, x, scale, initialised):
        if not initialised[0]:
            scale.copy_(1 / (x.float().std(0) + 1e-3))
            initialised.fill_(1)
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum(0), None


@case("a function initialises a parameter in its first call")
def _(net, h, i):
    return ActNorm.apply(h, net.scales[i], net.buffers[i])


class CountsInBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return counting(g * ctx.saved_tensors[0].cos())


@case("an operator with a state runs in backward", undone=False)
def _(net, h, i):
    return CountsInBackward.apply(h)


class Squared(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0]


@case("a function runs under vmap, jvp and grad of torch.func")
def _(net, h, i):
    by_rows = torch.vmap(Squared.apply)(h)
    _, tangent = torch.func.jvp(Squared.apply, (h.detach(),), (torch.ones_like(h),))
    gradient = torch.func.grad(lambda t: Squared.apply(t).sum())(h.detach())
    return by_rows + h * tangent + h.sin() * gradient


class KeepsItsOwn(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@case("a program frees an activation through .data, as Megatron does")
def _(net, h, i):
    h = h * 2
    y = KeepsItsOwn.apply(h)
    h.data = torch.empty(1, dtype=h.dtype)
    return y


@case("a checkpoint of torch that calls the function again", counts="noisy")
def _(net, h, i):
    return checkpoint(lambda t: Swish.apply(noisy(t), 1.5, "swish"), h, use_reentrant=False)


@case("a reentrant checkpoint of torch", counts="noisy")
def _(net, h, i):
    return checkpoint(lambda t: Swish.apply(noisy(t), 1.5, "swish"), h, use_reentrant=True)


@case("a checkpoint of snug around operators and functions", counts="noisy", replays=2, keeps=False)
def _(net, h, i):
    call = (lambda f, *args: f(*args)) if net.plain else snug.checkpoint
    return call(lambda t: Swish.apply(noisy(t), 1.5, "swish"), h)


@case("hooks of the program pack what functions save", counts="noisy")
def _(net, h, i):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().half(), lambda t: t.float()):
        return Swish.apply(noisy(h.float()), 1.5, "swish")


@case("a hook writes to a gradient", counts="noisy")
def _(net, h, i):
    y = noisy(h * 2)
    if y.requires_grad:
        y.register_hook(lambda g: noisy(g).mul_(1.5))
    return y
