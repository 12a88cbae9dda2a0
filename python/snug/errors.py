"""What snug raises. Every message is one line: the operation, the actual values, the rule that was broken, what to do."""

from __future__ import annotations

import reprlib
from typing import Any

import torch


class Error(RuntimeError):
    """Base class of all errors of snug.

    Example:
        >>> try:
        ...     session = snug.fit(step, batch, "8GiB")
        ... except snug.Error as error:
        ...     print(error)
    """


class UsageError(Error, ValueError):
    """An argument or a call is wrong. The message says what to write. Is a ValueError.

    Example:
        >>> snug.parse_bytes("8 bananas")
        Traceback (most recent call last):
        snug.errors.UsageError: ...
    """


class DoesNotFit(Error):
    """No plan keeps the step under the budget. Nothing was trained, and memory is as before.

    Attributes:
        budget: Bytes of the budget.
        floor: Bytes of the smallest budget that fits. With only_begun, what the step would have taken where it stopped.
        step_bytes: Bytes that the step adds.
        static_by_tag: Bytes allocated before the step, by use.
        strategy: The strategy whose plans were tried.
        only_begun: Whether the step could not be recorded within the budget.
        device: The device of other_budgets that is short; "" for the device of the budget.

    Example:
        >>> try:
        ...     session = snug.fit(step, batch, budget)
        ... except snug.DoesNotFit as error:
        ...     session = snug.fit(step, batch, error.floor)
    """

    def __init__(self, message: str, **figures: object) -> None:
        super().__init__(message)
        self.budget: int = 0
        self.floor: int = 0
        self.step_bytes: int = 0
        self.static_by_tag: dict[str, int] = {}
        self.strategy: str = ""
        self.only_begun: bool = False
        self.device: str = ""
        self.__dict__.update(figures)


# What torch's allocators say. Programs that look for the largest batch that fits search messages for it: Accelerate,
# Lightning and what is built on them.
_WORDS_OF_TORCH = {"cpu": "DefaultCPUAllocator: can't allocate memory", "mps": "MPS backend out of memory"}


def _as_torch_says(device: str) -> str:
    kind = device.partition(":")[0]
    return _WORDS_OF_TORCH.get(kind, f"{kind.upper()} out of memory.")


class OutOfBudget(Error, torch.OutOfMemoryError, MemoryError):
    """An allocation would pass the limit and nothing was left to evict. It did not happen; the process can go on.

    Is a torch.OutOfMemoryError, and its message ends with torch's words for the device, so that programs that try
    smaller batches recognize it: accelerate.find_executable_batch_size and Lightning's Tuner.

    Attributes:
        requested: Bytes that were requested.
        allocated: Bytes of the device that were allocated.
        limit: Bytes of the device that may be allocated.
        device: The device, as "cuda:0".
        operation: The operator that requested them, if known.
        by_tag: Allocated bytes by their use.

    Example:
        >>> try:
        ...     session.backward(batch)
        ... except torch.OutOfMemoryError:
        ...     optimizer.zero_grad()
    """

    def __init__(self, message: str, **figures: object) -> None:
        device = figures.get("device")
        super().__init__(f"{message} ({_as_torch_says(str(device))})" if device else message)
        self.requested: int = 0
        self.allocated: int = 0
        self.limit: int = 0
        self.device: str = ""
        self.operation: str = ""
        self.by_tag: dict[str, int] = {}
        self.__dict__.update(figures)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles without the extension's own record, which belongs to this process."""
        figures = {name: value for name, value in self.__dict__.items() if name != "_details"}
        return (type(self), self.args, figures)


class Mismatch(Error):
    """Bits differ between a plain and a planned step, as verify found.

    Attributes:
        names: What differs: "loss", "gradient of 0.weight", ...

    Example:
        >>> try:
        ...     snug.verify(step, batch, model, "8GiB")
        ... except snug.Mismatch as error:
        ...     print(error.names)
    """

    def __init__(self, message: str, names: list[str] | None = None) -> None:
        super().__init__(message)
        self.names = names or []


class UpdateBegins(BaseException):
    """Leaves a step function that is only recorded, or verified, where its update begins. Not for programs to catch."""


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def shown(value: Any) -> str:
    """Returns repr(value) on one line, shortened to about 60 characters, for messages."""
    return " ".join(_short.repr(value).split())


def reason_of(error: Error) -> str:
    """Returns the message without the operation that it begins with, for a message that begins with another operation."""
    name, _, rest = str(error).partition(": ")
    return rest if rest and " " not in name else str(error)
