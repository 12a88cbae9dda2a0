"""Operators and functions that draw random numbers."""
import random

import numpy as np
import torch
from torch.autograd import Function

import snug

from .network import STATE, case
from .operators import define, operator


@operator("noisy")
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand_like(x) < 0.5)


@case("an operator draws and does not say so", counts="noisy")
def _(net, h, i):
    return noisy(h)


@operator("noisy_tagged")
def noisy_tagged(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand_like(x) < 0.5)


torch.ops.own.noisy_tagged.default.tags.append(torch.Tag.nondeterministic_seeded)


@case("an operator draws and has a tag", counts="noisy_tagged")
def _(net, h, i):
    return noisy_tagged(h)


@operator("noisy_declared")
def noisy_declared(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5, True)


snug.declare_operator(noisy_declared, draws=True)


@case("an operator draws and is declared", counts="noisy_declared")
def _(net, h, i):
    return noisy_declared(h)


@operator("noisy_denied")
def noisy_denied(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5, True)


snug.declare_operator(noisy_denied, draws=False)


@case("an operator draws and is declared not to", counts="noisy_denied", error="own::noisy_denied")
def _(net, h, i):
    return noisy_denied(h)


@define("noisy_from(Tensor x, Generator? generator=None) -> Tensor")
def noisy_from(x, generator=None):
    return x * (torch.rand(x.shape, generator=generator) < 0.5)


class NoisyFrom(Function):
    @staticmethod
    def forward(ctx, h, generator):
        return noisy_from(h, generator=generator)

    @staticmethod
    def backward(ctx, g):
        return g, None


@case("an operator draws from a generator that it is given", counts="noisy_from")
def _(net, h, i):
    return NoisyFrom.apply(h, net.generator)


@operator("noisy_inside")
def noisy_inside(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=STATE["generator"]) < 0.5)


@case("an operator draws from a generator of its own", counts="noisy_inside", replays=0)
def _(net, h, i):
    return noisy_inside(h)


@operator("noisy_numpy")
def noisy_numpy(x: torch.Tensor) -> torch.Tensor:
    return x * torch.from_numpy(np.random.rand(*x.shape).astype(np.float32)).to(x.dtype)


@case("an operator draws from NumPy", counts="noisy_numpy", error="own::noisy_numpy", undone=False)
def _(net, h, i):
    return noisy_numpy(h)


@operator("noisy_python")
def noisy_python(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


@case("an operator draws from Python's random", counts="noisy_python", error="own::noisy_python", undone=False)
def _(net, h, i):
    return noisy_python(h)


@operator("seeded", inputs=2)
def seeded(x: torch.Tensor, seed: int) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return x * (torch.rand_like(x) < 0.5)


@case("an operator seeds the generator and puts it back", counts="seeded")
def _(net, h, i):
    return seeded(h, i)


@operator("reseeding")
def reseeding(x: torch.Tensor) -> torch.Tensor:
    y = x * (torch.rand_like(x) < 0.5)
    torch.manual_seed(int(torch.randint(1000, ())))
    return y


@case("an operator draws and seeds the generator anew", counts="reseeding")
def _(net, h, i):
    return reseeding(h)


@operator("rejecting")
def rejecting(x: torch.Tensor) -> torch.Tensor:
    factor = torch.rand(())
    while factor < 0.6:
        factor = torch.rand(())
    return x * factor


@case("an operator draws as often as its numbers say", counts="rejecting")
def _(net, h, i):
    return rejecting(torch.nn.functional.dropout(h, 0.1, True))


class MaskedDropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand_like(x) >= p
        ctx.save_for_backward(mask)
        ctx.p = p
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask / (1 - ctx.p), None


@case("a function draws and saves its mask")
def _(net, h, i):
    return MaskedDropout.apply(h, 0.3)


class DrawsInBackward(Function):
    """Rounds gradients stochastically, as low-precision training does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return noisy(g * x.cos()) + torch.rand_like(g) * 1e-3


@case("a function draws in backward")
def _(net, h, i):
    return DrawsInBackward.apply(noisy(h))
