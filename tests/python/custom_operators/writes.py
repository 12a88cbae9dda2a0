"""Operators and functions that write."""
import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch.autograd import Function

import snug

from .network import ROWS, STATE, WIDTH, case, raw
from .operators import define, operator


@operator("double_", None, mutates={"x"})
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


@case("an operator writes a result of another", counts="double_")
def _(net, h, i):
    gate = h.detach().sigmoid()
    double_(gate)
    return h * gate


@operator("track_", None, mutates={"mean"})
def track_(x: torch.Tensor, mean: torch.Tensor) -> None:
    mean.mul_(0.9).add_(x.float().mean(0), alpha=0.1)


@case("an operator without a result writes a buffer", counts="track_", replays=None)
def _(net, h, i):
    track_(h.detach(), net.buffers[i])
    return h - net.buffers[i]


@operator("normalized", None, mutates={"mean"})
def normalized_and_count(x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean.mul_(0.9).add_(x.float().mean(0), alpha=0.1)
    return x.float() - mean, torch.tensor(x.shape[0])


@case("an operator writes a buffer that its result depends on", counts="normalized")
def _(net, h, i):
    with torch.no_grad():
        centred, count = normalized_and_count(h.detach(), net.buffers[i])
    return h * centred / count.sqrt()


@case("an operator writes views of a result", counts="double_", replays=2)
def _(net, h, i):
    gate = h.detach().sigmoid()
    double_(gate[:, ::2])
    double_(gate.t()[:5])
    return h * gate


@define("scale_(Tensor(a!) x, float factor) -> Tensor(a!)")
def scale_(x, factor):
    return x.mul_(factor)


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        return scale_(x, factor)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


@case("a function writes its input in place by an operator", counts="scale_", replays=0)
def _(net, h, i):
    return Scaled.apply(h + 1, 1.5)


@define("sum_into(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
def sum_into(x, y, *, out):
    return out.copy_(x * y + x)


@case("an operator writes its `out`", counts="sum_into")
def _(net, h, i):
    out = torch.empty_like(h)
    sum_into(h.detach(), h.detach().cos(), out=out)
    return h * out


@operator("fill_all", None, mutates={"outs"})
def fill_all(x: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
    for k, out in enumerate(outs):
        out.copy_(x * (k + 1))


@case("an operator writes a list of tensors", counts="fill_all")
def _(net, h, i):
    outs = [torch.zeros_like(h) for _ in range(3)]
    fill_all(h.detach().sin(), outs)
    return h * outs[0] + h.sin() * outs[2]


@define("into(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
def into(x, *, out):
    return out.resize_(x.shape).copy_(x * 2)


@case("an operator resizes its `out`", counts="into")
def _(net, h, i):
    out = torch.zeros(i, dtype=h.dtype)
    into(h.detach(), out=out)
    return h * out


@define("mix_(Tensor(a!) out, Tensor x) -> ()")
def mix_(out, x):
    out.mul_(x).add_(x)


@case("an operator reads a part of the memory that it writes", counts="mix_", replays=2)
def _(net, h, i):
    gate = h.detach().sigmoid()
    mix_(gate[:, :32], gate[:, 32:])
    mix_(gate, gate)
    return h * gate


@define("replace_(Tensor(a!) x, Tensor y) -> ()")
def replace_(x, y):
    x.set_(y * 2)


@case("an operator gives its argument another memory", counts="replace_", error="own::replace_")
def _(net, h, i):
    gate = torch.zeros(3, dtype=h.dtype)
    replace_(gate, h.detach())
    return h * gate


@operator("quantize_", None, mutates={"amax"})
def quantize_(x: torch.Tensor, amax: torch.Tensor | None) -> torch.Tensor:
    if amax is not None:
        amax.copy_(x.abs().amax().float())
    return torch.round(x * 16)


@case("an operator writes an optional argument", counts="quantize_")
def _(net, h, i):
    return h * quantize_(h.detach(), net.history[i, 0] if i % 2 else None)


@operator("anything", None, mutates="unknown")
def anything(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    buffer.add_(x.float().mean(0))
    return x * 2


@case("an operator may write anything that it is given", counts="anything")
def _(net, h, i):
    return h * anything(h.detach().clone(), net.buffers[i])


@operator("store_", None, mutates={"cache"})
def store_(cache: torch.Tensor, x: torch.Tensor, row: int) -> None:
    cache[row].copy_(x.float().mean(0))


@case("an operator writes a row of a cache that later layers read", counts="store_", replays=None)
def _(net, h, i):
    store_(net.history, h.detach(), i)
    return h * (1 + net.history[: i + 1].mean(0))


@operator("clamp_weight_", None, mutates={"w"})
def clamp_weight_(w: torch.Tensor) -> None:
    w.clamp_(-0.3, 0.3)


@case("an operator writes a parameter before it is used", counts="clamp_weight_", replays=None)
def _(net, h, i):
    with torch.no_grad():
        clamp_weight_(net.scales[i])
    return h * net.scales[i]


@operator("hidden_sum", lambda ctx, g: g, inputs=2)
def hidden_sum(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x.float().mean(0))
    return x * (1 + total)


@case("an operator writes an argument in secret, and its result shows it", counts="hidden_sum", error="own::hidden_sum",
      undone=False)
def _(net, h, i):
    return hidden_sum(h, net.buffers[i])


@operator("hidden_amax", lambda ctx, g: g, inputs=2)
def hidden_amax(x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    amax.add_(x.float().abs().amax())
    return x * 2


@case("an operator writes an argument in secret, and its result does not show it", counts="hidden_amax",
      error="own::hidden_amax", undone=False)
def _(net, h, i):
    return hidden_amax(h, net.buffers[i])


@operator("declared_amax", lambda ctx, g: g, inputs=2)
def declared_amax(x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    amax.add_(x.float().abs().amax())
    return x * (1 + amax)


snug.declare_operator(declared_amax, writes=[1])


@case("an operator writes an argument and is declared", counts="declared_amax")
def _(net, h, i):
    return declared_amax(h, net.buffers[i])


@operator("global_amax", inputs=2)
def global_amax(x: torch.Tensor, layer: int) -> torch.Tensor:
    STATE["amax"][layer] += x.float().abs().amax()
    return x * 2


@case("an operator writes a tensor that is no argument", counts="global_amax", replays=0)
def _(net, h, i):
    return global_amax(h, i)


@operator("hidden_clamp")
def hidden_clamp(x: torch.Tensor) -> torch.Tensor:
    x.clamp_(-0.5, 0.5)
    return x * 2


@case("an operator writes an activation in secret", counts="hidden_clamp")
def _(net, h, i):
    h = h.sin()
    gate = h.detach()
    return hidden_clamp(gate) + h.cos() * h


UNSEEN = "something that PyTorch does not see wrote"


@operator("hidden_raw")
def hidden_raw(x: torch.Tensor) -> torch.Tensor:
    raw(x)[:, ::2] = 0
    return x * 2


@case("an operator writes an activation in secret by NumPy", counts="hidden_raw", error=f"{UNSEEN}|own::hidden_raw")
def _(net, h, i):
    h = h.sin()
    return hidden_raw(h) + h * h


@define("own_buffer(Tensor x) -> Tensor")
def own_buffer(x):
    return STATE["amax"]


@case("an operator returns a buffer of its own that the program writes", counts="own_buffer", error="own::own_buffer")
def _(net, h, i):
    buffer = own_buffer(h.detach())
    with torch.no_grad():
        buffer.add_(h.float().abs().amax())
    return h * (1 + buffer[i].clone())


@case("NumPy writes an element of an input after it was used", error=UNSEEN)
def _(net, h, i):
    array = np.ones((ROWS, WIDTH), np.float32)
    y = h * 0.05 * torch.from_numpy(array)
    array[517, 3] = 2
    return y


@case("NumPy writes over a result", error=UNSEEN, replayed_when_mm_is_kept=False)
def _(net, h, i):
    raw(h)[:, ::2] = 0
    return h


@case("NumPy writes over a result after it was saved", error=UNSEEN,
      broken="backward gets what the operator saved, and plain PyTorch what was written since",
      broken_in=("recompute", "twice", "all recomputed"))
def _(net, h, i):
    y = h.sin()
    raw(h)[:, ::2] = 0
    return y


@case("NumPy writes over a result and the version is raised")
def _(net, h, i):
    raw(h)[:, ::2] = 0
    torch.autograd.graph.increment_version(h)
    return h * 1.5


@case("NumPy writes into zeros", error=UNSEEN)
def _(net, h, i):
    gate = torch.zeros_like(h)
    raw(gate)[...] = raw(h.detach().sigmoid())
    return h * gate


@case("NumPy writes into empty memory")
def _(net, h, i):
    gate = torch.empty_like(h)
    raw(gate)[...] = raw(h.detach().sigmoid())
    return h * gate


@case("ctypes writes over a result", error=UNSEEN, replayed_when_mm_is_kept=False)
def _(net, h, i):
    half = h.detach()[: ROWS // 2].clone()
    ctypes.memmove(h.data_ptr() + half.nbytes, half.data_ptr(), half.nbytes)
    return h


@operator("by_numpy")
def by_numpy(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    raw(out)[...] = raw(x * 2)
    return out


@case("an operator fills its own result by NumPy", counts="by_numpy")
def _(net, h, i):
    return by_numpy(h)


@operator("by_numpy_", None, mutates={"x"})
def by_numpy_(x: torch.Tensor) -> None:
    raw(x)[:, ::3] = 0


@case("an operator writes its argument by NumPy", counts="by_numpy_")
def _(net, h, i):
    gate = h.detach().sigmoid()
    by_numpy_(gate)
    return h * gate


class LigerLoss(Function):
    """Cross-entropy that writes the gradients over the logits, with a kernel that is no operator."""

    @staticmethod
    def forward(ctx, logits, targets, tells):
        probabilities = logits.float().softmax(1)
        loss = -probabilities.gather(1, targets[:, None]).log().mean()
        probabilities.scatter_add_(1, targets[:, None], torch.full((len(targets), 1), -1.0))
        raw(logits)[...] = raw((probabilities / len(targets)).to(logits.dtype))
        if tells:
            torch.autograd.graph.increment_version(logits)
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx, g):
        (gradients,) = ctx.saved_tensors
        return gradients.mul_(g), None, None


def liger_step(tells):
    def step(net, batch):
        h = net.chain(batch)
        targets = torch.arange(ROWS) % WIDTH
        return LigerLoss.apply(h @ net.weights[0], targets, tells)

    return step


@case("a loss writes gradients over its logits", step=liger_step(False), error=UNSEEN, replayed_when_mm_is_kept=False,
      repeats=False)
def _(net, h, i):
    return h * net.scales[i]


@case("a loss writes gradients over its logits and says so", step=liger_step(True), repeats=False)
def _(net, h, i):
    return h * net.scales[i]
