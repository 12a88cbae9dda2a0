"""Leaves of autograd, and what belongs to them that is no Python attribute."""

from __future__ import annotations

import torch


def is_leaf_with_gradient(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf and tensor.requires_grad
    except RuntimeError:
        # A view that was made without gradients, of what an update has written to since: PyTorch answers nothing about it.
        return False


class SavedLeaf:
    """Whether a tensor requires a gradient, and the hooks of tensor.register_hook, which are no attributes of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._requires_grad = tensor.requires_grad
        self.hooks = tensor._backward_hooks
        self._contents = dict(self.hooks or {})

    def put_back(self) -> None:
        tensor = self._tensor
        if tensor._backward_hooks is not self.hooks:
            tensor._backward_hooks = self.hooks
        if self.hooks is not None and self.hooks != self._contents:
            self.hooks.clear()
            self.hooks.update(self._contents)
        if tensor.is_leaf and tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
