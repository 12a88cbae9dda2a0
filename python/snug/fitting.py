"""Sessions: a training step under a budget. And plans, for those who want to look before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from . import _core
from ._agreement import Group
from ._capture import Recorded, loss_of
from ._core import ArenaStats, StepReport
from ._fsdp import begun_anew, forget_iterations, refuse_accumulated
from ._pipelining import know_pipelines
from ._python_state import PythonState, python_state_kept
from ._rehearsal import Rehearsals, leaves_kept
from ._updates import UpdatesInBackward, refuse_hooks
from .choices import Allowed
from .devices import device_named, device_of
from .errors import UsageError
from .plans import Plan
from .sizes import Size, bytes_of, parse_bytes
from .streaming import StreamedTensors

Step = Callable[[Any], Any]


def _request(budget: Size | None) -> int | _core.Percent | None:
    """What is asked for: bytes, a share of what the step takes unplanned, or None. Reads a text as the command does."""
    if not isinstance(budget, str):
        return None if budget is None else bytes_of("fit: budget", budget)
    try:
        request = _core.parse_budget(budget)
    except UsageError as error:
        raise UsageError(f"fit: budget: {error}") from None
    if request is None:
        raise UsageError('fit: the budget is an empty text; write "8GiB", or "60%" of what the step takes unplanned')
    return request


def by_device(other_budgets: Any) -> Mapping[str | torch.device, Size]:
    """As it is, or none; UsageError where it is something else."""
    if not isinstance(other_budgets or {}, Mapping):
        raise UsageError(f'fit: other_budgets is a {type(other_budgets).__name__}; give bytes by device, as {{"cuda:1": "8GiB"}}')
    return other_budgets or {}


def _bytes_of(what: str, size: Size) -> int:
    try:
        return parse_bytes(size)
    except UsageError as error:
        raise UsageError(f"fit: {what} is in bytes, no share of what the step takes, which session.plan tells: {error}") from None


def _check_streamed(streamed: StreamedTensors | None, host_budget: Size | None, disk_budget: Size | None, in_backward: bool) -> None:
    if streamed is not None and not isinstance(streamed, StreamedTensors):
        raise UsageError(f"fit: streamed is a {type(streamed).__name__}; give a snug.StreamedTensors, as snug.StreamedTensors(model.parameters())")
    if streamed is not None and (host_budget is not None or disk_budget is not None):
        raise UsageError(
            "fit: values go where the streamed tensors are, which have budgets of their own; leave host_budget and "
            "disk_budget to StreamedTensors"
        )
    if streamed is not None and in_backward:
        raise UsageError(
            "fit: in_backward is True with streamed tensors, whose optimizer's state would stay in the device's memory; leave one out"
        )


def _check_in_backward(in_backward: bool, micro_batches: int, optimizer: Any) -> None:
    if in_backward and micro_batches > 1:
        raise UsageError(
            f"fit: in_backward is True with {micro_batches} micro-batches, whose gradients are there until the last; leave one out"
        )
    if in_backward and optimizer is None:
        raise UsageError("fit: in_backward is True and there is no optimizer; give the one that updates")
    if in_backward and isinstance(optimizer, Sequence) and not optimizer:
        raise UsageError("fit: in_backward is True and the list of optimizers is empty; give those that update")


def _run_once(state: PythonState, step: Step, sample: Any) -> Any:
    """Runs a step that is recorded, from the Python state that all of its runs begin with."""
    state.put_back()
    return loss_of(step, sample)


class _Fitted:
    """A recorded step, its planner, and the budget in bytes."""

    def __init__(
        self,
        step: Step,
        sample: Any,
        budget: Size | None,
        strategy: str,
        device: str,
        optimizer: Any,
        update: Callable[[], None] | None,
        process_group: Any,
        allow: Sequence[str],
        in_backward: bool = False,
        micro_batches: int = 1,
        other_budgets: Mapping[str | torch.device, Size] | None = None,
        host_budget: Size | None = None,
        disk_budget: Size | None = None,
        streamed: StreamedTensors | None = None,
        arena: bool = False,
    ) -> None:
        _check_streamed(streamed, host_budget, disk_budget, in_backward)
        if arena:
            _core.check_arena(device)
        self.arena = arena
        self.streamed = None if streamed is None else streamed._core
        self.tiers = self.streamed.tiers if self.streamed is not None else _core.Tiers(
            None if host_budget is None else _bytes_of("host_budget", host_budget),
            None if disk_budget is None else _bytes_of("disk_budget", disk_budget),
        )
        self.other_budgets = [(device_named(d), _bytes_of(f"other_budgets of {d}", size)) for d, size in (other_budgets or {}).items()]
        self.allowed = Allowed(allow)
        if isinstance(micro_batches, bool) or not isinstance(micro_batches, int):
            raise UsageError(f"fit: micro_batches is {micro_batches!r}; give how many steps' gradients are added up, 1 or more")
        if not isinstance(strategy, str):
            raise UsageError(f'fit: the strategy is a {type(strategy).__name__}; give its name, as "optimal"')
        if self.allowed.lossy != _core.Lossy.Off and not _core.may_compress(strategy):
            raise UsageError(f'fit: the strategy "{strategy}" leaves nothing to codecs; leave them out of allow')
        _check_in_backward(in_backward, micro_batches, optimizer)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if in_backward and distributed and torch.distributed.get_world_size(process_group) > 1:
            raise UsageError(
                "fit: in_backward is True in a group of processes, whose gradients are exchanged after each has its own; leave it out"
            )
        if not callable(step):
            raise UsageError(f"fit: the step is a {type(step).__name__}; give a function from a batch to its loss")
        if update is not None and not callable(update):
            raise UsageError(f"fit: the update is a {type(update).__name__}; give a function that does what your update does")
        request = _request(budget)
        if streamed is not None and not isinstance(request, int):
            raise UsageError("fit: the window of streamed tensors is a part of the budget; give that in bytes")
        rehearsals = Rehearsals(optimizer, update, in_backward)
        self.updates = rehearsals.steps() if in_backward else None
        if self.updates is not None:
            refuse_hooks(self.updates.optimizers)
        chosen = self.allowed(step)
        group = Group(process_group)
        self.agreement = group.agreement()
        refuse_accumulated()
        know_pipelines()
        def update_begins(stepping: Any) -> None:
            rehearsals.add(stepping)
            _core.update_begins()

        try:
            # Last: the hooks that the others register are part of the state that is kept.
            with leaves_kept() as wrapped, group.found_in_step(), Recorded(update_begins), python_state_kept() as state:
                run = begun_anew(lambda: _run_once(state, chosen, sample))
                recorded = _core.record_step(
                    run, device, request, rehearsals, self.agreement, micro_batches,
                    self.other_budgets, self.tiers, self.allowed.lossy, self.streamed, wrapped,
                )
            self._plan(recorded, strategy, request, device, micro_batches)
        except BaseException:
            if self.streamed is not None:
                self.streamed.reopen()  # what the session before had
            raise
        finally:
            forget_iterations()

        self.device = device

    def _plan(
        self, recorded: list[_core.RecordedStep], strategy: str, request: int | _core.Percent | None, device: str, micro_batches: int
    ) -> None:
        try:
            self._plan_alone(_core.Kinds(recorded, strategy), request, device, micro_batches)
        except BaseException:
            _core.tell_failure(self.agreement)  # the others wait for a word on their plans
            raise

    def _plan_alone(self, kinds: _core.Kinds, request: int | _core.Percent | None, device: str, micro_batches: int) -> None:
        self.kinds = kinds
        self.budget = _core.limit_for(request, self.kinds.graph)
        self.floor = self.kinds.floor if self.kinds.count > 1 else 0  # of each kind, that of all
        self.window = None
        if self.streamed is not None and self.budget is not None:
            self.window = self.kinds.open_window(self.streamed, self.budget, self.other_budgets, device, micro_batches)


class Session:
    """Runs training steps under a plan and a hard limit; made by fit. One step at a time.

    While it lives, the device's allocator hands out no more than the budget, to anybody in the process. Steps may differ
    in shapes and operators: each kind gets a plan of its own when it comes up. After any exception the session can be
    used again. `with` closes it at the end; so does deleting it.
    """

    def __init__(self, step: Step, fitted: _Fitted, check: bool = True) -> None:
        self._step: Step | None = step
        self._allowed = fitted.allowed
        self._floor, self._window = fitted.floor, fitted.window
        self._devices = [fitted.device, *(d for d, _ in fitted.other_budgets)]
        self._core = _core.Session(
            fitted.kinds, fitted.budget, fitted.device, fitted.other_budgets, fitted.agreement, fitted.tiers,
            fitted.streamed,
        )
        if fitted.arena:
            self._core.use_arena()
        if not check:
            self._core.verify_replays(_core.VerifyReplay.Off)
        self._updates = UpdatesInBackward(fitted.updates) if fitted.updates is not None else None
        if self._updates is not None:
            weakref.finalize(self, self._updates.remove)

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            raise UsageError(f"session: {name} is called and not set: session.{name}({value!r})")
        super().__setattr__(name, value)

    def _forget_step(self) -> None:
        """Lets go of the step that fit was given, and of what it refers to: backward() is always given another."""
        self._step = None

    def backward(self, batch: Any, step: Step | None = None, *, update: bool = True) -> torch.Tensor | None:
        """Runs step(batch) and its backward pass; gradients are added to .grad as usual. Returns the loss, detached: what
        the step returned, or the tensor that it called backward() on itself. With in_backward each parameter of the
        optimizer is updated as soon as its gradient is there, and the gradient goes; update=False adds the gradients up,
        for a micro-batch that is not the last; the budget has to have room for them, which a plan does not see to.

        `step` in place of the one that fit was given, for this call. Raises OutOfBudget when even eviction cannot make
        room, DoesNotFit when so much is allocated outside of the step that no plan fits any more, and whatever the step
        raises.
        """
        run = step if step is not None else self._step
        if run is None:
            raise UsageError("session: it has no step of its own; give one: backward(batch, step)")
        if self._updates is None and not update:
            raise UsageError(
                "session: update=False is for sessions with in_backward=True; without it, it is the step or your loop that updates: "
                "do not call the optimizer there"
            )
        chosen = self._allowed(run)
        know_pipelines()
        try:
            if self._updates is None or not update:
                return self._core.backward(lambda: loss_of(chosen, batch))
            with self._updates:
                loss = self._core.backward(lambda: loss_of(chosen, batch))
        except BaseException:
            forget_iterations()
            raise
        self._updates.finish()
        return loss

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

    def verify_replays(self, how: _core.VerifyReplay | bool = True) -> None:
        """Sets whether steps remember what they drop and compare it when it is recomputed.

        Args:
            how: True compares in every step, by hashes; False in none. VerifyReplay.Once, which holds from the start,
                compares each value the first time; VerifyReplay.Values names the element that differs.
        """
        if isinstance(how, bool):
            how = _core.VerifyReplay.Hashes if how else _core.VerifyReplay.Off
        self._core.verify_replays(how)

    def detect_anomalies(self, detect: bool = True) -> None:
        """Whether the next steps look at every result and gradient for NaN and infinities. Slow."""
        self._core.detect_anomalies(detect)

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
    where = device_of(device, sample, by_device(other_budgets))
    fitted = _Fitted(
        step, sample, budget, strategy, where, optimizer, update, process_group, allow, in_backward, micro_batches,
        other_budgets, host_budget, disk_budget, streamed, arena,
    )
    return Session(step, fitted, check)


def plan(
    step: Step,
    sample: Any,
    budget: Size | None = None,
    *,
    device: str | torch.device | None = None,
    optimizer: Any = None,
    strategy: str = "optimal",
    update: Callable[[], None] | None = None,
    process_group: Any = None,
    allow: Sequence[str] = (),
    in_backward: bool = False,
    micro_batches: int = 1,
    other_budgets: Mapping[str | torch.device, Size] | None = None,
    host_budget: Size | None = None,
    disk_budget: Size | None = None,
) -> Plan:
    """What fit would do, without a session: records the step and plans it. Without a budget, the fastest plan."""
    where = device_of(device, sample, by_device(other_budgets))
    fitted = _Fitted(step, sample, budget, strategy, where, optimizer, update, process_group, allow, in_backward, micro_batches, other_budgets, host_budget, disk_budget)
    kinds = fitted.kinds
    return Plan(kinds.graph, kinds.planner, kinds.plan(fitted.budget, fitted.other_budgets), kinds.floor)
