"""Operators of snug in the modules of transformers models."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
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
    return not any(hooks) and "forward" not in module.__dict__ and not torch.nn.modules.module._has_any_global_hook()


def _forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """What is fused. Compared with the source of a class's own forward, and not called."""
    return module.down_proj(module.act_fn(module.gate_proj(x)) * module.up_proj(x))


class _Names(ast.NodeTransformer):
    """The first two parameters under names of ours, whatever they are called; without annotations."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.names = dict(zip([a.arg for a in function.args.args], ("self", "x"), strict=False))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def _expression(function: Any) -> str | None:
    """The one expression of its first two parameters that a function returns, perhaps by way of a name; None for others."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list or len(tree.args.args) != 2 or tree.args.kwonlyargs:
        return None
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    match body:
        case [ast.Return(value=ast.expr() as value)]:
            pass
        case [ast.Assign(targets=[ast.Name(id=name)], value=value), ast.Return(value=ast.Name(id=returned))] if name == returned:
            pass
        case _:
            return None
    return ast.dump(_Names(tree).visit(value))


@functools.cache
def _is_gated_class(base: type[nn.Module]) -> bool:
    """Whether its forward is written as the one that is fused."""
    return _expression(base.forward) == _expression(_forward)


class _Gated:
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)), of which only what the activation and the product are of is kept."""

    operator = "gated_linear"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        name = _activation(self.act_fn)
        alike = gate.dtype == up.dtype and gate.shape == up.shape and gate.is_floating_point()
        # Of other classes of tensors, what an operator in C++ would make of them is not known.
        if name is None or not _is_plain(self.act_fn) or not alike or not type(gate) is type(up) is torch.Tensor:
            return down(self.act_fn(gate) * up)
        if type(down) is nn.Linear and _is_plain(down) and all(type(p) in _TENSORS for p in (down.weight, down.bias)):
            return _core.activated_linear(gate, up, name, down.weight, down.bias)
        return down(_core.gated(gate, up, name))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made here, and no module has it under its name.
        state = super().__reduce_ex__(protocol)[2]
        return _new_fused, (type(self).__bases__[1],), state


_TENSORS = (torch.Tensor, nn.Parameter, type(None))


def _new_fused(base: type[nn.Module]) -> nn.Module:
    fused = _class_of(base)
    return fused.__new__(fused)


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _class_of(base: type[nn.Module]) -> type[nn.Module]:
    if base not in _CLASSES:
        _CLASSES[base] = type(f"Fused{base.__name__}", (_Gated, base), {})
    return _CLASSES[base]


def _is_gated(module: nn.Module) -> bool:
    parts = dict(module.named_children())
    if set(parts) != {"gate_proj", "up_proj", "down_proj", "act_fn"} or not _is_plain(module):
        return False
    return _is_gated_class(type(module)) and _activation(parts["act_fn"]) is not None


def fuse(model: nn.Module) -> list[Fused]:
    """Puts operators of snug into the modules of a transformers model, and says into which.

    Gated feed-forward parts (Llama, Qwen, Mistral, Gemma and those written like them) keep two of the four tensors of their
    inner width, and three reads and writes of them become one. Parameters, names, hooks and adapters are what they were, and so
    is every bit: a class is taken for one if the source of its forward is that of Llama's, whatever its names are. Undo with
    `unfuse`.
    """
    found: list[Fused] = []
    for name, module in model.named_modules():
        if not isinstance(module, _Gated) and _is_gated(module):
            module.__class__ = _class_of(type(module))
            found.append(Fused(name, _Gated.operator))
    return found


def unfuse(model: nn.Module) -> None:
    """Takes out what `fuse` put in."""
    for module in model.modules():
        if isinstance(module, _Gated):
            module.__class__ = type(module).__bases__[1]
