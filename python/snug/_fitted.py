"""Recording a step and planning it within a budget, for fit and plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._agreement import Group
from ._capture import Recorded, loss_of
from ._fsdp import begun_anew, forget_iterations, refuse_accumulated
from ._objects import LiveObjects
from ._options import FitOptions, by_device, requested
from ._pipelining import know_pipelines
from ._python_state import PythonState, python_state_kept
from ._rehearsal import Rehearsals, leaves_kept
from ._saved import refuse_hooks_around
from ._tensor_names import name_parameters
from ._updates import refuse_hooks
from .allowed import Allowed
from .arguments import Arguments
from .devices import device_of
from .errors import UsageError, shown
from .sizes import Size, format_bytes

Step = Callable[..., Any]


def _run_once(state: PythonState, step: Step, arguments: Arguments) -> Any:
    """Runs a step that is recorded, from the Python state that all of its runs begin with."""
    state.put_back()
    return loss_of(step, arguments)


class Fitted:
    """A recorded step, its planner, and the budget in bytes."""

    def __init__(self, step: Step, sample: Any, budget: Size | None, options: FitOptions) -> None:
        self.device = device_of(options.device, sample, by_device(options.other_budgets))
        options.refuse_contradictions()
        refuse_hooks_around("fit")
        if options.arena:
            _core.check_arena(self.device)
        self.options = options
        given = options.given_plan()
        self._given = None if given is None else given._file()
        self.streamed = None if options.streamed is None else options.streamed._core
        self.tiers = options.tiers()
        self.other_budgets = options.other_limits()
        self.allowed = Allowed(options.allow)
        if self.allowed.lossy != _core.Lossy.Off and not _core.may_compress(options.strategy):
            raise UsageError(f'fit: the strategy "{options.strategy}" leaves nothing to codecs; leave them out of allow')
        if not callable(step):
            raise UsageError(f"fit: the step is a {type(step).__name__}; give a function from a batch to its loss")
        self._request = requested(given.budget if budget is None and given is not None else budget)
        if self._request is None and given is not None:
            raise UsageError("fit: the plan was made without a budget; give one")
        if self.streamed is not None and not isinstance(self._request, int):
            raise UsageError("fit: the window of streamed tensors is a part of the budget; give that in bytes")
        rehearsals = Rehearsals(options.optimizer, options.update, options.in_backward)
        self.updates = rehearsals.steps() if options.in_backward else None
        if self.updates is not None:
            refuse_hooks(self.updates.optimizers)
        group = Group(options.process_group)
        self.agreement = group.agreement()
        refuse_accumulated()
        know_pipelines()
        try:
            recorded = self._record(step, sample, rehearsals, group)
            self._plan(recorded)
        except BaseException:
            if self.streamed is not None:
                self.streamed.reopen()  # what the session before had
            raise
        finally:
            forget_iterations()

    def _record(self, step: Step, sample: Any, rehearsals: Rehearsals, group: Group) -> list[_core.RecordedStep]:
        chosen, arguments, live = self.allowed(step), Arguments.of(sample), LiveObjects()
        name_parameters(live)

        def update_begins(stepping: Any) -> None:
            rehearsals.add(stepping)
            _core.update_begins()

        recorded = Recorded(update_begins)
        kept = python_state_kept(step, [*arguments.args, *arguments.kwargs.values()], live)
        # python_state_kept last: the hooks that the others register are part of the state that is kept.
        with leaves_kept(live) as wrapped, group.found_in_step(), recorded, kept as state:
            live.forget()  # references here would keep tensors alive that the step frees

            def record(micro_batches: int) -> list[_core.RecordedStep]:
                return _core.record_step(
                    begun_anew(lambda: _run_once(state, chosen, arguments)), self.device, self._request, rehearsals,
                    self.agreement, micro_batches, self.other_budgets, self.tiers, self.allowed.lossy, self.streamed, wrapped,
                )

            kinds = record(self.options.micro_batches)
            # Gradients that are zeroed stay, so that all steps but the first find some, as micro-batches do.
            # Processes of a group would have to decide that together.
            in_a_group = torch.distributed.is_available() and torch.distributed.is_initialized()
            if recorded.zeroes_gradients and self.options.micro_batches == 1 and not self.options.in_backward and not in_a_group:
                kinds = record(2)
            try:
                state.put_back()
                state.refuse_advanced()
            except BaseException:
                _core.tell_failure(self.agreement)
                raise
            return kinds

    def open(self) -> _core.Session:
        """Returns a session of the core."""
        return _core.Session(
            self.kinds, self.budget, self.device, self.other_budgets, self.agreement, self.tiers, self.streamed
        )

    def _plan(self, recorded: list[_core.RecordedStep]) -> None:
        try:
            self._plan_alone(self._kinds_of(recorded))
        except BaseException:
            _core.tell_failure(self.agreement)  # the other processes wait for this one's vote
            raise

    def _kinds_of(self, recorded: list[_core.RecordedStep]) -> _core.Kinds:
        if self._given is None:
            return _core.Kinds(recorded, self.options.strategy)
        kinds = _core.Kinds(recorded, self._given)
        does = _core.explain(kinds.graph, self._given.plan)
        if does["moved_bytes"] and self.streamed is None and self.options.host_budget is None and self.options.disk_budget is None:
            raise UsageError(
                f"fit: the plan offloads {format_bytes(does['moved_bytes'])}, and there is no memory for it; give the "
                "host_budget or disk_budget that it was made with"
            )
        if self._given.lossy and self.allowed.lossy == _core.Lossy.Off:
            raise UsageError(
                "fit: the plan compresses values so that gradients differ, and allow names no codec; allow the one that it "
                'was made with, as allow=["int8_activations"]'
            )
        return kinds

    def _plan_alone(self, kinds: _core.Kinds) -> None:
        self.kinds = kinds
        self.budget = _core.limit_for(self._request, kinds.graph)
        self.floor = kinds.floor if kinds.count > 1 else 0  # of each kind, that of all
        self.window = None
        if self.streamed is not None and self.budget is not None:
            self.window = kinds.open_window(
                self.streamed, self.budget, self.other_budgets, self.device, self.options.micro_batches
            )


class Unrecorded:
    """A step that is not recorded in advance, and the budget in bytes."""

    def __init__(self, step: Step, budget: Size | None, options: FitOptions) -> None:
        options.refuse_contradictions()
        options.refuse_what_needs_a_recording()
        if not callable(step):
            raise UsageError(f"fit: the step is a {type(step).__name__}; give a function from a batch to its loss")
        request = requested(budget)
        if not isinstance(request, int):
            raise UsageError(
                f"fit: the budget is {shown(budget)} and there is no sample; without one it is in bytes, as fit(step, budget=\"8GiB\")"
            )
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and options.process_group is None and torch.distributed.get_world_size() > 1:
            raise UsageError(
                "fit: there is no sample, so that the group of processes that the step runs in is not found; give process_group"
            )
        self._bytes = request
        self.options = options
        self.device = device_of(options.device, None, by_device(options.other_budgets))
        if options.arena:
            _core.check_arena(self.device)
        self.other_budgets = options.other_limits()
        self.allowed = Allowed(options.allow)
        if self.allowed.lossy != _core.Lossy.Off:
            raise UsageError("fit: without a sample no lossy codec can be planned; give a sample, or leave it out of allow")
        self.floor, self.window, self.updates = 0, None, None
        name_parameters(LiveObjects())
        self._group = Group(options.process_group)

    def open(self) -> _core.Session:
        """Returns a session of the core."""
        return _core.Session.without_sample(
            self.options.strategy, self._bytes, self.device, self.other_budgets, self._group.agreement()
        )
