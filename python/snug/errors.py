"""What snug raises. Every message is one line: the operation, the actual values, the rule that was broken, what to do."""

from __future__ import annotations

import torch


class Error(RuntimeError):
    """Base of everything that snug raises."""


class UsageError(Error, ValueError):
    """The caller asked for something that cannot be: a size that does not parse, a step that returns no loss."""


class DoesNotFit(Error):
    """No plan keeps the step under the budget. Nothing was trained; memory is as before.

    budget, floor: bytes; the floor is the smallest budget that would do. only_begun: the step could not even be recorded
    within the budget, and the floor is what it would have taken where that stopped. strategy: whose plans were tried.
    device: of a further device that is short (other_budgets), whose budget the figures are then of; "": the one planned for.
    static_by_tag: bytes that are there before the step begins, by what they are for; step_bytes: what the step adds.
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
    """snug.verify found a bit that differs. `names` lists what differs."""

    def __init__(self, message: str, names: list[str] | None = None) -> None:
        super().__init__(message)
        self.names = names or []


class UpdateBegins(BaseException):
    """Leaves a step function that is only recorded, or verified, where its update begins. Not for programs to catch."""
