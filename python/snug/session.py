"""Sessions, which run a training step under a budget, and the functions that make sessions and plans."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from . import _core
from ._capture import loss_of
from ._core import ArenaStats, StepReport
from ._fitted import Fitted, Step, Unrecorded
from ._fsdp import forget_iterations
from ._options import FitOptions
from ._pipelining import know_pipelines
from ._saved import refuse_hooks_around
from ._updates import UpdatesInBackward
from .arguments import Arguments
from .errors import UsageError, shown
from .following import LOG, PlanWatch, log_plan, log_step
from .plans import Plan
from .sizes import Size
from .streaming import StreamedTensors


class Session:
    """Runs training steps under a plan and a memory limit. Made by fit. One step at a time.

    While it is open, the device's allocator hands out no more than the budget to the whole process. Steps may differ in
    shapes and operators: each kind gets a plan of its own when it comes the second time. After an exception the session
    can be used again. It is closed at the end of its `with`, by close(), or when it is deleted.

    Args:
        step: The step function.
        fitted: What fit has recorded and planned.

    Example:
        >>> with snug.fit(step, batch, "8GiB", optimizer=optimizer) as session:
        ...     for batch in loader:
        ...         loss = session.backward(batch)
        ...         optimizer.step()
        ...         optimizer.zero_grad()
    """

    def __init__(self, step: Step, fitted: Fitted | Unrecorded) -> None:
        self._step: Step | None = step
        self._pauses = 0
        self._watch = PlanWatch()
        self._allowed = fitted.allowed
        self._floor, self._window = fitted.floor, fitted.window
        self._devices = [fitted.device, *(d for d, _ in fitted.other_budgets)]
        self._core = fitted.open()
        self._recorded = isinstance(fitted, Fitted)
        # Whether the step that fit was given calls backward() itself; known without a sample once it has done so.
        self._calls_backward = self._core.steps_go_backward
        if fitted.options.arena:
            self._core.use_arena()
        check = fitted.options.check
        self.verify_replays = _core.VerifyReplay.Once if check is True else check
        self.detect_anomalies = False
        self._updates = UpdatesInBackward(fitted.updates) if fitted.updates is not None else None
        if self._updates is not None:
            weakref.finalize(self, self._updates.remove)

    def _refuse_if_closed(self) -> None:
        if self._core.closed:
            raise UsageError("session: it has been closed; make another one with snug.fit")

    def _forget_step(self) -> None:
        """Releases the step that fit was given, for callers that give backward() another one each time."""
        self._step = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Runs the step with these arguments: forward and backward under the plan, as backward(Arguments(...)) does.

        Args:
            *args: Positional arguments of the step, or one Arguments.
            **kwargs: Keyword arguments of the step.

        Returns:
            The loss, detached, as backward returns it.

        Example:
            >>> loss = session(x, y, mask=mask)
        """
        return self._run(Arguments.of(*args, **kwargs), self._step, True)

    def backward(self, /, *args: Any, step: Step | None = None, update: bool = True) -> torch.Tensor | None:
        """Runs the step with these arguments: forward and backward under the plan. Gradients accumulate in .grad.

        With in_backward=True the backward pass updates each parameter and frees its gradient.

        Args:
            *args: The batch, or all positional arguments of the step, or one Arguments. A second argument is one of the
                step's: give another step as `step=`.
            step: Runs in place of the step that fit was given, in this call.
            update: False, with in_backward=True, accumulates gradients, for a micro-batch that is not the last of an
                update. The budget must have room for them, which the plan does not count.

        Returns:
            The loss, detached: the tensor that the step returned, or that it called backward() on. None if the step
            returned nothing after several backward passes.

        Raises:
            OutOfBudget: Evictions could not make room for an allocation.
            DoesNotFit: Allocations outside of the step have grown, and no plan fits any more.
            UsageError: The session is closed, or runs a step already.

        Example:
            >>> loss = session.backward(batch)
            >>> loss = session.backward(batch, step=lambda b: model(b).loss / 4)
        """
        return self._run(Arguments.of(*args), step if step is not None else self._step, update)

    def _run(self, arguments: Arguments, step: Step | None, update: bool) -> torch.Tensor | None:
        if step is None:
            raise UsageError("session: it has no step of its own; give one: backward(batch, step=...)")
        arguments.refuse_step_among(step)
        if self._pauses:
            raise UsageError("session: it is paused; run steps after the end of the `with session.paused()`")
        if self._updates is None and not update:
            raise UsageError(
                "session: update=False is for sessions with in_backward=True; without it, it is the step or your loop that "
                "updates: do not call the optimizer there"
            )
        refuse_hooks_around("session")
        chosen = self._allowed(step)
        is_own = step is self._step
        know_pipelines()
        updates = self._updates if update else None
        try:
            with updates if updates is not None else nullcontext():
                loss = self._core.backward(lambda: loss_of(chosen, arguments, is_own and self._calls_backward))
        except BaseException:
            forget_iterations()
            raise
        if is_own and self._core.steps_go_backward and not self._recorded:
            self._calls_backward = True
        if updates is not None:
            updates.finish()
        self._look_at_step()
        return loss

    def __reduce__(self) -> Any:
        raise UsageError(
            "session: it is bound to its step and to this process, and cannot be copied or pickled; leave it out where an object "
            "that refers to it is (in its __getstate__), and call snug.fit for the copy"
        )

    def _look_at_step(self) -> None:
        report = self._core.last_step
        log_step(report)
        if report.planned_anew and LOG.isEnabledFor(logging.INFO):
            log_plan("step", self.plan)
        self._watch.look_at(report, stacklevel=4)

    @property
    def plan(self) -> Plan:
        """The plan of the latest step that had one. It may change from step to step."""
        return Plan(*self._core.planned, self._floor, self._window)

    @property
    def predicted_peak(self) -> int:
        """The highest predicted peak, in bytes, of the plans of all kinds of steps and micro-batches."""
        return self._core.predicted_peak

    @property
    def last_step(self) -> StepReport:
        """What the latest step did: replayed operators, evictions, whether it followed its plan."""
        return self._core.last_step

    @property
    def arena(self) -> ArenaStats | None:
        """Numbers of the arena after the latest step, with fit(arena=True); else None."""
        return self._core.arena

    @property
    def verify_replays(self) -> _core.VerifyReplay:
        """Whether steps compare recomputed values with what they were. Takes a VerifyReplay or a bool.

        VerifyReplay.Once (fit's check=True) compares each value the first time that it is recomputed, and then one value
        in each step, in turn; True or VerifyReplay.Hashes each time; VerifyReplay.Values also names the element that differs; False or
        VerifyReplay.Off never.

        Example:
            >>> session.verify_replays = True
        """
        return self._verify_replays

    @verify_replays.setter
    def verify_replays(self, how: _core.VerifyReplay | bool) -> None:
        if isinstance(how, bool):
            how = _core.VerifyReplay.Hashes if how else _core.VerifyReplay.Off
        if not isinstance(how, _core.VerifyReplay):
            raise UsageError(f"session: verify_replays is {shown(how)}; set it to True, False or a snug.VerifyReplay")
        self._core.verify_replays(how)
        self._verify_replays = how

    @property
    def detect_anomalies(self) -> bool:
        """Whether steps raise Error at the first result or gradient with a NaN or an Inf. Slow.

        Example:
            >>> session.detect_anomalies = True
        """
        return self._detect_anomalies

    @detect_anomalies.setter
    def detect_anomalies(self, detect: bool) -> None:
        if not isinstance(detect, bool):
            raise UsageError(f"session: detect_anomalies is {shown(detect)}; set it to True or False")
        self._core.detect_anomalies(detect)
        self._detect_anomalies = detect

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lifts the limit for evaluation between steps. Nothing inside is recorded.

        No limit holds inside on the devices of the session, neither this session's, nor another's, nor one of
        set_memory_limit. At the end cached memory is returned and the limits hold again. What is still allocated then
        counts in the next step, so delete the results of the evaluation first. Pauses may nest.

        Raises:
            UsageError: The session is closed, or a step is running, or one is started inside.

        Example:
            >>> with session.paused(), torch.no_grad():
            ...     accuracy = evaluate(model)
        """
        self._refuse_if_closed()
        if _core.runs_a_step():
            raise UsageError("session: paused() inside of a step; pause the session between steps")
        self._pauses += 1
        try:
            with ExitStack() as lifted:
                for device in self._devices:
                    lifted.callback(_core.release_cached, device)
                for device in self._devices:
                    lifted.enter_context(_core.HeldLimit(None, device))
                yield
        finally:
            self._pauses -= 1

    def close(self) -> None:
        """Lifts the limit and frees the plans. A second call does nothing."""
        if self._updates is not None:
            self._updates.remove()
        if not self._core.closed:
            self._core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return "Session(closed)" if self._core.closed else f"Session({self.plan!r})"
        except UsageError:  # without a sample
            return "Session(no step has run yet)"


_NO_SAMPLE = object()


def fitted_session(step: Step, sample: Any, budget: Size | None, options: FitOptions) -> Session:
    """Returns a session, as fit does."""
    started = time.perf_counter()
    if budget is None and options.plan is None:
        raise UsageError('fit: there is no budget; give bytes, as "8GiB", or, with a sample, a percentage, as "60%"')
    if sample is _NO_SAMPLE:
        return Session(step, Unrecorded(step, budget, options))
    session = Session(step, Fitted(step, sample, budget, options))
    if LOG.isEnabledFor(logging.INFO):
        log_plan("fit", session.plan, time.perf_counter() - started)
    return session


def fit(
    step: Step,
    sample: Any = _NO_SAMPLE,
    budget: Size | None = None,
    *,
    other_budgets: Mapping[str | torch.device, Size] | None = None,
    host_budget: Size | None = None,
    disk_budget: Size | None = None,
    device: str | torch.device | None = None,
    optimizer: Any = None,
    strategy: str = "optimal",
    plan: Plan | str | os.PathLike[str] | None = None,
    update: Callable[[], None] | None = None,
    process_group: Any = None,
    allow: Sequence[str] = (),
    in_backward: bool = False,
    micro_batches: int = 1,
    streamed: StreamedTensors | None = None,
    arena: bool = False,
    check: bool | _core.VerifyReplay = True,
) -> Session:
    """Records a training step, plans it within a memory budget, and caps the device's memory at that budget.

    step(sample) returns the loss: a tensor of one element, or an object that has it as `loss`. Or it calls backward() on
    the loss itself and goes on: clipping, GradScaler, optimizer, schedule. Recording runs the step twice (six times where
    it zeroes its gradients in place, and up to twice as often where no run has the same operators as the one before), as far
    as its first optimizer step, and leaves parameters, gradients, buffers and random generators as before. Hooks of
    register_post_accumulate_grad_hook do not run meanwhile. Gradients of the session are bitwise those of PyTorch.

    Args:
        step: The function from a batch to its loss.
        sample: A batch as the step takes it, or an Arguments for a step of several arguments. Without one nothing runs in
            advance: the first real step runs without a plan, by eviction, and is recorded as it runs. That takes a budget
            in bytes, and excludes optimizer, update, micro_batches, in_backward, plan, streamed, host_budget and disk_budget.
        budget: All memory of the device that tensors may take: 8 << 30, "8GiB", or "60%" of the unplanned peak.
        other_budgets: Bytes by further device, as {"cuda:1": "8GiB", "cpu": "16GiB"}. Each is planned for and capped.
        host_budget: Bytes outside of all budgets on the host, to which plans may offload saved tensors.
        disk_budget: The same in an unlinked file in TMPDIR.
        device: The device of `budget`: "cpu", "cuda:1", "cuda". By default that of the sample's tensors.
        optimizer: The optimizer, or a list of them, that steps after session.backward. Its step and state are rehearsed
            and counted in the plan. An optimizer that the step runs itself is found.
        strategy: "optimal", or a preset, such as "every_block", "sequential(4)" or "selective(aten::mm)".
        plan: A Plan, or the file that Plan.save wrote, to use in place of a search, as after a restart. It must be for this
            step. Its budget holds if none is given.
        update: A function that does what the update does, for an optimizer that is not of torch.optim's interface.
        process_group: The processes of torch.distributed that run this step together. By default those of the model.
        allow: Names of changes that may change bits: "tiled_loss" (see tiled_loss), or one of "bf16_activations",
            "fp8_activations", "int8_activations", "int4_activations" (see gradient_errors).
        in_backward: The backward pass steps `optimizer` for each parameter and frees its gradient. Excludes clipping by
            a norm and GradScaler; do not call optimizer.step().
        micro_batches: The number of steps whose gradients are accumulated before an update.
        streamed: StreamedTensors for weights larger than the budget, in place of host_budget and disk_budget.
        arena: Reserves one range of an accelerator's memory for steps, against fragmentation (see Session.arena).
        check: Compares each value with its hash when it is first recomputed, which costs a few percent of a first step, and
            then one value in each step, in turn. False: never. Or a VerifyReplay, as for Session.verify_replays.

    Returns:
        A Session. Its limit holds until it is closed or deleted.

    Raises:
        DoesNotFit: No plan keeps the step under the budget. Names the smallest budget that does.
        UsageError: An argument is wrong, or the step returns no loss.

    Example:
        >>> session = snug.fit(step, batch, "8GiB", optimizer=optimizer)
        >>> for batch in loader:
        ...     session.backward(batch)
        >>> session = snug.fit(step, budget="8GiB")     # records the first step that runs
    """
    options = FitOptions(
        other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget, device=device, optimizer=optimizer,
        strategy=strategy, plan=plan, update=update, process_group=process_group, allow=allow, in_backward=in_backward,
        micro_batches=micro_batches, streamed=streamed, arena=arena, check=check,
    )
    return fitted_session(step, sample, budget, options)
