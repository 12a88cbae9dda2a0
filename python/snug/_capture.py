"""Step functions as the core runs them: with a backward pass of their own or without, and as far as their update."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import _core
from ._backward_passes import BackwardPasses
from .arguments import Arguments
from .errors import UpdateBegins, UsageError

_here = threading.local()


class Recorded:
    """While it is entered, this thread's step functions run as far as their update: where the first optimizer steps, or
    GradScaler for it, `update_begins` is called with that optimizer and the function is left. So it is in front of the
    first write to one of `parameters` after the backward pass. What GradScalers note on the way is put back at the end.

    Attributes:
        called_grad: Whether the step called torch.autograd.grad() other than as its backward pass.
        zeroes_gradients: Whether a step called zero_grad(set_to_none=False): later ones find gradients then.
    """

    def __init__(self, update_begins: Callable[[Any], None], parameters: list[torch.Tensor] | None = None) -> None:
        self._update_begins = update_begins
        self._parameters = {id(parameter) for parameter in parameters or ()}
        self.called_grad = False
        self.zeroes_gradients = False
        self._scalers: list[tuple[Any, dict[int, dict[str, Any]]]] = []
        self._stepping: list[Any] = []
        self._gate = _core.StopBeforeWrites(parameters) if parameters else None
        self.went_backward = False

    def __enter__(self) -> Recorded:
        self._outer = getattr(_here, "recorded", None)
        _here.recorded = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.recorded = self._outer
        self._put_back()

    def _leave_gate(self) -> None:
        if self._gate is not None:
            self._gate.exit()

    def _put_back(self) -> None:
        self._leave_gate()
        for scaler, books in self._scalers:
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update(books)
        self._scalers.clear()

    def begin(self) -> None:
        """A step function begins."""
        self._put_back()
        self.went_backward = self.called_grad = False
        self._stepping.clear()

    def backward_is_over(self) -> None:
        self.went_backward = True
        if self._stepping:  # in the closure of an optimizer
            self.update(self._stepping[-1])
        if self._gate is not None:
            self._gate.enter()

    def step(self, optimizer: Any, has_closure: bool) -> None:
        """The optimizer is about to step, or to call a closure that goes backward first."""
        # Behind autograd.grad() an optimizer of other tensors belongs to an inner loop, as that of an attack.
        by_grad = self.called_grad and not has_closure and self._has_parameters_of(optimizer)
        if self.went_backward or by_grad:
            self.update(optimizer)
        self._stepping.append(optimizer)

    def _has_parameters_of(self, optimizer: Any) -> bool:
        return any(id(parameter) in self._parameters for group in optimizer.param_groups for parameter in group["params"])

    def unscale(self, scaler: Any) -> None:
        if scaler.is_enabled() and all(known is not scaler for known, _ in self._scalers):
            self._scalers.append((scaler, {key: dict(book) for key, book in scaler._per_optimizer_states.items()}))

    def update(self, optimizer: Any) -> None:
        self._leave_gate()
        self._update_begins(optimizer)
        raise UpdateBegins


@contextmanager
def unrecorded() -> Iterator[None]:
    """For steps of optimizers that are rehearsed: they are no step's update."""
    outer, _here.recorded = _recorded(), None
    try:
        yield
    finally:
        _here.recorded = outer


def _recorded() -> Recorded | None:
    return getattr(_here, "recorded", None)


def _passes() -> BackwardPasses | None:
    return getattr(_here, "passes", None)


def _before_a_step(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    if recorded := _recorded():
        recorded.step(optimizer, any(callable(one) for one in (*arguments[1:], *named.values())))


class _Engine:
    """PyTorch's engine. backward() and grad() of all kinds go through it, and libraries that call it directly."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._plain = engine.run_backward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        with _core.GatesInBackward():
            return self._run_with_gates(tensors, *args, **kwargs)

    def _run_with_gates(self, roots: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1:
            return self._plain(roots, *args, **kwargs)
        accumulates = bool(kwargs.get("accumulate_grad", False))
        tensors = [root for root in roots if isinstance(root, torch.Tensor)]  # the others are GradientEdges
        # What needs no gradient is the engine's to refuse.
        is_step = all(t.requires_grad for t in tensors) and _core.backward_begins(list(roots), accumulates)
        result = self._plain(roots, *args, **kwargs)
        if is_step:
            if passes := _passes():
                passes.add(list(roots))
            _core.backward_ends()  # which may leave the function
        recorded = _recorded()
        if recorded is not None and (is_step or accumulates):
            recorded.backward_is_over()
        elif recorded is not None:
            recorded.called_grad = True
        return result


def _around_backward() -> None:
    torch.autograd.Variable._execution_engine = _Engine(torch.autograd.Variable._execution_engine)


def _around_scaler() -> None:
    scaler = torch.amp.GradScaler
    plain_unscale, plain_step = scaler.unscale_, scaler.step

    @functools.wraps(plain_unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        if recorded := _recorded():
            recorded.unscale(self)
        plain_unscale(self, optimizer)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorded = _recorded()
        if recorded is None or not recorded.went_backward or not self.is_enabled():
            return plain_step(self, optimizer, *args, **kwargs)
        # Whether gradients of the sample are finite must not decide what is planned.
        recorded.unscale(self)
        if self._per_optimizer_states[id(optimizer)]["stage"].name == "READY":
            self.unscale_(optimizer)
        recorded.update(optimizer)

    scaler.unscale_, scaler.step = unscale_, step


def _around_zero_grad(kind: Any) -> None:
    plain = kind.zero_grad

    @functools.wraps(plain)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if not set_to_none and (recorded := _recorded()):
            recorded.zeroes_gradients = True
        plain(self, set_to_none)

    kind.zero_grad = zero_grad


# Once and for good: other libraries may wrap what stands here in turn, and threads be inside of it.
_around_backward()
_around_scaler()
_around_zero_grad(torch.optim.Optimizer)
_around_zero_grad(torch.nn.Module)
register_optimizer_step_pre_hook(_before_a_step)


def micro_batch_begins(stage: int = 0) -> None:
    """The step function that runs on this thread, if any, has some."""
    if passes := _passes():
        passes.micro_batch_begins()
    _core.micro_batch_begins(stage)


def returned_loss(result: Any) -> Any:
    """The loss that a step returned: a tensor, or the `loss` of an output."""
    return result if isinstance(result, torch.Tensor) else getattr(result, "loss", result)


def loss_of(step: Callable[..., Any], arguments: Arguments, may_skip_backward: bool = False) -> torch.Tensor | None:
    """Runs the step. Returns the loss that it returned, or the one that it called backward() on.

    Args:
        may_skip_backward: Whether a step that did not call backward() has skipped its batch. Its loss is detached then.
    """
    outer, _here.passes = _passes(), BackwardPasses()
    if recorded := _recorded():
        recorded.begin()
    try:
        result = None
        try:
            result = returned_loss(arguments.call(step))
        except UpdateBegins:
            pass
        return _here.passes.loss(result, may_skip_backward)
    finally:
        _here.passes = outer


def run_plain(step: Callable[..., Any], arguments: Arguments) -> torch.Tensor | None:
    """Forward and backward as without a session, inside of a Recorded. Returns the loss of a step that does not call
    backward() itself."""
    recorded = _recorded()
    assert recorded is not None
    recorded.begin()
    result = None
    try:
        result = returned_loss(arguments.call(step))
    except UpdateBegins:
        return None
    if recorded.went_backward:
        return None
    if recorded.called_grad and not (isinstance(result, torch.Tensor) and result.requires_grad):
        return None
    if not isinstance(result, torch.Tensor):
        what = "None, and did not call backward()" if result is None else f"a {type(result).__name__}"
        raise UsageError(
            f"step: it returned {what}; return the loss, a tensor of one element, or call backward() within the step"
        )
    result.backward()
    return result
