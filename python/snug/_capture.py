"""Steps that run their own backward pass: it is put off until the forward pass is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError

_here = threading.local()


class _Captured:
    def __init__(self) -> None:
        self.loss: torch.Tensor | None = None


def _install() -> None:
    """Around whatever stands there. Once and for good: other libraries may wrap it in turn, and threads be inside of it."""
    plain = torch.Tensor.backward

    def backward(self: torch.Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
                 inputs: Any = None) -> None:
        captured: _Captured | None = getattr(_here, "captured", None)
        if captured is None or torch._C._current_graph_task_id() != -1:
            plain(self, gradient, retain_graph, create_graph, inputs)
            return
        if captured.loss is not None:
            raise UsageError("step: it calls backward() twice; a step has one loss: add them up, or make two steps of it")
        is_one = gradient is None or (gradient.numel() == 1 and gradient.item() == 1)
        if not is_one or create_graph or inputs is not None:
            raise UsageError("step: backward() with gradient, create_graph or inputs cannot be put off; return the loss")
        captured.loss = self

    backward.__doc__ = plain.__doc__
    backward.__wrapped__ = plain  # type: ignore[attr-defined]
    torch.Tensor.backward = backward  # type: ignore[method-assign]


_install()


def returned_loss(result: Any) -> Any:
    """The loss that a step returned: a tensor, or the `loss` of an output."""
    return result if isinstance(result, torch.Tensor) else getattr(result, "loss", result)


def _leads_to(loss: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `other` is `loss` or on the way to it."""
    wanted, seen, nodes = other.grad_fn, set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is wanted:
            return True
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [next_node for next_node, _ in node.next_functions]
    return False


def loss_of(step: Callable[[Any], Any], batch: Any) -> Any:
    """Runs the step and returns its loss: what it called backward() on, else what it returned."""
    outer, captured = getattr(_here, "captured", None), _Captured()
    _here.captured = captured
    try:
        result = returned_loss(step(batch))
    finally:
        _here.captured = outer
    if captured.loss is None:
        return result
    if isinstance(result, torch.Tensor) and result.requires_grad and not _leads_to(captured.loss, result):
        raise UsageError(
            "step: it calls backward() on one loss and returns another, whose gradient would be missing; return their sum, "
            "or call backward() on it"
        )
    return captured.loss


def run_plain(step: Callable[[Any], Any], batch: Any) -> torch.Tensor | None:
    """Forward and backward as without a session. Returns the loss of a step that does not call backward() itself."""
    calls = 0
    before = torch.Tensor.backward

    def counted(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        before(self, *args, **kwargs)

    torch.Tensor.backward = counted  # type: ignore[method-assign]
    try:
        result = returned_loss(step(batch))
    finally:
        torch.Tensor.backward = before  # type: ignore[method-assign]
    if calls > 0:
        return None
    if not isinstance(result, torch.Tensor):
        raise UsageError(f"step: it returned a {type(result).__name__}; return the loss, a tensor of one element")
    result.backward()
    return result
