"""Steps that run their own backward pass: it is put off until the forward pass is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError

_here = threading.local()
_plain_backward = torch.Tensor.backward


class _Captured:
    def __init__(self) -> None:
        self.loss: torch.Tensor | None = None


def _backward(self: torch.Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
              inputs: Any = None) -> None:
    """torch.Tensor.backward, but for a thread that is in the forward pass of a session's step."""
    captured: _Captured | None = getattr(_here, "captured", None)
    if captured is None or torch._C._current_graph_task_id() != -1:
        _plain_backward(self, gradient, retain_graph, create_graph, inputs)
        return
    if captured.loss is not None:
        raise UsageError("step: it calls backward() twice; a step has one loss: add them up, or make two steps of it")
    if gradient is not None and not (gradient.numel() == 1 and gradient.item() == 1) or create_graph or inputs is not None:
        raise UsageError("step: backward() with gradient, create_graph or inputs cannot be put off; return the loss")
    captured.loss = self


def loss_of(step: Callable[[Any], Any], batch: Any) -> Any:
    """Runs the step and returns its loss: what it returned, the `loss` of that, or what it called backward() on."""
    if torch.Tensor.backward is not _backward:
        torch.Tensor.backward = _backward  # for good: other threads may be inside of it
    outer, captured = getattr(_here, "captured", None), _Captured()
    _here.captured = captured
    try:
        result = step(batch)
    finally:
        _here.captured = outer
    if captured.loss is not None:
        return captured.loss
    return result if isinstance(result, torch.Tensor) else getattr(result, "loss", result)
