"""PyTorch Lightning inside a memory budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl  # the older name of the same

from .errors import UsageError
from .fitting import Plan, Session, fit
from .sizes import Size


class SnugCallback(pl.Callback):
    """Trains a LightningModule inside a memory budget:

        trainer = Trainer(..., callbacks=[SnugCallback(device="8GiB")])
        trainer.fit(module, data)

    For automatic optimization; with manual optimization call `session.backward(batch, step)` in the module's own
    training_step. The first training step is recorded and planned, for which it runs two more times; every step then runs
    under the plan, with accumulation, clipping and precision as the Trainer has them. Gradients of the step before are
    zeroed before the forward pass and not after it, so that both need not fit at once. `session` is the running one, `plan`
    what was planned.
    """

    def __init__(self, device: Size, strategy: str = "optimal") -> None:
        self._budget = device
        self._strategy = strategy
        self._leave: Callable[[], None] | None = None
        self.session: Session | None = None
        self.plan: Plan | None = None
        self.steps = 0
        self.replayed_ops = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._close()  # of a run that failed
        if not pl_module.automatic_optimization:
            raise UsageError(
                "SnugCallback: the module optimizes manually; call session.backward(batch, step) in its training_step "
                "in place of manual_backward"
            )
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        make = loop._make_closure

        def make_closure(inputs: Any, *args: Any) -> Any:
            closure = make(inputs, *args)
            if closure._backward_fn is not None:
                closure.closure = torch.enable_grad()(lambda: self._run(trainer, closure, inputs))
            return closure

        loop._make_closure = make_closure
        self._leave = lambda: loop.__dict__.pop("_make_closure", None)

    def on_train_end(self, *_: Any) -> None:
        self._close()

    def on_exception(self, *_: Any) -> None:
        self._close()

    def _run(self, trainer: Any, closure: Any, inputs: Any) -> Any:
        """What Lightning's own closure does: the training step, zeroed gradients, backward."""
        if closure._zero_grad_fn is not None:
            closure._zero_grad_fn()
        output: list[Any] = [None]

        def loss_of(_: Any) -> torch.Tensor:
            output[0] = closure._step_fn()
            if output[0].closure_loss is None:
                raise UsageError("SnugCallback: training_step returned None; return a loss, of zero where there is nothing to learn")
            return output[0].closure_loss

        if self.session is None:
            self.session = fit(loss_of, inputs, self._budget, strategy=self._strategy)
            self.plan = self.session.plan
        # backward() is put off until the forward pass is over; so is what looks at the gradients.
        precision, put_off = trainer.precision_plugin, []
        after = precision.post_backward
        precision.post_backward = lambda loss, *args: (put_off.append((loss, *args)), loss)[1]
        try:
            self.session.backward(inputs, lambda batch: closure._backward_fn(loss_of(batch)))
        finally:
            del precision.post_backward
        for arguments in put_off:
            after(*arguments)
        self.steps += 1
        self.replayed_ops += self.session.last_step.replayed_ops
        return output[0]

    def _close(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        if self.session is not None:
            self.session.close()
            self.session = None
