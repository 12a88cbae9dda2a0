"""Saved tensors of autograd.Function as the program saved them: with their identity, their attributes and their subclass."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _core

_plain = torch._C._FunctionBase.saved_tensors
_plain_save = FunctionCtx.save_for_backward

_Look = tuple[type[torch.Tensor], dict[str, Any]]


def _look_of(tensor: Any) -> _Look | None:
    """Returns the class and the attributes of a tensor, or None for a torch.Tensor without attributes."""
    if not isinstance(tensor, torch.Tensor) or not (tensor.__dict__ or type(tensor) is not torch.Tensor):
        return None
    # A wrapper subclass has its inner tensors as attributes: sharing those would keep their memory.
    if type(tensor) is torch.nn.Parameter or is_traceable_wrapper_subclass(tensor):
        return None
    return type(tensor), tensor.__dict__


def _with_look(tensor: Any, look: _Look | None) -> Any:
    """Returns the tensor with that class and those attributes, which it shares with the original."""
    if look is None or tensor is None or (type(tensor) is look[0] and tensor.__dict__ is look[1]):
        return tensor
    # as_subclass must record a grad_fn, also in backward, where grad mode is off: the program may call backward() on it.
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        same = tensor if type(tensor) is look[0] else torch.Tensor.as_subclass(tensor, look[0])
    same.__dict__ = look[1]
    return same


def _save_for_backward(ctx: Any, *tensors: Any) -> None:
    looks = [_look_of(tensor) for tensor in tensors]
    kept = looks if any(looks) and _core.packs_saved_tensors() else None
    if kept is not None or hasattr(ctx, "_snug_looks"):  # from an earlier call
        ctx._snug_looks = kept
    _plain_save(ctx, *tensors)


def _saved_tensors(ctx: Any) -> Any:
    tensors = _core.with_originals(lambda: _plain.__get__(ctx))
    looks = getattr(ctx, "_snug_looks", None)
    if looks is None or not isinstance(tensors, tuple) or len(tensors) != len(looks):
        return tensors
    return tuple(map(_with_look, tensors, looks))


# With saved-tensor hooks, autograd gives the pack hook a detached tensor, and wraps the unpack hook's result in a new one:
# both lose the class and the attributes of the original.
BackwardCFunction.save_for_backward = _save_for_backward  # type: ignore[method-assign]
BackwardCFunction.saved_tensors = property(_saved_tensors, doc=_plain.__doc__)  # type: ignore[misc]
