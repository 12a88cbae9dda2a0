"""Plans of a step without a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ._fitted import Fitted, Step
from ._options import FitOptions
from .following import log_plan
from .plans import Plan
from .sizes import Size


def plan(
    step: Step,
    sample: Any,
    budget: Size | None = None,
    *,
    other_budgets: Mapping[str | torch.device, Size] | None = None,
    host_budget: Size | None = None,
    disk_budget: Size | None = None,
    device: str | torch.device | None = None,
    optimizer: Any = None,
    strategy: str = "optimal",
    update: Callable[[], None] | None = None,
    process_group: Any = None,
    allow: Sequence[str] = (),
    in_backward: bool = False,
    micro_batches: int = 1,
) -> Plan:
    """Records a step and plans it as fit does, without a session. Nothing is capped afterwards.

    Args:
        step: As in fit.
        sample: As in fit.
        budget: As in fit. None: the fastest plan.
        other_budgets: As in fit.
        host_budget: As in fit.
        disk_budget: As in fit.
        device: As in fit.
        optimizer: As in fit.
        strategy: As in fit.
        update: As in fit.
        process_group: As in fit.
        allow: As in fit.
        in_backward: As in fit.
        micro_batches: As in fit.

    Returns:
        The Plan.

    Raises:
        DoesNotFit: No plan keeps the step under the budget.
        UsageError: An argument is wrong, or the step returns no loss.

    Example:
        >>> snug.plan(step, batch).floor
        2147483648
    """
    options = FitOptions(
        other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget, device=device, optimizer=optimizer,
        strategy=strategy, update=update, process_group=process_group, allow=allow, in_backward=in_backward,
        micro_batches=micro_batches,
    )
    started = time.perf_counter()
    fitted = Fitted(step, sample, budget, options)
    kinds = fitted.kinds
    graph, chosen = kinds.plan(fitted.budget, fitted.other_budgets)
    made = Plan(graph, kinds.planner, chosen, kinds.floor)
    log_plan("plan", made, time.perf_counter() - started)
    return made
