"""Optimizer steps without an effect: what their updates take, and the state that they will make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _core
from ._capture import unrecorded
from ._leaves import is_leaf_with_gradient, is_plain_leaf
from ._objects import LiveObjects
from ._twins import attributes_of, twin_of
from ._updates import ParameterSteps
from .errors import Error, UsageError


def _innermost(optimizer: Any) -> Any:
    """The optimizer that a wrapper, such as Accelerate's, hands its steps to."""
    while hasattr(getattr(optimizer, "optimizer", None), "param_groups"):
        optimizer = optimizer.optimizer
    return optimizer


def _rehearse_lbfgs(twin: Any, step: Callable[..., Any]) -> None:
    """Its state grows for `history_size` iterations, and its step holds vectors of its own while its closure runs: all of
    these are made at once. Then it iterates on gradients that do not change."""
    group = twin.param_groups[0]
    gradient = twin._gather_flat_grad()
    book = twin.state[twin._params[0]]
    if "old_dirs" not in book:  # inside of its step, it has begun to count
        book.update(
            func_evals=1, n_iter=1, d=gradient.neg(), t=group["lr"], prev_loss=0.0, prev_flat_grad=gradient.clone(),
            H_diag=torch.ones_like(gradient[0]), old_dirs=[], old_stps=[], ro=[],
        )
    for name, like in (("old_dirs", gradient), ("old_stps", gradient), ("ro", gradient[0])):
        book[name] += [torch.zeros_like(like) for _ in range(group["history_size"] - len(book[name]))]
    if not hasattr(twin, "_held"):
        twin._held = [gradient.clone() for _ in range(12 if group["line_search_fn"] else 6)]
    loss = gradient.new_zeros(())
    step(twin, lambda: loss)


def _tensors_in(thing: Any, known: set[int]) -> list[torch.Tensor]:
    """Returns the tensors in an optimizer's attributes, including nested dictionaries and lists."""
    if id(thing) in known:
        return []
    known.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, torch.optim.Optimizer):
        thing = attributes_of(thing)
    if isinstance(thing, dict):
        return [tensor for key, value in thing.items() for one in (key, value) for tensor in _tensors_in(one, known)]
    if isinstance(thing, (list, tuple, set)):
        return [tensor for value in thing for tensor in _tensors_in(value, known)]
    return []


def _is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _rehearse(twin: Any) -> None:
    kind = type(twin)
    written = _tensors_in(attributes_of(twin), set())
    # The core sees writes of PyTorch operators alone. Apex, DeepSpeed and ctypes write without them, and writes to DTensor
    # shards are not seen before PyTorch 2.13: have these tensors copied first.
    shards = [tensor._local_tensor for tensor in written if hasattr(tensor, "_local_tensor")]
    _core.announce_writes(shards if _is_torchs(twin) else [*written, *shards])
    step = getattr(kind.step, "__wrapped__", kind.step) if getattr(kind.step, "hooked", False) else kind.step
    with torch.enable_grad():
        if isinstance(twin, torch.optim.LBFGS):
            _rehearse_lbfgs(twin, step)
        elif _is_torchs(twin):
            step(twin)
        else:
            _step_with_or_without_closure(twin, step)


def _step_with_or_without_closure(twin: Any, step: Callable[..., Any]) -> None:
    """Calls step(), or step(closure) if that raises. The closure sets the gradients again, as another backward pass would.
    Raises UsageError if both fail."""
    gradients = [(p, p.grad) for group in twin.param_groups for p in group["params"] if p.grad is not None]

    def closure() -> torch.Tensor:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        return torch.zeros(())

    try:
        step(twin)
    except (Error, torch.OutOfMemoryError):
        raise
    except Exception as why:
        try:
            step(twin, closure)
        except (Error, torch.OutOfMemoryError):
            raise
        except Exception:
            raise UsageError(
                f"fit: the step of {type(twin).__name__} cannot be tried out without the program's: "
                f"{type(why).__name__}: {why}; leave out the sample: fit(step, budget=...) records the first real step"
            ) from why


def _make_state_of_the_rest(twin: Any) -> None:
    """Of parameters that this step has no gradient for, as other steps may, one at a time: with gradients of zeros, which take no
    memory where no fused kernel reads them. What optimizers that are not PyTorch's do with one parameter is not known."""
    if isinstance(twin, (torch.optim.LBFGS, torch.optim.SparseAdam)) or not _is_torchs(twin):
        return
    steps = ParameterSteps([twin], _rehearse)
    is_fused = any(group.get("fused") for group in twin.param_groups)
    for parameter in steps.parameters:
        if parameter.grad is not None:
            continue
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter):  # around another tensor, as a DTensor
            parameter.grad = torch.zeros_like(parameter)
        else:
            zero = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
            parameter.grad = zero.expand(parameter.shape).contiguous() if is_fused else zero.expand(parameter.shape)
        try:
            steps.step(parameter)
        finally:
            parameter.grad = None


def _grow_old(twin: Any) -> None:
    """Late updates may take another way than early ones: RAdam's do after five."""
    for state in twin.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, torch.Tensor):
            step.add_(1000)
        elif isinstance(step, int):
            state["step"] = step + 1000


class Rehearsals:
    """What the core runs where an update belongs. Writes of its operators are undone by the core; the optimizers
    themselves are not touched: twins of them step. in_backward: each parameter as its gradient arrives."""

    def __init__(self, optimizers: Any, update: Callable[[], None] | None, in_backward: bool = False) -> None:
        self.in_backward = in_backward
        if update is not None and optimizers is not None:
            raise UsageError("fit: it has an optimizer and an update; give one of them, the update if it runs the optimizer")
        given = () if optimizers is None else optimizers if isinstance(optimizers, Iterable) else (optimizers,)
        self._optimizers: list[Any] = []
        for optimizer in given:
            self.add(optimizer)
        self._update = update
        self._twins: list[Any] = []
        self._steps = ParameterSteps([], _rehearse)
        if in_backward and any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in self._optimizers):
            raise UsageError("fit: LBFGS runs the step itself, as often as it likes; it cannot update in the backward pass")

    def steps(self) -> ParameterSteps:
        """Of the optimizers themselves."""
        return ParameterSteps(self._optimizers)

    def add(self, optimizer: Any) -> None:
        optimizer = _innermost(optimizer)
        if not all(hasattr(optimizer, name) for name in ("step", "param_groups", "state")):
            raise UsageError(
                f"fit: the optimizer is a {type(optimizer).__name__}, without the step, param_groups and state of a "
                f"torch.optim.Optimizer; give one that has them, or its memory by `update`"
            )
        if all(known is not optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)

    @property
    def parameters(self) -> list[torch.Tensor]:
        """That the optimizers write; none where one of them is not a plain tensor, whose operators see others."""
        all_of_them = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
        return all_of_them if all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in all_of_them) else []

    def run(self) -> bool:
        with unrecorded():
            return self._run()

    def _run(self) -> bool:
        if self._update is not None:
            self._update()
            return True
        made = len(self._twins)
        for optimizer in self._optimizers[made:]:
            self._twins.append(twin_of(optimizer))
        for twin in self._twins:
            _rehearse(twin)
        for twin in self._twins[made:]:
            _make_state_of_the_rest(twin)
        for twin in self._twins[:made]:
            _grow_old(twin)
            _rehearse(twin)
        return bool(self._twins)

    def prepare(self) -> None:
        """Makes the state that updates in the backward pass will find, one gradient at a time."""
        with unrecorded():
            self._twins = [twin_of(optimizer) for optimizer in self._optimizers]
            self._steps = ParameterSteps(self._twins, _rehearse)
            for parameter in self._steps.parameters:
                gradient, parameter.grad = parameter.grad, torch.zeros_like(parameter)
                self._steps.step(parameter)
                parameter.grad = gradient

    def each(self, parameter: torch.Tensor) -> None:
        with unrecorded():
            if self._steps.step(parameter):
                parameter.grad = None

    def forget(self) -> None:
        self._twins.clear()
        self._steps = ParameterSteps([], _rehearse)


def _put_aside(live: LiveObjects) -> list[tuple[Any, ...]]:
    """Returns each leaf, whether it is plain, its gradient and its hooks. A function of its own, because a loop variable would
    keep the last tensor alive during the step."""
    kept = []
    for thing in live.tensors:
        if not is_leaf_with_gradient(thing):
            continue
        plain = is_plain_leaf(thing)
        # FSDP2 runs hooks of its shards by itself; the core puts those of plain tensors aside.
        hooks = None if plain else getattr(thing, "_post_accumulate_grad_hooks", None)
        kept.append((thing, plain, thing.grad, hooks))
        if thing.grad is not None:
            thing.grad = None
        if hooks:
            thing._post_accumulate_grad_hooks = None
    return kept


@contextmanager
def leaves_kept(live: LiveObjects) -> Iterator[list[torch.Tensor]]:
    """No leaf tensor of the process has a gradient inside, so that a step may free or zero them; all have the same as
    before afterwards. PythonState restores the rest of them. No other thread may train meanwhile.
    Gives those that are tensors around others, as DTensors: FSDP2 puts gradients there by itself.
    """
    kept = _put_aside(live)
    _core.tag([thing for thing, plain, *_ in kept if plain and isinstance(thing, torch.nn.Parameter)], "weights")
    try:
        yield [thing for thing, plain, *_ in kept if not plain and thing.layout == torch.strided]
    finally:
        for tensor, _, gradient, hooks in kept:
            if hooks:
                tensor._post_accumulate_grad_hooks = hooks
            if gradient is not None or tensor.grad is not None:
                tensor.grad = gradient
