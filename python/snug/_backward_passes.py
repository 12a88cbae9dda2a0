"""The backward passes of a step function that runs, and the loss that it returns after them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from . import _core
from .errors import UsageError


class BackwardPasses:
    """Of one run of a step function. Of micro-batches nothing is held: in plain PyTorch the graph of each goes before the next
    one comes, and the inputs that the step made for it."""

    def __init__(self) -> None:
        self._of_micro_batches = False
        self._count = 0
        self._roots: list[Any] = []  # whose nodes have yet to be noted
        self._passed = _core.PassedNodes()
        self._seen: list[weakref.ref[torch.Tensor]] = []  # the roots
        self._only: torch.Tensor | None = None  # the loss, detached, where there is one pass from one tensor

    def micro_batch_begins(self) -> None:
        self._of_micro_batches = True
        self._note_nodes()

    def add(self, roots: list[Any]) -> None:
        """A backward pass from these, tensors and GradientEdges, has run."""
        tensors = [root for root in roots if isinstance(root, torch.Tensor)]
        self._count += 1
        is_loss = self._count == 1 and len(tensors) == 1 and (not self._of_micro_batches or tensors[0].numel() == 1)
        self._only = tensors[0].detach() if is_loss else None
        self._seen += map(weakref.ref, tensors)
        self._roots += roots
        if self._count > 1 or self._of_micro_batches:
            self._note_nodes()

    def _note_nodes(self) -> None:
        """A walk of the graph, which a step with one backward pass, from the loss that it returns, does without."""
        self._passed.add(self._roots)
        self._roots.clear()

    def loss(self, result: Any, may_skip_backward: bool) -> torch.Tensor | None:
        """The loss of a step that returned this: see loss_of."""
        if self._count == 0:
            return result.detach() if may_skip_backward and isinstance(result, torch.Tensor) else result
        if not isinstance(result, torch.Tensor):
            return self._only
        if not result.requires_grad:
            return result
        if any(root() is result for root in self._seen):
            return result.detach()
        self._note_nodes()
        if self._passed.have_all_of(result):
            return result.detach()
        if self._of_micro_batches and _core.is_of_micro_batch(result):  # which has not gone backward
            return result.detach() if may_skip_backward else result
        raise UsageError(
            "step: it calls backward() on one loss and returns another, whose gradient would be missing; return their sum, "
            "or call backward() on it, or return it detached"
        )
