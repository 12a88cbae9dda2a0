"""The options of fit: how a step is planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _core
from .devices import device_named
from .errors import UsageError, reason_of, shown
from .plans import Plan
from .sizes import Size, bytes_of, parse_bytes
from .streaming import StreamedTensors


@dataclass(frozen=True)
class FitOptions:
    """The keyword arguments of fit and their defaults. The docstring of fit describes them."""

    other_budgets: Mapping[str | torch.device, Size] | None = None
    host_budget: Size | None = None
    disk_budget: Size | None = None
    device: str | torch.device | None = None
    optimizer: Any = None
    strategy: str = "optimal"
    plan: Plan | str | os.PathLike[str] | None = None
    update: Callable[[], None] | None = None
    process_group: Any = None
    allow: Sequence[str] = ()
    in_backward: bool = False
    micro_batches: int = 1
    streamed: StreamedTensors | None = None
    arena: bool = False
    check: bool | _core.VerifyReplay = True

    def refuse_contradictions(self) -> None:
        """Raises UsageError for options of a wrong type, and for options that exclude each other."""
        self._check_streamed()
        if isinstance(self.micro_batches, bool) or not isinstance(self.micro_batches, int):
            raise UsageError(
                f"fit: micro_batches is {shown(self.micro_batches)}; give the number of steps whose gradients are accumulated, "
                "1 or more"
            )
        for name in ("in_backward", "arena"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"fit: {name} is {shown(getattr(self, name))}; give True or False")
        if not isinstance(self.check, (bool, _core.VerifyReplay)):
            raise UsageError(f"fit: check is {shown(self.check)}; give True, False or a snug.VerifyReplay")
        if not isinstance(self.strategy, str):
            raise UsageError(f'fit: the strategy is a {type(self.strategy).__name__}; give its name, as "optimal"')
        if self.plan is not None and self.strategy != "optimal":
            raise UsageError(f'fit: there is a plan, and the strategy "{self.strategy}" would make another one; leave one out')
        if self.in_backward:
            self._check_in_backward()
        if self.update is not None and not callable(self.update):
            raise UsageError(
                f"fit: the update is a {type(self.update).__name__}; give a function that does what your update does"
            )

    def refuse_what_needs_a_recording(self) -> None:
        """Raises UsageError for options that fit can only follow with a sample."""
        given = {
            "optimizer": self.optimizer is not None,
            "update": self.update is not None,
            "micro_batches": self.micro_batches != 1,
            "streamed": self.streamed is not None,
            "plan": self.plan is not None,
            "host_budget": self.host_budget is not None,
            "disk_budget": self.disk_budget is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise UsageError(f"fit: {name} needs a step that is recorded in advance, and there is no sample; give one")

    def _check_streamed(self) -> None:
        if self.streamed is None:
            return
        if not isinstance(self.streamed, StreamedTensors):
            raise UsageError(
                f"fit: streamed is a {type(self.streamed).__name__}; give a snug.StreamedTensors, as "
                "snug.StreamedTensors(model.parameters())"
            )
        if self.host_budget is not None or self.disk_budget is not None:
            raise UsageError(
                "fit: values go where the streamed tensors are, which have budgets of their own; leave host_budget and "
                "disk_budget to StreamedTensors"
            )
        if self.in_backward:
            raise UsageError(
                "fit: in_backward is True with streamed tensors, whose optimizer's state would stay in the device's memory; "
                "leave one out"
            )

    def _check_in_backward(self) -> None:
        if self.micro_batches > 1:
            raise UsageError(
                f"fit: in_backward is True with {self.micro_batches} micro-batches, whose gradients are there until the last; "
                "leave one out"
            )
        if self.optimizer is None:
            raise UsageError("fit: in_backward is True and there is no optimizer; give the one that updates")
        if isinstance(self.optimizer, Sequence) and not self.optimizer:
            raise UsageError("fit: in_backward is True and the list of optimizers is empty; give those that update")
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_world_size(self.process_group) > 1:
            raise UsageError(
                "fit: in_backward is True in a group of processes, whose gradients are exchanged after each has its own; "
                "leave it out"
            )

    def given_plan(self) -> Plan | None:
        """Returns the plan that is used in place of a search. Reads its file."""
        if self.plan is None or isinstance(self.plan, Plan):
            return self.plan
        if not isinstance(self.plan, (str, os.PathLike)):
            raise UsageError(f"fit: the plan is a {type(self.plan).__name__}; give a snug.Plan, or the file that Plan.save wrote")
        return Plan.load(self.plan)

    def tiers(self) -> _core.Tiers:
        """Returns the memory that plans may offload values to."""
        if self.streamed is not None:
            return self.streamed._core.tiers
        return _core.Tiers(
            None if self.host_budget is None else _in_bytes("host_budget", self.host_budget),
            None if self.disk_budget is None else _in_bytes("disk_budget", self.disk_budget),
        )

    def other_limits(self) -> list[tuple[str, int]]:
        """Returns other_budgets as names of devices and bytes."""
        budgets = by_device(self.other_budgets)
        return [(device_named(device), _in_bytes(f"other_budgets of {device}", size)) for device, size in budgets.items()]


def requested(budget: Size | None) -> int | _core.Percent | None:
    """Returns a budget in bytes, or as a percentage of the unplanned peak. Reads texts as the command does."""
    if not isinstance(budget, str):
        return None if budget is None else bytes_of("fit: budget", budget)
    try:
        request = _core.parse_budget(budget)
    except UsageError as error:
        raise UsageError(f"fit: budget: {reason_of(error)}") from None
    if request is None:
        raise UsageError('fit: the budget is an empty text; write "8GiB", or "60%" of what the step takes unplanned')
    return request


def by_device(other_budgets: Any) -> Mapping[str | torch.device, Size]:
    """Returns other_budgets, empty for None. Raises UsageError if it is no mapping."""
    if not isinstance(other_budgets or {}, Mapping):
        raise UsageError(
            f"fit: other_budgets is a {type(other_budgets).__name__}; give bytes by device, as "
            '{"cuda:1": "8GiB"}'
        )
    return other_budgets or {}


def _in_bytes(what: str, size: Size) -> int:
    try:
        return parse_bytes(size)
    except UsageError as error:
        raise UsageError(
            f"fit: {what} takes bytes and no percentage; session.plan.unplanned_peak is what a step takes: {reason_of(error)}"
        ) from None
