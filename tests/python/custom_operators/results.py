"""State that operators keep, and kinds of results."""
import functools
import warnings
from collections.abc import Sequence

import torch
from torch.autograd import Function

import snug

from .network import CACHE, ROWS, STATE, WIDTH, case
from .operators import define, operator, save_inputs
from .randomness import noisy
from .writes import by_numpy, double_


@operator("counting")
def counting(x: torch.Tensor) -> torch.Tensor:
    STATE["counter"] += 1
    return x * (1 + STATE["counter"] / 8)


@case("an operator counts its calls", counts="counting", error="own::counting", undone=False)
def _(net, h, i):
    return counting(h)


@operator("counting_declared")
def counting_declared(x: torch.Tensor) -> torch.Tensor:
    STATE["counter"] += 1
    return x * (1 + STATE["counter"] / 8)


snug.declare_operator(counting_declared, keeps_state=True)


@case("an operator counts its calls and is declared", counts="counting_declared", replays=0, undone=False)
def _(net, h, i):
    return counting_declared(h)


@operator("remembering")
def remembering(x: torch.Tensor) -> torch.Tensor:
    last, STATE["last"] = STATE.get("last"), x.detach().clone()
    return x * 2 if last is None else x + last / 2


@case("an operator adds what it was given before", counts="remembering", error="own::remembering", undone=False)
def _(net, h, i):
    return remembering(h)


@operator("warming")
def warming(x: torch.Tensor) -> torch.Tensor:
    STATE["counter"] += 1
    return x * (1 if STATE["counter"] <= 2 * STATE["layers"] else 2)


@case("an operator counts its calls, and its result shows it in later steps", counts="warming", error="own::warming",
      undone=False, broken="replays count as well, and no result of the first step shows it",
      broken_in=("recompute", "selective", "all recomputed"))
def _(net, h, i):
    return warming(h)


@define("note(Tensor x) -> ()")
def note(x):
    STATE["counter"] += 1


@define("measure(Tensor x) -> float")
def measure(x):
    STATE["counter"] += 1
    return float(x.float().abs().max())


@case("operators without tensors as results count their calls", counts="measure", replays=0, undone=False)
def _(net, h, i):
    note(h.detach())
    return h * 2 / (1 + measure(h.detach()))


@operator("open_handle", None)
def open_handle(x: torch.Tensor) -> torch.Tensor:
    STATE["counter"] += 1
    CACHE[STATE["counter"]] = x.clone()
    return torch.tensor(STATE["counter"])


class ByHandle(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(open_handle(x))
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * CACHE.pop(int(ctx.saved_tensors[0])).cos()


@case("an operator returns a handle of what it keeps", counts="open_handle", error="own::open_handle", undone=False,
      repeats=False)
def _(net, h, i):
    return ByHandle.apply(h)


@define("table(Tensor x, int width) -> Tensor")
def table(x, width):
    if "table" not in STATE:
        STATE["table"] = torch.linspace(0, 1, width).cos()
    return STATE["table"]


@case("an operator returns a table that it makes once", counts="table", undone=False)
def _(net, h, i):
    return h * table(h.detach(), WIDTH)


@functools.cache
def workspace() -> torch.Tensor:
    return torch.empty(ROWS, WIDTH)


@operator("with_workspace")
def with_workspace(x: torch.Tensor) -> torch.Tensor:
    workspace().copy_(x).mul_(3)
    return (workspace() - x).to(x.dtype)


@case("an operator has a workspace that it makes once", counts="with_workspace", replays=0)
def _(net, h, i):
    return with_workspace(h)


@case("an operator of quantized layers takes packed weights")
def _(net, h, i):
    if "packed" not in CACHE:
        with warnings.catch_warnings(action="ignore"):
            weight = torch.quantize_per_tensor(torch.eye(WIDTH), 0.1, 0, torch.qint8)
        CACHE["packed"] = torch.ops.quantized.linear_prepack(weight, None)
    with torch.no_grad():
        gate = torch.ops.quantized.linear_dynamic(h.detach().float(), CACHE["packed"])
    return h * gate


# --- results ----------------------------------------------------------------------------------------------------------


@operator("several", lambda ctx, *gs: gs[0] + gs[1].to(gs[0].dtype), save=None)
def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    low = (x.float() / 2).to(torch.bfloat16)
    return x * 2, low, x.argmax(1), x > 0, torch.complex(x.double(), -x.double())


@case("an operator has results of many types", counts="several")
def _(net, h, i):
    doubled, low, index, mask, numbers = several(h)
    picked = h.gather(1, index[:, None])
    return doubled * mask + low.float() * picked + (numbers.detach().abs() * h).float()


@define("pieces(Tensor x, int count) -> Tensor[]")
def pieces(x, count):
    return [x * (k + 1) for k in range(count)]


@case("an operator has a list of results", counts="pieces")
def _(net, h, i):
    first, second, third = pieces(h.detach(), 3)
    return h * first + h.sin() * third + second


@define("perhaps(Tensor x, bool also) -> (Tensor, Tensor?)")
def perhaps(x, also):
    return x * 2, x * 3 if also else None


@case("an operator has a result that may be missing", counts="perhaps")
def _(net, h, i):
    first, second = perhaps(h.detach(), i % 2 == 0)
    return h * first if second is None else h * first + h.sin() * second


@define("largest(Tensor x) -> (Tensor, float)")
def largest(x):
    return x.abs() * 2, float(x.float().abs().max())


@case("an operator also has a number", counts="largest")
def _(net, h, i):
    gate, most = largest(h.detach())
    return h * gate / (most + 1)


@define("turned(Tensor(a) x) -> Tensor(a)")
def turned(x):
    return x.t()


@case("an operator returns a view of its argument")
def _(net, h, i):
    return (turned(h * 2).sin() * turned(h)).t()


@define("halves(Tensor x) -> (Tensor, Tensor)")
def halves(x):
    both = torch.cat([x * 2, x * 3])
    return both[: len(x)], both[len(x) :]


@case("an operator has two results in one memory", counts="halves")
def _(net, h, i):
    first, second = halves(h.detach())
    return h * first + h.sin() * second


@operator("strided", None)
def strided(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = torch.full((len(x), 2 * WIDTH), 5.0, dtype=x.dtype)
    wide[:, ::2] = x * 2
    return (x * 3).t().contiguous().t(), x.mean(0, keepdim=True).expand_as(x), wide[:, ::2]


@case("an operator has results that are not contiguous", counts="strided")
def _(net, h, i):
    turned_, same, part = strided(h.detach())
    return h * turned_ + h.sin() * part + h.cos() * same


@operator("counts_rows", None)
def counts_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:0] * 2, x.float().mean()


@case("an operator has an empty result and one without dimensions", counts="counts_rows")
def _(net, h, i):
    none, mean = counts_rows(h.detach())
    return h * mean + (h[:0] * none).sum()


@operator("by_layout", None)
def by_layout(x: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return x * (2 if x.is_contiguous() else 3) + whole.float().mean() + x.storage_offset()


@case("an operator looks at the layout and the memory around its argument", counts="by_layout", replays=2)
def _(net, h, i):
    gate = h.detach().sin()
    return h * by_layout(gate[:, 1:33].repeat(1, 2)) + torch.cat([by_layout(gate[:, 1:33])] * 2, 1) * h.sin()


@define("sparse(Tensor x) -> Tensor")
def sparse(x):
    return (x.float() * (x > 1)).to_sparse()


@case("an operator has a sparse result", counts="sparse", replays=0, autocast=False)
def _(net, h, i):
    gate = sparse(h.detach()[:WIDTH])
    return h + torch.sparse.mm(gate, h.float().t()).t()


@define("lazy(Tensor x) -> (Tensor, Tensor)")
def lazy(x):
    numbers = torch.complex(x.float(), x.float() * 2).conj()
    return numbers, numbers.imag


@case("an operator has results that are conjugate and negative by a bit", counts="lazy")
def _(net, h, i):
    numbers, negative = lazy(h.detach())
    assert numbers.is_conj() and negative.is_neg()
    return (h * numbers).imag + h.sin() * negative


@operator("to_fp8", None)
def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax() / 448
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


@case("an operator has a result in fp8", counts="to_fp8")
def _(net, h, i):
    codes, scale = to_fp8(h.detach())
    return h * (codes.float() * scale)


@operator("joined", lambda ctx, g: ([g * 2, g * 3],), inputs=1)
def joined(xs: Sequence[torch.Tensor]) -> torch.Tensor:
    return xs[0] * 2 + xs[1] * 3


@case("an operator takes a list of tensors", counts="joined")
def _(net, h, i):
    return joined([h, h.sin()])


@define(
    "described(Tensor x, *, float alpha=1.0, str mode='a', int[] dims=[], ScalarType? dtype=None, Device? device=None, "
    "Scalar s=2, Tensor? bias=None) -> Tensor"
)
def described(x, *, alpha=1.0, mode="a", dims=(), dtype=None, device=None, s=2, bias=None):
    y = (x.float().sum(dims, keepdim=True) / WIDTH + x).to(dtype).to(device) * alpha * s * (2 if mode == "b" else 1)
    return y if bias is None else y + bias


@case("an operator takes arguments of many types", counts="described")
def _(net, h, i):
    bias = net.scales[i].detach() if i % 2 else None
    gate = described(h.detach(), alpha=1.5, mode="b", dims=[1], dtype=torch.float64, device=h.device, s=3, bias=bias)
    return (h * gate).float()


@operator("outer")
def outer(x: torch.Tensor) -> torch.Tensor:
    y = noisy(x) + by_numpy(x)
    double_(y)
    return y


@case("an operator calls others", counts="outer")
def _(net, h, i):
    return outer(h)


@define("composed(Tensor x, Tensor w) -> Tensor", key="CompositeImplicitAutograd")
def composed(x, w):
    return noisy(x * w).sin()


@case("an operator is a composite", counts="noisy")
def _(net, h, i):
    return composed(h, net.scales[i])


@define("composed_mean(Tensor x, Tensor mean) -> Tensor", key="CompositeImplicitAutograd")
def composed_mean(x, mean):
    mean.mul_(0.9).add_(x.float().mean(0))
    return x.float() - mean


@case("a composite writes a buffer in secret, under inference_mode")
def _(net, h, i):
    with torch.inference_mode() if i % 2 else torch.no_grad():
        gate = composed_mean(h, net.buffers[i])
    return h * gate.clone()


@operator("quantized", lambda ctx, g, _: g * (ctx.saved_tensors[0].abs() < 3), save=save_inputs)
def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax() / 127
    codes = torch.round(x.float() / scale).to(torch.int8)
    return codes.float() * scale, codes


@case("an operator quantizes, with a straight-through gradient", counts="quantized")
def _(net, h, i):
    values, codes = quantized(h)
    return values + codes.float().mean()


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


@case("an operator is given a subclass", counts="noisy")
def _(net, h, i):
    return noisy(h.as_subclass(Tagged)).as_subclass(torch.Tensor)
