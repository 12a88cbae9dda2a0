"""Tensors around others, as DTensor is: what autograd saves of them is what is inside, which a plan can make again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _core
from ._if_imported import is_a


def _wrapping(kind: Any, spec: Any) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Of DTensors, which their own __tensor_unflatten__ does not make with every placement."""

    def wrap(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            return kind(tensors[0], spec, requires_grad=False)

    return wrap


def unwrapped(tensor: Any) -> tuple[list[torch.Tensor], Callable[[Sequence[torch.Tensor]], torch.Tensor]] | None:
    """The tensors inside, and what makes a tensor like this one of such; None where its class does not say (by
    __tensor_flatten__, which PyTorch's own compiler asks for)."""
    if not is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        return None
    if is_a(tensor, "torch.distributed.tensor", "DTensor"):
        return [tensor.detach()._local_tensor], _wrapping(type(tensor), tensor._spec)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        names, context = tensor.detach().__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}
    kind, size, stride = type(tensor), tensor.size(), tensor.stride()
    inside = [name for name, part in parts.items() if isinstance(part, torch.Tensor)]
    others = {name: part for name, part in parts.items() if name not in inside}

    def wrap(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            return kind.__tensor_unflatten__({**others, **dict(zip(inside, tensors))}, context, size, stride)  # type: ignore[attr-defined]

    return [parts[name] for name in inside], wrap


_core.set_unwrap(unwrapped)
