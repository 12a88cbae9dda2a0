"""Sessions: a training step under a budget. And plans, for those who want to look before."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from . import _core
from ._capture import loss_of
from ._core import ArenaStats, StepReport
from ._fitted import Fitted, Step
from ._fsdp import forget_iterations
from ._options import FitOptions
from ._pipelining import know_pipelines
from ._updates import UpdatesInBackward
from .arguments import Arguments
from .errors import UsageError
from .following import LOG, PlanWatch, log_plan, log_step
from .plans import Plan
from .sizes import Size
from .streaming import StreamedTensors


class Session:
    """Runs training steps under a plan and a hard limit; made by fit. One step at a time.

    While it lives, the device's allocator hands out no more than the budget, to anybody in the process. Steps may differ
    in shapes and operators: each kind gets a plan of its own when it comes up. After any exception the session can be
    used again. `with` closes it at the end; so does deleting it.
    """

    def __init__(self, step: Step, fitted: Fitted) -> None:
        self._step: Step | None = step
        self._pauses = 0
        self._watch = PlanWatch()
        self._allowed = fitted.allowed
        self._floor, self._window = fitted.floor, fitted.window
        self._devices = [fitted.device, *(d for d, _ in fitted.other_budgets)]
        self._core = _core.Session(
            fitted.kinds, fitted.budget, fitted.device, fitted.other_budgets, fitted.agreement, fitted.tiers,
            fitted.streamed,
        )
        if fitted.options.arena:
            self._core.use_arena()
        self.verify_replays = _core.VerifyReplay.Once if fitted.options.check else _core.VerifyReplay.Off
        self.detect_anomalies = False
        self._updates = UpdatesInBackward(fitted.updates) if fitted.updates is not None else None
        if self._updates is not None:
            weakref.finalize(self, self._updates.remove)

    def _refuse_if_closed(self) -> None:
        if self._core.closed:
            raise UsageError("session: it has been closed; make another one with snug.fit")

    def _forget_step(self) -> None:
        """Lets go of the step that fit was given, and of what it refers to: backward() is always given another."""
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
        chosen = self._allowed(step)
        know_pipelines()
        updates = self._updates if update else None
        try:
            with updates if updates is not None else nullcontext():
                loss = self._core.backward(lambda: loss_of(chosen, arguments))
        except BaseException:
            forget_iterations()
            raise
        if updates is not None:
            updates.finish()
        self._look_at_step()
        return loss

    def _look_at_step(self) -> None:
        report = self._core.last_step
        log_step(report)
        if report.planned_anew and LOG.isEnabledFor(logging.INFO):
            log_plan("step", self.plan)
        self._watch.look_at(report, stacklevel=4)

    @property
    def plan(self) -> Plan:
        """Of the step that ran last, and was known or planned."""
        return Plan(*self._core.planned, self._floor, self._window)

    @property
    def predicted_peak(self) -> int:
        """The highest that a plan predicts, in bytes, of all kinds of steps and micro-batches that are known; plan is of one of them."""
        return self._core.predicted_peak

    @property
    def last_step(self) -> StepReport:
        """What the latest step did: operators replayed, evictions, whether it followed the plan."""
        return self._core.last_step

    @property
    def arena(self) -> ArenaStats | None:
        """Where blocks of the latest step lie, with fit(arena=True)."""
        return self._core.arena

    @property
    def verify_replays(self) -> _core.VerifyReplay:
        """Whether steps compare recomputed values with what they were. Takes a VerifyReplay or a bool.

        VerifyReplay.Once (fit's check=True) compares each value the first time that it is recomputed; True or
        VerifyReplay.Hashes each time; VerifyReplay.Values also names the element that differs; False or
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
            raise UsageError(f"session: verify_replays is {how!r}; set it to True, False or a snug.VerifyReplay")
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
            raise UsageError(f"session: detect_anomalies is {detect!r}; set it to True or False")
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
        """Lifts the limit and lets go of the plans. A second call does nothing."""
        if self._updates is not None:
            self._updates.remove()
        if not self._core.closed:
            self._core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "Session(closed)" if self._core.closed else f"Session({self.plan!r})"


def fitted_session(step: Step, sample: Any, budget: Size, options: FitOptions) -> Session:
    """Returns a session, as fit does."""
    started = time.perf_counter()
    session = Session(step, Fitted(step, sample, budget, options))
    if LOG.isEnabledFor(logging.INFO):
        log_plan("fit", session.plan, time.perf_counter() - started)
    return session


def fit(
    step: Step,
    sample: Any,
    budget: Size,
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
    streamed: StreamedTensors | None = None,
    arena: bool = False,
    check: bool = True,
) -> Session:
    """Plans and caps the training step of any model.

    step(sample) returns the loss: a tensor of one element, or an object that has it as `loss`. Or it calls backward() on
    the loss itself, once, and goes on as people write it: clipping, GradScaler, optimizer, schedule, moving averages. It
    runs twice, to be recorded (up to four times, if it did something else each time), as far as its backward pass, or to where its first optimizer would step, and leaves no
    trace: gradients, buffers and the random generators are as before. Then every session.backward(batch) stays within the
    budget, with gradients bitwise those of the plain step.

    budget: all of the device's memory that tensors may take: 8 << 30, "8GiB", or "60%" of what the step takes unplanned
    (the recording itself is without a limit then; "100%" always fits). other_budgets: the same of
    further devices that the step uses, or of the CPU beside an accelerator, as {"cuda:1": "8GiB", "cpu": "16GiB"}: the plan
    fits all of them, and each is capped. host_budget: memory of the host outside of all budgets, to which the plan may move
    what autograd saves, where that is quicker than making it again; without it nothing is moved. disk_budget:
    the same of a disk, room in a file without a name in the folder that TMPDIR names. device: "cpu",
    "cuda:1", or "cuda" for the one in use; by default where the sample's tensors are. optimizer: the optimizer, or several,
    that are run outside of the step: one update is rehearsed, so that the plan counts what it takes and the state that it
    will make, and nothing is changed; those that the step runs itself are found. update: in place of that, a function that
    does what the update does. strategy: "optimal", or a preset such as "every_block", "sequential(4)",
    "selective(aten::mm)". process_group: of torch.distributed, whose processes run the step together, each with a fit and
    a session of its own: what one of them cannot record or plan is recorded again, or refused, in all. By default that of
    the model that the step runs with others, by DistributedDataParallel or with parameters that are DTensors, as fully_shard and
    parallelize_module make them, else this process alone. allow: what may be done to the step that
    does not leave every bit as it is, by name; "tiled_loss": the cross-entropy of logits over a large vocabulary is computed a few
    rows at a time, whatever the model (see snug.tiled_loss); or one of "bf16_activations", "fp8_activations",
    "int8_activations", "int4_activations": backward may get what so many bits leave of some of what autograd saved, where
    the step does not fit or is slower without, on the CPU. Gradients are other ones then (see gradient_errors), and nothing
    else is. in_backward: `optimizer` updates each parameter in the backward
    pass, as soon as its gradient is there, and the gradient goes: all of them are never there at once, and no bit is
    different, as long as it treats each parameter by itself. Nothing can look at all gradients then, so neither clip their
    norm nor use a GradScaler, and do not call optimizer.step(). micro_batches: steps whose gradients are added up before an
    update. With more than one, those that find gradients have a plan from the beginning, and the budget is one for all. streamed: weights, and what
    the optimizer keeps of them, that are larger than the budget, in place of host_budget and disk_budget (see
    StreamedTensors). arena: what steps ask an accelerator's memory for lies in one range of it, at places that are chosen
    once two steps have asked for the same (see Session.arena), so that no memory is lost between blocks. check: the first
    time that a value is recomputed it is compared, by a hash, with what it was. Where it has other bits the step raises Error, which
    names the operator and what to do, and parameters and gradients are as before. This costs a few percent of the first step
    of each kind, and nothing of later ones. Hooks of register_post_accumulate_grad_hook, where optimizers are run too, do not run while the step is recorded.

    Raises DoesNotFit, naming the smallest budget and its parts, and UsageError.
    """
    options = FitOptions(
        other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget, device=device, optimizer=optimizer,
        strategy=strategy, update=update, process_group=process_group, allow=allow, in_backward=in_backward,
        micro_batches=micro_batches, streamed=streamed, arena=arena, check=check,
    )
    return fitted_session(step, sample, budget, options)


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
    """What fit would do, without a session: records the step and plans it. Without a budget, the fastest plan."""
    options = FitOptions(
        other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget, device=device, optimizer=optimizer,
        strategy=strategy, update=update, process_group=process_group, allow=allow, in_backward=in_backward,
        micro_batches=micro_batches,
    )
    started = time.perf_counter()
    fitted = Fitted(step, sample, budget, options)
    kinds = fitted.kinds
    made = Plan(kinds.graph, kinds.planner, kinds.plan(fitted.budget, fitted.other_budgets), kinds.floor)
    log_plan("plan", made, time.perf_counter() - started)
    return made
