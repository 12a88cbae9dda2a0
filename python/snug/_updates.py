"""Optimizers that update in the backward pass: one parameter at a time, as its gradient arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError


def _stepped(optimizer: Any) -> None:
    optimizer.step()


def _numbers_of(optimizer: Any) -> list[dict[str, Any]]:
    """What its groups hold beside parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def refuse_hooks(optimizers: list[Any]) -> None:
    """What an optimizer runs around each step would run for each parameter."""
    for optimizer in optimizers:
        if getattr(optimizer, "_optimizer_step_pre_hooks", None) or getattr(optimizer, "_optimizer_step_post_hooks", None):
            raise UsageError(
                f"fit: in_backward is True, and {type(optimizer).__name__} has hooks around its step, which would run once for "
                f"each parameter; do what they do after session.backward(), or leave in_backward out"
            )


class ParameterSteps:
    """Steps of optimizers for one parameter at a time."""

    def __init__(self, optimizers: list[Any], step: Callable[[Any], None] = _stepped) -> None:
        self._step = step
        self.optimizers = optimizers
        self.parameters = [p for optimizer in optimizers for p in self.parameters_of(optimizer)]
        self._of: dict[int, tuple[Any, int]] = {}
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups):
                self._of.update((id(p), (optimizer, index)) for p in group["params"])

    @staticmethod
    def parameters_of(optimizer: Any) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]

    def step(self, parameter: torch.Tensor) -> bool:
        """Whether one of the optimizers has it, and has stepped with it alone."""
        optimizer, index = self._of.get(id(parameter), (None, 0))
        if optimizer is None:
            return False
        groups = optimizer.param_groups
        all_parameters, numbers = [group["params"] for group in groups], _numbers_of(optimizer)
        for i, group in enumerate(groups):
            group["params"] = [parameter] if i == index else []
        try:
            self._step(optimizer)
        finally:
            for group, own in zip(groups, all_parameters, strict=True):
                group["params"] = own
        if any(a[key] is not b.get(key) and a[key] != b.get(key) for a, b in zip(_numbers_of(optimizer), numbers, strict=True) for key in a):
            raise UsageError(
                f"fit: {type(optimizer).__name__} counts its steps for all parameters together, so that it cannot update "
                f"them one by one in the backward pass; leave in_backward out"
            )
        return True


class UpdatesInBackward:
    """While it is entered, each parameter is stepped with where its gradient has been accumulated, which goes then."""

    def __init__(self, steps: ParameterSteps) -> None:
        self._steps = steps
        self._on = False
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in steps.parameters]

    def _arrived(self, parameter: torch.Tensor) -> None:
        if self._on and self._steps.step(parameter):
            parameter.grad = None

    def __enter__(self) -> None:
        refuse_hooks(self._steps.optimizers)
        self._on = True

    def __exit__(self, *_: object) -> None:
        self._on = False

    def finish(self) -> None:
        """After a backward pass with updates: of gradients that did not arrive in it, as they are of earlier micro-batches or of
        parameters that began to train since."""
        for optimizer in self._steps.optimizers:
            for parameter in ParameterSteps.parameters_of(optimizer):
                if parameter.grad is None:
                    continue
                if not self._steps.step(parameter):
                    raise UsageError(
                        "session: the optimizer was given parameters after fit, which updates in backward do not know; close the "
                        "session and fit again"
                    )
                parameter.grad = None

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
