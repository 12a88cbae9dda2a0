"""The backward passes of a step function that runs, and the loss that it returns after them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from .errors import UsageError


def _nodes_of(tensors: list[torch.Tensor], stop: Callable[[Any], bool]) -> set[Any]:
    """The nodes of autograd that lead to these tensors. What comes behind a node where `stop` is true is left out, and it too."""
    seen: set[Any] = set()
    nodes = [tensor.grad_fn for tensor in tensors]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen or stop(node):
            continue
        seen.add(node)
        nodes += [next_node for next_node, _ in node.next_functions]
    return seen


def _is_accumulation(node: Any) -> bool:
    return not node.next_functions


class BackwardPasses:
    """Of one run of a step function. Of micro-batches nothing is held: the graph of each goes before the next one comes, and
    the inputs that the step made for it. The core knows which nodes their backward passes went through."""

    def __init__(self) -> None:
        self.of_micro_batches = False
        self._count = 0
        self._roots: list[torch.Tensor] = []
        self._seen: list[weakref.ref[torch.Tensor]] = []  # the roots
        self._only: torch.Tensor | None = None  # the loss, detached, where there is one pass from one tensor

    def add(self, roots: list[torch.Tensor]) -> None:
        """A backward pass from these has run."""
        self._count += 1
        is_loss = self._count == 1 and len(roots) == 1 and (not self.of_micro_batches or roots[0].numel() == 1)
        self._only = roots[0].detach() if is_loss else None
        self._seen += map(weakref.ref, roots)
        if not self.of_micro_batches:
            # Of several passes: what stages of a pipeline hand on is not to be held.
            self._roots = [root for root in self._roots if root.numel() == 1] + roots

    def _gone(self, result: torch.Tensor) -> tuple[bool, bool]:
        """Whether some of what the result is made of is part of what backward passes went through, or of what leads to that;
        and whether all of it is."""
        if self.of_micro_batches:
            def is_gone(node: Any) -> bool:
                return not _is_accumulation(node) and _core.went_backward_through(node._sequence_nr())
        else:
            passed = {node for node in _nodes_of(self._roots, lambda _: False) if not _is_accumulation(node)}
            is_gone = passed.__contains__
        nodes = _nodes_of([result], is_gone)
        some = is_gone(result.grad_fn) or any(
            following is not None and is_gone(following) for node in nodes for following, _ in node.next_functions
        )
        return some, not any(map(_is_accumulation, nodes))  # a parameter is part of anything

    def loss(self, result: Any, may_skip_backward: bool) -> torch.Tensor | None:
        """The loss of a step that returned this: see loss_of."""
        if self._count == 0:
            return result.detach() if may_skip_backward and isinstance(result, torch.Tensor) else result
        if not isinstance(result, torch.Tensor):
            return self._only
        if not result.requires_grad or any(root() is result for root in self._seen):
            return result
        some, everything = self._gone(result)
        if not some and self.of_micro_batches:
            return result  # that of the last, say: it is gone backward from
        if not everything:
            raise UsageError(
                "step: it calls backward() on one loss and returns another, whose gradient would be missing; return their "
                "sum, or call backward() on it, or return it detached"
            )
        return result
