"""Leaves of autograd, and what belongs to them that is no Python attribute."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from . import _core


def is_leaf_with_gradient(tensor: torch.Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # an exception may hold one
        return False
    try:
        return tensor.is_leaf and tensor.requires_grad
    except RuntimeError:
        # is_leaf raises for a view that was made under no_grad and whose base was written in place since.
        return False


def is_plain_leaf(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf with a storage of its own: no subclass, sparse tensor, wrapper of torch.func or inference tensor."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_nested:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.is_inference():
        return False
    try:
        return tensor.is_leaf
    except RuntimeError:  # as above
        return False


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class SavedLeaf:
    """Restores a plain leaf's storage, dtype, sizes and strides, requires_grad, that it is a leaf, and its hooks. Not its
    contents, which the core restores. Does not keep the tensor alive: a step may replace it, and frees it then."""

    def __init__(self, tensor: torch.Tensor) -> None:
        hooks = [(name, getattr(tensor, name)) for name in _HOOKS]
        # The callback refers to this dictionary and not to self: a cycle would keep the weak reference alive until the next garbage
        # collection, and torch.utils.swap_tensors refuses tensors with weak references.
        self._held: dict[str, Any] = {
            "data": tensor.detach(), "hooks": hooks, "contents": [dict(hooks or {}) for _, hooks in hooks],
        }
        self._tensor = weakref.ref(tensor, lambda _, held=self._held: held.clear())  # type: ignore[misc]
        self._requires_grad = tensor.requires_grad

    def hooks(self) -> list[Any]:
        return [hook for contents in self._held.get("contents", ()) for hook in contents.values()]

    @staticmethod
    def _has_moved(tensor: torch.Tensor, data: torch.Tensor) -> bool:
        layout = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (tensor, data)]
        return layout[0] != layout[1] or tensor.untyped_storage()._cdata != data.untyped_storage()._cdata

    def put_back(self) -> None:
        tensor = self._tensor()
        if tensor is None:
            return
        data = self._held["data"]
        if not tensor.is_leaf:  # an in-place operator has given it a grad_fn
            _core.forget_history(tensor)
        if self._has_moved(tensor, data):
            tensor.data = data
        for (name, hooks), contents in zip(self._held["hooks"], self._held["contents"]):
            if getattr(tensor, name) is not hooks:
                setattr(tensor, name, hooks)
            if hooks is not None and hooks != contents:
                hooks.clear()
                hooks.update(contents)
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
