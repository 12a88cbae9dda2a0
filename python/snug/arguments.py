"""The arguments of one call of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError


class Arguments:
    """The arguments of one call of a step that takes more than one argument.

    fit, plan, verify, gradient_errors and Session.backward call step(*args, **kwargs) for Arguments(*args, **kwargs), and
    step(sample) for any other sample, a tuple or a dictionary included.

    Args:
        *args: Positional arguments of the step.
        **kwargs: Keyword arguments of the step.

    Example:
        >>> def step(x, y, mask=None):
        ...     return loss_of(model(x, mask), y)
        >>> session = snug.fit(step, snug.Arguments(x, y, mask=mask), "8GiB")
        >>> loss = session(x, y, mask=mask)
    """

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    @staticmethod
    def of(*args: Any, **kwargs: Any) -> Arguments:
        """Returns the only argument if it is an Arguments already, or else an Arguments of all."""
        if len(args) == 1 and not kwargs and isinstance(args[0], Arguments):
            return args[0]
        return Arguments(*args, **kwargs)

    def call(self, step: Callable[..., Any]) -> Any:
        """Returns step(*args, **kwargs)."""
        return step(*self.args, **self.kwargs)

    def refuse_step_among(self, step: Callable[..., Any]) -> None:
        """Raises UsageError for (batch, function) where `step` takes the batch alone: the function is meant as the step."""
        if len(self.args) != 2 or not callable(self.args[1]) or isinstance(self.args[1], torch.Tensor):
            return
        if _takes(step, *self.args, **self.kwargs) is False and _takes(step, self.args[0], **self.kwargs):
            raise UsageError(
                "session: backward(batch, function) passes both to the step, which takes one argument; give another "
                "step by its name: backward(batch, step=function)"
            )

    def __repr__(self) -> str:
        parts = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"Arguments({', '.join(parts)})"


def _takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool | None:
    """Returns whether a function takes these arguments, or None if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
