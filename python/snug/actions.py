"""Actions of regions and checkpoints: what happens to the tensors that autograd saves inside."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy

from . import _core
from ._core import Choice, OperatorContext
from .errors import UsageError, shown
from .sizes import Size, bytes_of

Answer = Choice | CheckpointPolicy | bool
Policy = Callable[[OperatorContext], Answer]
Operator = str | OpOverload | OpOverloadPacket | CustomOpDef

# The overload without a name, as PyTorch writes it: torch.ops.aten.sum.default.
_DEFAULT = ".default"


@dataclass(frozen=True)
class Keep:
    """Keeps what autograd saves, as without a region.

    Example:
        >>> with snug.Region(snug.Keep()):
        ...     y = block(x)
    """


@dataclass(frozen=True)
class Recompute:
    """Drops what autograd saves, and replays the recorded operators in backward.

    Example:
        >>> with snug.Region(snug.Recompute()):
        ...     y = block(x)
    """


@dataclass(frozen=True, init=False)
class Offload:
    """Moves what autograd saves out of the device's memory, and fetches it in backward.

    Tensors of an accelerator are moved to the CPU's memory, and tensors of the CPU to a file in TMPDIR.

    Args:
        min_bytes: Storages with fewer bytes stay: a number or a text such as "1MiB".

    Raises:
        UsageError: The size cannot be parsed or is negative.

    Example:
        >>> with snug.Region(snug.Offload(min_bytes="4MiB")):
        ...     y = block(x)
    """

    min_bytes: int

    def __init__(self, *, min_bytes: Size = 1 << 20) -> None:
        size = bytes_of("Offload: min_bytes", min_bytes)
        if size < 0:
            raise UsageError(f"Offload: min_bytes is {size}; give 0 bytes or more")
        object.__setattr__(self, "min_bytes", size)


@dataclass(frozen=True, init=False)
class Selective:
    """Keeps the results of the named operators, and of all operators in the named modules. All else is recomputed.

    Args:
        keep: Operators, as a list like the one of torch.utils.checkpoint.create_selective_checkpoint_contexts. A
            torch.ops.aten.add.Tensor or a text "aten::add.Tensor" is one overload, and "aten::sum.default" is the
            overload without a name. A torch.ops.aten.add or a text "aten::add" is all overloads. A function that
            torch.library.custom_op has made is the operator. The attribute `keep` has them as texts.
        keep_modules: Paths of modules, as ModuleScope and name_modules give them. "mlp" is every module of this name,
            with the modules inside.

    Raises:
        UsageError: An argument is no list, or has an entry that is neither an operator nor a text. Texts that name no
            operator are refused where the region begins.

    Example:
        >>> with snug.Region(snug.Selective([torch.ops.aten.mm.default, "aten::addmm"])):
        ...     y = block(x)
    """

    keep: tuple[str, ...]
    keep_modules: tuple[str, ...]

    def __init__(self, keep: Iterable[Operator] = (), *, keep_modules: Iterable[str] = ()) -> None:
        names = tuple(_operator_name(operator) for operator in _entries("keep", keep))
        paths = tuple(_module_path(module) for module in _entries("keep_modules", keep_modules))
        object.__setattr__(self, "keep", names)
        object.__setattr__(self, "keep_modules", paths)


Action = Keep | Recompute | Offload | Selective | Policy


def _entries(what: str, entries: Any) -> list[Any]:
    is_one = isinstance(entries, (str, OpOverload, OpOverloadPacket, CustomOpDef))
    if is_one or not isinstance(entries, Iterable):
        text = f'"{entries}"' if isinstance(entries, str) else entries
        raise UsageError(f"Selective: {what} is {text}; give a list: {what}=[{text}]")
    return list(entries)


def _operator_name(operator: Any) -> str:
    if isinstance(operator, str):
        return operator
    if isinstance(operator, CustomOpDef):
        operator = operator._opoverload
    if isinstance(operator, OpOverload):
        name: str = operator._name
        return name if operator._overloadname != "default" else name + _DEFAULT
    if isinstance(operator, OpOverloadPacket):
        return str(operator._qualified_op_name)
    if isinstance(operator, HigherOrderOperator):
        raise UsageError(
            f"Selective: keep has the higher-order operator {operator}; name operators that it runs, or give "
            "its module in keep_modules"
        )
    raise UsageError(
        f"Selective: keep has {shown(operator)}, a {type(operator).__name__}; give names such as \"aten::mm\", or "
        "operators such as torch.ops.aten.mm.default"
    )


def _module_path(module: Any) -> str:
    if not isinstance(module, str):
        raise UsageError(
            f"Selective: keep_modules has {type(module).__name__}; give paths of modules, as \"blocks.3.mlp\", which "
            "name_modules and ModuleScope give to operators"
        )
    return module


# --- policies --------------------------------------------------------------------------------------------------------

# By name: versions of torch differ in which they have.
_CHOICES = {
    "MUST_SAVE": Choice.MustKeep,
    "PREFER_SAVE": Choice.PreferKeep,
    "MUST_RECOMPUTE": Choice.MustRecompute,
    "PREFER_RECOMPUTE": Choice.PreferRecompute,
    "MUST_CPU_OFFLOAD": Choice.Offload,
    "PREFER_CPU_OFFLOAD": Choice.Offload,
}


def choice_of(answer: Any, operator: str) -> Choice:
    """Returns the Choice that a policy's answer stands for.

    Args:
        answer: A Choice, a CheckpointPolicy, or as torch.utils.checkpoint takes it a bool: True is MUST_SAVE and False
            is PREFER_RECOMPUTE.
        operator: The operator's name, for the message.

    Raises:
        UsageError: The answer is something else.
    """
    if isinstance(answer, Choice):
        return answer
    if isinstance(answer, CheckpointPolicy):
        return _CHOICES[answer.name]
    if isinstance(answer, bool):
        return Choice.MustKeep if answer else Choice.PreferRecompute
    raise UsageError(
        f"region: the policy returned {shown(answer)} for {operator}; return a snug.Choice or a "
        "torch.utils.checkpoint.CheckpointPolicy"
    )


def _asking(policy: Policy) -> Callable[[OperatorContext], Choice]:
    return lambda operator: choice_of(policy(operator), operator.name)


# --- conversion ------------------------------------------------------------------------------------------------------


def in_core(action: Any) -> Any:
    """Returns the extension's object for an action. Other objects are returned as they are: _core.Region refuses them.

    Raises:
        UsageError: The action is a region, or a Selective with names of no operator.
    """
    if isinstance(action, Keep):
        return _core.Keep()
    if isinstance(action, Recompute):
        return _core.Recompute()
    if isinstance(action, Offload):
        return _core.Offload(min_bytes=action.min_bytes)
    if isinstance(action, Selective):
        defaults = {name.removesuffix(_DEFAULT) for name in action.keep if name.endswith(_DEFAULT)}
        if defaults:
            return _selective_policy(action, defaults)
        return _core.Selective(keep=action.keep, keep_modules=action.keep_modules)
    if isinstance(action, contextlib.ContextDecorator):  # which can be called, as policies can
        raise UsageError(f"region: the action is a {type(action).__name__}; give the action that it has")
    if callable(action) and not isinstance(action, type):
        return _asking(action)
    return action


def _selective_policy(action: Selective, defaults: Set[str]) -> Callable[[OperatorContext], Choice]:
    """Returns the policy for a list with overloads without a name. In the extension "aten::sum" is all overloads."""
    others = [name for name in action.keep if not name.endswith(_DEFAULT)]
    _check_names(action.keep)
    kept: dict[str, bool] = {}

    def policy(operator: OperatorContext) -> Choice:
        name = operator.name
        keep = kept.get(name)
        if keep is None:
            keep = name in defaults or any(name == other or name.startswith(other + ".") for other in others)
            kept[name] = keep
        if not keep and action.keep_modules:
            path = f".{operator.module}."
            keep = any(not module or f".{module}." in path for module in action.keep_modules)
        return Choice.MustKeep if keep else Choice.PreferRecompute

    return policy


_checked: set[str] = set()


def _check_names(names: Iterable[str]) -> None:
    """Raises UsageError for a name that no operator has, unless its library may be loaded later."""
    unchecked = [name for name in names if name not in _checked]
    if not unchecked:
        return
    known = {name if "." in name else name + _DEFAULT for name in torch._C._dispatch_get_all_op_names()}
    known |= {name.partition(".")[0] for name in known}
    libraries = {name.partition("::")[0] for name in known}
    for name in unchecked:
        library, colons, _ = name.partition("::")
        if name not in known and (not colons or library in libraries):
            near = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise UsageError(
                f'selective: keep has "{name}", and no operator is called so; {hint}names are as "aten::mm", or with '
                'an overload as "aten::add.Tensor"'
            )
        _checked.add(name)
