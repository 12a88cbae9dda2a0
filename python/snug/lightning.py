"""PyTorch Lightning inside a memory budget."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl  # the older name of the same

from ._options import FitOptions, requested
from .errors import UsageError
from .plans import Plan
from .session import Session, fitted_session
from .sizes import Size


def _loss_of(output: Any) -> torch.Tensor:
    if output.closure_loss is None:
        raise UsageError(
            "SnugCallback: training_step returned None; return a loss, of zero where there is nothing to learn"
        )
    return output.closure_loss


class SnugCallback(pl.Callback):
    """Trains a LightningModule within a memory budget.

    For automatic optimization; with manual optimization call `session.backward(batch, step=...)` in training_step. The
    first training step is recorded and planned, for which it runs two more times; what it logs then does not count. Each
    step then runs under the plan, with the Trainer's accumulation, clipping and precision. Gradients are zeroed before the
    forward pass instead of after it, so that old and new ones need not fit at once.

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
        >>> trainer.fit(module, data)
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
        self._leave: Callable[[], None] | None = None
        self.session: Session | None = None
        self.plan: Plan | None = None
        self.steps = 0
        self.replayed_ops = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._close()  # of a run that failed
        if not pl_module.automatic_optimization:
            raise UsageError(
                "SnugCallback: the module optimizes manually; call session.backward(batch, step=step) in its training_step "
                "in place of manual_backward"
            )
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        make = loop._make_closure

        def make_closure(inputs: Any, *args: Any) -> Any:
            closure = make(inputs, *args)
            if closure._backward_fn is not None:
                # Without the closure itself: nothing may keep a batch in a cycle.
                run = functools.partial(self._run, trainer, closure._step_fn, closure._zero_grad_fn, closure._backward_fn)
                closure.closure = torch.enable_grad()(functools.partial(run, inputs))
            return closure

        loop._make_closure = make_closure
        self._leave = lambda: loop.__dict__.pop("_make_closure", None)

    def on_train_end(self, *_: Any) -> None:
        self._close()

    def on_exception(self, *_: Any) -> None:
        self._close()

    def _run(
        self,
        trainer: Any,
        step_fn: Callable[[], Any],
        zero_grad_fn: Callable[[], None] | None,
        backward_fn: Callable[[torch.Tensor], None],
        inputs: Any,
    ) -> Any:
        """What Lightning's own closure does: the training step, zeroed gradients, backward."""
        if zero_grad_fn is not None:
            zero_grad_fn()
        if self.session is None:
            self._fit(trainer, step_fn, inputs)
        output: list[Any] = []

        def step(_: Any) -> None:
            output.append(step_fn())
            backward_fn(_loss_of(output[0]))

        self.session.backward(inputs, step=step)
        self.steps += 1
        self.replayed_ops += self.session.last_step.replayed_ops
        return output[0]

    def _fit(self, trainer: Any, step_fn: Callable[[], Any], inputs: Any) -> None:
        """Records and plans. What the step logs meanwhile does not count."""
        if "dataloader_iter" in inputs:
            raise UsageError(
                "SnugCallback: training_step takes the dataloader_iter, whose batches recording would use up; let it take "
                "the batch"
            )
        options = dataclasses.replace(
            self._options, optimizer=trainer.optimizers, micro_batches=trainer.accumulate_grad_batches
        )

        def step(_: Any) -> torch.Tensor:
            return _loss_of(step_fn())

        loop = trainer.fit_loop.epoch_loop
        logged = loop._results
        loop._results = copy.deepcopy(logged)
        try:
            self.session = fitted_session(step, inputs, self._budget, options)
        finally:
            loop._results = logged
        self.session._forget_step()
        self.plan = self.session.plan

    def _close(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        if self.session is not None:
            self.session.close()
            self.session = None
