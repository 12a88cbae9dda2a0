"""What snug raises. Every message is one line: the operation, the actual values, the rule that was broken, what to do."""

from __future__ import annotations


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


class OutOfBudget(Error, MemoryError):
    """An allocation would pass the limit and nothing was left to evict. It did not happen; the process can go on.

    requested, allocated, limit: bytes of `device`. operation: the operator that asked, if known. by_tag: what is allocated, by what
    it is for.
    """

    def __init__(self, message: str, **figures: object) -> None:
        super().__init__(message)
        self.requested: int = 0
        self.allocated: int = 0
        self.limit: int = 0
        self.device: str = ""
        self.operation: str = ""
        self.by_tag: dict[str, int] = {}
        self.__dict__.update(figures)

    def __reduce__(self) -> tuple[object, ...]:
        """To another process it goes without the core's own record."""
        figures = {name: value for name, value in self.__dict__.items() if name != "_details"}
        return (type(self), self.args, figures)


class Mismatch(Error):
    """snug.verify found a bit that differs. `names` lists what differs."""

    def __init__(self, message: str, names: list[str] | None = None) -> None:
        super().__init__(message)
        self.names = names or []


class UpdateBegins(BaseException):
    """Leaves a step function that is only recorded, or verified, where its update begins. Not for programs to catch."""
