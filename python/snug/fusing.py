"""Operators of snug in the modules of transformers models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _core


@dataclass(frozen=True)
class Fused:
    """A module that computes with an operator of snug, under its name in the model."""

    module: str
    operator: str


# The activations of torch and transformers whose bits the operators have, by the names of their classes.
_ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}


def _activation(module: nn.Module) -> str | None:
    return _ACTIVATIONS.get(type(module).__name__)


def _is_plain(module: nn.Module) -> bool:
    """That calling it does no more than its forward: no hooks, and no other forward put into it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in module.__dict__


class _Gated:
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)), of which only what the activation and the product are of is kept."""

    operator = "gated_linear"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = _activation(self.act_fn)
        if name is None or not _is_plain(self.act_fn):
            return super().forward(x)
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        if gate.dtype != up.dtype or gate.shape != up.shape:
            return down(self.act_fn(gate) * up)
        if type(down) is nn.Linear and _is_plain(down):
            return _core.activated_linear(gate, up, name, down.weight, down.bias)
        return down(_core.gated(gate, up, name))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made here, and no module has it under its name.
        return _as_fused, (type(self).__bases__[1], self.__dict__.copy())


def _as_fused(base: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = base.__new__(base)
    module.__dict__.update(state)
    module.__class__ = _class_of(base)
    return module


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _class_of(base: type[nn.Module]) -> type[nn.Module]:
    if base not in _CLASSES:
        _CLASSES[base] = type(f"Fused{base.__name__}", (_Gated, base), {})
    return _CLASSES[base]


def _is_gated(module: nn.Module) -> bool:
    parts = dict(module.named_children())
    if set(parts) != {"gate_proj", "up_proj", "down_proj", "act_fn"} or not _is_plain(module):
        return False
    weight = getattr(parts["gate_proj"], "weight", None)
    is_matrix = isinstance(weight, torch.Tensor) and weight.dim() == 2 and weight.is_floating_point() and not weight.is_meta
    return is_matrix and _activation(parts["act_fn"]) is not None


def _results(module: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """What comes out, and the gradient of the input, on numbers that are always the same."""
    weight = module.gate_proj.weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 16, weight.shape[1], generator=generator).to(weight.dtype).to(weight.device).requires_grad_()
    y = forward(x)
    (gradient,) = torch.autograd.grad(y.float().square().sum(), x)
    return [y.detach(), gradient]


def _has_its_bits(module: nn.Module) -> bool:
    """Whether the fused module computes what its class says: a class of the same parts may do something else with them."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        plain = _results(module, module)
        base = type(module)
        module.__class__ = _class_of(base)
        try:
            fused = _results(module, module)
        finally:
            module.__class__ = base
    return all(torch.equal(a, b) for a, b in zip(plain, fused))


def fuse(model: nn.Module) -> list[Fused]:
    """Puts operators of snug into the modules of a transformers model, and says into which.

    Gated feed-forward parts (Llama, Qwen, Mistral, Gemma and those built like them) keep two of the four tensors of their
    inner width, and three reads and writes of them become one. Parameters, names, hooks and adapters are what they were, and so
    is every bit: each module is tried on random numbers before it is changed, and one that computes something else is left
    alone. Undo with `unfuse`.
    """
    found: list[Fused] = []
    tried: dict[tuple[type, type], bool] = {}
    for name, module in model.named_modules():
        if isinstance(module, _Gated) or not _is_gated(module):
            continue
        kind = (type(module), type(module.act_fn))
        if kind not in tried:
            tried[kind] = _has_its_bits(module)
        if tried[kind]:
            module.__class__ = _class_of(type(module))
            found.append(Fused(name, _Gated.operator))
    return found


def unfuse(model: nn.Module) -> None:
    """Takes out what `fuse` put in."""
    for module in model.modules():
        if isinstance(module, _Gated):
            module.__class__ = type(module).__bases__[1]
