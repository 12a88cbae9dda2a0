"""Leaves of autograd, and what belongs to them that is no Python attribute."""

from __future__ import annotations

import torch


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
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.is_inference():
        return False
    try:
        return tensor.is_leaf
    except RuntimeError:  # as above
        return False


class SavedLeaf:
    """Restores a plain leaf's storage, dtype, sizes and strides, requires_grad, that it is a leaf, and the hooks of
    tensor.register_hook. Not its contents, which the core restores."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._data = tensor.detach()
        self._requires_grad = tensor.requires_grad
        self.hooks = tensor._backward_hooks
        self._contents = dict(self.hooks or {})

    def _has_moved(self) -> bool:
        tensor, data = self._tensor, self._data
        layout = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (tensor, data)]
        return layout[0] != layout[1] or tensor.untyped_storage()._cdata != data.untyped_storage()._cdata

    def put_back(self) -> None:
        tensor = self._tensor
        if not tensor.is_leaf:  # an in-place operator has given it a grad_fn
            tensor.detach_()
        if self._has_moved():
            tensor.data = self._data
        if tensor._backward_hooks is not self.hooks:
            tensor._backward_hooks = self.hooks
        if self.hooks is not None and self.hooks != self._contents:
            self.hooks.clear()
            self.hooks.update(self._contents)
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
