"""Training loops of others. Nothing here is needed for loops of one's own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers

from ._options import FitOptions, requested
from .plans import Plan
from .session import Session, fitted_session
from .sizes import Size


class SnugCallback(transformers.TrainerCallback):
    """Trains a transformers.Trainer within a memory budget.

    The first training step is recorded and planned, with the gradients of earlier micro-batches if the Trainer accumulates.
    Each step then runs under the plan, with the Trainer's mixed precision.

    Args:
        budget: As in fit.
        strategy: As in fit.
        device: As in fit.
        other_budgets: As in fit.
        host_budget: As in fit.
        disk_budget: As in fit.
        allow: As in fit.

    Raises:
        UsageError: For a budget or an option that fit refuses without looking at a step.

    Attributes:
        session: The running Session, or None.
        plan: The Plan of the first step.
        steps: The number of steps so far.
        replayed_ops: The number of operators replayed so far.

    Example:
        >>> trainer = Trainer(..., callbacks=[SnugCallback(budget="8GiB")])
        >>> trainer.train()
    """

    def __init__(
        self,
        budget: Size,
        strategy: str = "optimal",
        *,
        device: str | torch.device | None = None,
        other_budgets: Mapping[str | torch.device, Size] | None = None,
        host_budget: Size | None = None,
        disk_budget: Size | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        self._budget = budget
        self._options = FitOptions(
            strategy=strategy, device=device, other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget,
            allow=allow,
        )
        requested(budget)  # what is none is refused here, and not when training has begun
        self._options.refuse_contradictions()
        self._optimizer: Any = None
        self._micro_batches = 1
        self.session: Session | None = None
        self.plan: Plan | None = None
        self.steps = 0
        self.replayed_ops = 0

    def run(self, training_step: Any, inputs: dict[str, Any]) -> Any:
        """One training step, forward and backward. Returns what it returned."""
        result: list[Any] = [None]

        def step(batch: dict[str, Any]) -> None:
            result[0] = training_step(dict(batch))

        try:
            if self.session is None:
                options = dataclasses.replace(
                    self._options, optimizer=self._optimizer, micro_batches=self._micro_batches
                )
                self.session = fitted_session(step, inputs, self._budget, options)
                self.session._forget_step()
                self.plan = self.session.plan
            self.session.backward(inputs, step=step)
        except BaseException:  # nobody tells a callback that the run has failed
            self._close()
            raise
        self.steps += 1
        self.replayed_ops += self.session.last_step.replayed_ops
        return result[0]

    def on_train_begin(self, args: Any, *_: Any, optimizer: Any = None, **__: Any) -> None:
        self._close()  # of a run that failed
        self._micro_batches = args.gradient_accumulation_steps
        self._optimizer = optimizer

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


def _hook_into_trainer() -> None:
    """Once, around whatever stands there. Trainers without the callback are as before."""
    plain = transformers.Trainer.training_step

    @functools.wraps(plain)
    def training_step(self: transformers.Trainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        callback = next((c for c in self.callback_handler.callbacks if isinstance(c, SnugCallback)), None)
        if callback is None:
            return plain(self, model, inputs, *args, **kwargs)
        return callback.run(lambda batch: plain(self, model, batch, *args, **kwargs), inputs)

    transformers.Trainer.training_step = training_step


_hook_into_trainer()
