"""Operators of snug in the modules of transformers models."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _core
from .allowed import check_module, checked_names
from .errors import UsageError
from .regions import is_naming


@dataclass(frozen=True)
class Fused:
    """A module that computes with an operator of snug, as fuse returns it.

    Args:
        module: The module's path in the model.
        operator: The operator's name.
        bitwise: Whether all gradients keep the bits that they had.

    Example:
        >>> [fused.module for fused in snug.fuse(model) if fused.bitwise]
    """

    module: str
    operator: str
    bitwise: bool = True


# The activations of torch and transformers whose bits the operators have, by the names of their classes.
_ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}


def _activation(module: nn.Module) -> str | None:
    return _ACTIVATIONS.get(type(module).__name__)


def _is_plain(module: nn.Module) -> bool:
    """That calling it does no more than its forward: no hooks, but those of name_modules, and no other forward put into it."""
    all_hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    hooks = [hook for some in all_hooks for hook in some.values() if not is_naming(hook)]
    return not hooks and "forward" not in module.__dict__ and not torch.nn.modules.module._has_any_global_hook()


def _gated_forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """What is fused. Compared with the source of a class's own forward, and not called."""
    return module.down_proj(module.act_fn(module.gate_proj(x)) * module.up_proj(x))


def _normalizing_forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The same."""
    return module.weight * (
        x.to(torch.float32) * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    ).to(x.dtype)


class _Inlined(ast.NodeTransformer):
    """An expression with what its names stand for."""

    def __init__(self, meanings: dict[str, ast.expr]) -> None:
        self.meanings = meanings

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.meanings.get(node.id, node)


def _expression(function: Any) -> str | None:
    """What a function of two parameters returns, whatever its names are, if all it does is to name what it computes on its way;
    None for others."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list or len(tree.args.args) != 2 or tree.args.kwonlyargs:
        return None
    meanings: dict[str, ast.expr] = {
        a.arg: ast.Name(name, ast.Load()) for a, name in zip(tree.args.args, ("self", "x"), strict=True)
    }
    *steps, last = [n for n in tree.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    for step in steps:
        match step:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                meanings[name] = _Inlined(meanings).visit(copy.deepcopy(value))
            case _:
                return None
    match last:
        case ast.Return(value=ast.expr() as value):
            return ast.dump(_Inlined(meanings).visit(copy.deepcopy(value)))
    return None


@functools.cache
def _is_written_as(base: type[nn.Module], forward: Any) -> bool:
    """Whether a class's forward is that expression."""
    written = _expression(forward)
    return written is not None and _expression(base.forward) == written


class _Kind:
    """What fused modules are besides their own class."""

    operator: str
    bitwise: bool

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made here, and no module has it under its name.
        state = super().__reduce_ex__(protocol)[2]
        kind, base = type(self).__bases__
        return _new_fused, (kind, base), state


class _Gated(_Kind):
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)), of which only what the activation and the product are of is kept."""

    operator = "gated_linear"
    bitwise = True

    @staticmethod
    def recognizes(module: nn.Module, base: type[nn.Module]) -> bool:
        parts = dict(module.named_children())
        if set(parts) != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
            return False
        activation = parts["act_fn"]
        return _is_written_as(base, _gated_forward) and _activation(activation) is not None and _is_plain(activation)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) != 1 or kwargs or _in_transform():
            return super().forward(*args, **kwargs)
        return self._fused(args[0])

    def _fused(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        name = _activation(self.act_fn)
        alike = gate.dtype == up.dtype and gate.shape == up.shape and gate.is_floating_point()
        # Of other classes of tensors, what an operator in C++ would make of them is not known.
        if name is None or not _is_plain(self.act_fn) or not alike or not type(gate) is type(up) is torch.Tensor:
            return down(self.act_fn(gate) * up)
        if type(down) is nn.Linear and _is_plain(down) and all(type(p) in _TENSORS for p in (down.weight, down.bias)):
            return _core.activated_linear(gate, up, name, down.weight, down.bias)
        return down(_core.gated(gate, up, name))


class _TiledGated(_Gated):
    """The same, of a few rows at a time. What is kept of them can be made again by themselves."""

    operator = "tiled_gated_linear"
    bitwise = False

    def _fused(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.snug_rows
        # Dropout, as adapters have it, would draw other masks.
        draws = any(isinstance(m, nn.Dropout) and m.training and m.p > 0 for m in self.modules())
        if x.dim() < 2 or x.numel() <= rows * x.shape[-1] or draws:
            return super()._fused(x)
        parts = [super(_TiledGated, self)._fused(part) for part in x.reshape(-1, x.shape[-1]).split(rows)]
        return torch.cat(parts).view(*x.shape[:-1], -1)


class _RmsNorm(_Kind):
    """An RMSNorm, in one pass each way, of which nothing but its input is kept."""

    operator = "rms_norm"
    bitwise = False

    @staticmethod
    def recognizes(module: nn.Module, base: type[nn.Module]) -> bool:
        return _is_written_as(base, _normalizing_forward) and isinstance(module.weight, nn.Parameter)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Of others, what is rounded between is rounded elsewhere, and weights of other shapes are spread.
        weight = self.weight
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor and type(weight) in _TENSORS and not _in_transform():
            (x,) = args
            if x.dtype == weight.dtype == torch.float32 and weight.dim() == 1 and weight.shape == x.shape[-1:]:
                return _core.rms_norm(x, weight, self.variance_epsilon)
        return super().forward(*args, **kwargs)


_TENSORS = (torch.Tensor, nn.Parameter, type(None))


def _in_transform() -> bool:
    """Whether torch.func transforms what is computed, which functions in C++ do not know."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _new_fused(kind: type[_Kind], base: type[nn.Module]) -> nn.Module:
    fused = _class_of(kind, base)
    return fused.__new__(fused)


@functools.cache
def _class_of(kind: type[_Kind], base: type[nn.Module]) -> type[nn.Module]:
    return type(f"Fused{base.__name__}", (kind, base), {})


# What `allow` takes.
_ALLOWED = ("rms_norm", "tiled_mlp")


def fuse(model: nn.Module, *, allow: Sequence[str] = (), mlp_rows: int | None = None) -> list[Fused]:
    """Replaces computations in modules of a transformers model by operators of snug that save fewer tensors.

    Gated feed-forward modules, down_proj(act_fn(gate_proj(x)) * up_proj(x)) as in Llama, Qwen, Mistral and Gemma, save two
    of four tensors of the inner width, with the same bits. A class is recognized by the source of its forward.
    Parameters, names, hooks and adapters stay as they were. unfuse undoes it.

    Args:
        model: The model, which is changed in place.
        allow: Changes that add sums in another order, by name. "rms_norm": an RMSNorm in fp32 is one pass each way and
            saves its input alone; forward has the same bits. "tiled_mlp": gated modules take `mlp_rows` rows at a time,
            so that plans can recompute tile by tile; hooks of their layers run once for each tile. Modules with dropout
            inside are not tiled in training. A second call tiles what is fused already.
        mlp_rows: Rows of a tile, with "tiled_mlp". By default 512.

    Returns:
        The modules that this call changed.

    Raises:
        UsageError: The model is no torch.nn.Module, a name in `allow` is unknown, or mlp_rows is below 1 or has no
            effect.

    Example:
        >>> for fused in snug.fuse(model):
        ...     print(fused.module, fused.operator)
    """
    allow = checked_names("fuse", allow, _ALLOWED)
    check_module("fuse", model)
    if mlp_rows is not None and "tiled_mlp" not in allow:
        raise UsageError(f'fuse: mlp_rows is {mlp_rows}, and nothing is tiled; add allow=["tiled_mlp"]')
    rows = 512 if mlp_rows is None else mlp_rows
    if rows < 1:
        raise UsageError(f"fuse: mlp_rows is {rows}; it must be at least 1")
    kinds: list[type[_Kind]] = [_TiledGated if "tiled_mlp" in allow else _Gated]
    if "rms_norm" in allow:
        kinds.append(_RmsNorm)
    found: list[Fused] = []
    for name, module in model.named_modules():
        before, base = type(module).__bases__ if isinstance(module, _Kind) else (None, type(module))
        for kind in kinds:
            # What is fused already may still be tiled, or by another number of rows.
            is_new = before is None or (kind is _TiledGated and (before is _Gated or module.__dict__.get("snug_rows") != rows))
            if not is_new or "forward" in module.__dict__ or not kind.recognizes(module, base):
                continue
            module.__class__ = _class_of(kind, base)
            if kind is _TiledGated:
                module.snug_rows = rows
            found.append(Fused(name, kind.operator, kind.bitwise))
            break
    return found


def unfuse(model: nn.Module) -> None:
    """Undoes fuse.

    Args:
        model: The model, which is changed in place.

    Raises:
        UsageError: The model is no torch.nn.Module.

    Example:
        >>> snug.unfuse(model)
    """
    check_module("unfuse", model)
    for module in model.modules():
        if isinstance(module, _Kind):
            module.__class__ = type(module).__bases__[1]
            module.__dict__.pop("snug_rows", None)
