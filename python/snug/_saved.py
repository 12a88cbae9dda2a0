"""Saved tensors of autograd.Function as the program saved them: with their identity, their attributes and their subclass."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _core
from .errors import UsageError

_plain = torch._C._FunctionBase.saved_tensors
_plain_save = FunctionCtx.save_for_backward

_Look = tuple[type[torch.Tensor], dict[str, Any]]


def _look_of(tensor: torch.Tensor) -> _Look | None:
    """Returns the class and the attributes of a tensor, or None for parameters, whose identity is kept, and wrapper subclasses."""
    # A wrapper subclass has its inner tensors as attributes: sharing those would keep their memory.
    if type(tensor) is torch.nn.Parameter or is_traceable_wrapper_subclass(tensor):
        return None
    return type(tensor), tensor.__dict__  # which the program may fill later


def _with_look(tensor: torch.Tensor, look: _Look) -> torch.Tensor:
    """Returns the tensor with that class and those attributes, which it shares with the original."""
    # as_subclass must record a grad_fn, also in backward, where grad mode is off: the program may call backward() on it.
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        same = tensor if type(tensor) is look[0] else torch.Tensor.as_subclass(tensor, look[0])
    same.__dict__ = look[1]
    return same


def _save_for_backward(ctx: Any, *tensors: Any) -> None:
    ctx._snug_looks = _core.ExpectedLooks(ctx, [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)])
    _plain_save(ctx, *tensors)


def _saved_tensors(ctx: Any) -> Any:
    return _core.with_originals(ctx, lambda: _plain.__get__(ctx))


def refuse_hooks_around(who: str) -> None:
    """Raises UsageError if saved_tensors_hooks are active: the hooks of snug are inner ones, so those would not be called."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise UsageError(
            f"{who}: saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks, save_on_cpu) are active around the step, and would "
            "not be called for what it saves; enter them inside the step, or remove them and pass host_budget, which offloads "
            "saved tensors to the host"
        )


_core.set_looks(_look_of, _with_look)

# Autograd wraps the result of an unpack hook in a new tensor, which loses the class and the attributes of the original.
BackwardCFunction.save_for_backward = _save_for_backward  # type: ignore[method-assign]
BackwardCFunction.saved_tensors = property(_saved_tensors, doc=_plain.__doc__)  # type: ignore[misc]
