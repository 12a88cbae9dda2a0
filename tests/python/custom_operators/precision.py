"""Precision, autocast and modes."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd import Function
from torch.utils.flop_counter import FlopCounterMode

from .network import LIBRARY, WIDTH, case
from .operators import backward_of_product, define, operator, save_inputs
from .randomness import noisy


@operator("projected", backward_of_product, save=save_inputs, inputs=2)
def projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.float() @ w).float()


@case("an operator computes under autocast, in fp32 outside", counts="projected")
def _(net, h, i):
    return projected(h, net.weights[i - 1])


@operator("projected_low", backward_of_product, save=save_inputs, inputs=2)
def projected_low(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x.float(), w)


@case("an operator returns what autocast makes of it", counts="projected_low")
def _(net, h, i):
    return projected_low(h, net.weights[i - 1])


@operator("toggling")
def toggling(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        exact = x.float() @ x.float().t()[:, :WIDTH]
    with torch.autocast("cpu", torch.float16):
        rough = x.float() @ x.float().t()[:, :WIDTH]
    return x + (exact - rough.float()) + (x.float() @ x.float().t()[:, :WIDTH]).float() * 1e-3


@case("an operator switches autocast itself", counts="toggling")
def _(net, h, i):
    return toggling(h)


@operator("asks_modes")
def asks_modes(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    return x.float().to(dtype) * (1 + 0.5 * torch.is_autocast_enabled("cpu")) * (1 + 0.25 * torch.is_grad_enabled())


@case("an operator asks for autocast and gradient mode", counts="asks_modes")
def _(net, h, i):
    if i % 2:
        with torch.autocast("cpu", torch.float16, enabled=net.autocast):
            return asks_modes(h)
    return asks_modes(h)


@operator("makes_default", None)
def makes_default(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape) * x / 3


@case("the default dtype changes around an operator", counts="makes_default")
def _(net, h, i):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        gate = makes_default(h.detach())
    finally:
        torch.set_default_dtype(before)
    return h * gate.float()


@operator("asks_flag")
def asks_flag(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.are_deterministic_algorithms_enabled())


@case("a flag of the process changes around an operator", counts="asks_flag")
def _(net, h, i):
    torch.use_deterministic_algorithms(True)
    try:
        return asks_flag(h)
    finally:
        torch.use_deterministic_algorithms(False)


@operator("asks_gradient", inputs=2)
def asks_gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * (1 + x.requires_grad)


@case("an operator looks at requires_grad of its argument", counts="asks_gradient")
def _(net, h, i):
    return asks_gradient(h, net.scales[i])


@operator("reads_attribute", lambda ctx, g: (g, None), inputs=2)
def reads_attribute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w.layer_scale


@case("an operator reads an attribute of a parameter", counts="reads_attribute",
      broken="a replay gives the operator a tensor that is not the parameter: AttributeError")
def _(net, h, i):
    net.scales[i].layer_scale = 1.5 + i
    return reads_attribute(h, net.scales[i])


@operator("asks_class", lambda ctx, g: (g, None), inputs=2)
def asks_class(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * (2 if isinstance(w, torch.nn.Parameter) else 3)


@case("an operator asks for the class of a parameter", counts="asks_class", error="own::asks_class")
def _(net, h, i):
    return asks_class(h, net.scales[i])


@operator("halved", None)
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@case("an operator runs under no_grad", counts="halved")
def _(net, h, i):
    with torch.no_grad():
        gate = halved(h).sigmoid()
    return h * gate


@case("an operator runs under inference_mode", counts="halved")
def _(net, h, i):
    with torch.inference_mode():
        gate = noisy(halved(h.detach())).sigmoid()
    return h * gate.clone()


@operator("threaded")
def threaded(x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda t: t * 1.5 + t.abs(), x.chunk(2)))
    return torch.cat(parts)


@case("an operator computes in threads of its own", counts="threaded")
def _(net, h, i):
    return threaded(h)


@case("a dispatch mode of the program sees the operators", counts="noisy")
def _(net, h, i):
    with FlopCounterMode(display=False):
        return noisy(h * 2)


@operator("vmapped")
def vmapped(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.sin()


vmapped.register_vmap(lambda info, dims, x: (vmapped(x), dims[0]))


@case("an operator runs under vmap", counts="vmapped")
def _(net, h, i):
    return h + torch.func.vmap(vmapped)(h.detach())


@operator("low_precision", backward_of_product, save=save_inputs, inputs=2)
def low_precision(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.to(x.dtype)


low_precision.register_autocast("cpu", torch.bfloat16)


@case("an operator has a rule for autocast", counts="low_precision")
def _(net, h, i):
    return low_precision(h, net.weights[i - 1])


class WithHistory(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.own.with_history(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


@define("with_history(Tensor x) -> Tensor", key="CPU")
def with_history(x):
    return x.sin() * torch.rand(())


LIBRARY.impl("with_history", WithHistory.apply, "Autograd")


@case("an operator has an autograd kernel of its own, as those of C++", counts="with_history")
def _(net, h, i):
    return with_history(h)
