"""Stages of torch.distributed.pipelining, whose forward and backward passes run by turns: which are a micro-batch of a step."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _core
from ._capture import micro_batch_begins
from .errors import UsageError

_MODULES = ("torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules")
_here = threading.local()
_known: set[Any] = set()


@contextmanager
def stages_found(found: Callable[[Any], None]) -> Iterator[None]:
    """Calls found(stage) in front of every forward pass of a stage that this thread runs."""
    outer, _here.found = getattr(_here, "found", None), found
    try:
        yield
    finally:
        _here.found = outer


def _around_stage(stage: Any) -> None:
    plain_forward = stage.forward_one_chunk

    @functools.wraps(plain_forward)
    def forward_one_chunk(self: Any, *args: Any, **kwargs: Any) -> Any:
        if found := getattr(_here, "found", None):
            found(self)
        if not self.has_backward:
            return plain_forward(self, *args, **kwargs)
        micro_batch_begins(self.stage_index)
        try:
            output = plain_forward(self, *args, **kwargs)
        except BaseException:
            _core.micro_batch_fails()
            raise
        if not self.is_last:  # behind which the loss comes
            _core.micro_batch_ends()
        return output

    stage.forward_one_chunk = forward_one_chunk


def _around_step(schedules: Any) -> None:
    """All processes refuse what cannot be planned, before one of them waits for another."""
    plain = schedules._PipelineScheduleRuntime._step_microbatches
    apart = (schedules.BACKWARD_INPUT, schedules.BACKWARD_WEIGHT)

    def refuse(schedule: Any) -> None:
        order = schedule.pipeline_order or {}
        if any(action is not None and action.computation_type in apart for actions in order.values() for action in actions):
            raise UsageError(
                f"step: {type(schedule).__name__} goes backward for inputs and for weights apart, twice for each forward pass; use "
                f"ScheduleGPipe, Schedule1F1B, ScheduleLoopedBFS or ScheduleInterleaved1F1B"
            )

    @functools.wraps(plain)
    def _step_microbatches(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._has_backward and _core.runs_a_step():
            refuse(self)
        return plain(self, *args, **kwargs)

    schedules._PipelineScheduleRuntime._step_microbatches = _step_microbatches


def _around_loss(schedule: Any) -> None:
    plain = schedule._maybe_compute_loss

    @functools.wraps(plain)
    def _maybe_compute_loss(self: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, stage, *args, **kwargs)
        if stage.is_last and stage.has_backward:
            _core.micro_batch_ends()
        return result

    schedule._maybe_compute_loss = _maybe_compute_loss


def know_pipelines() -> None:
    """Once for all, when somebody has imported them."""
    stage, schedules = (sys.modules.get(name) for name in _MODULES)
    if stage is None or schedules is None or stage in _known:
        return
    _known.add(stage)
    _around_stage(stage._PipelineStageBase)
    _around_loss(schedules._PipelineSchedule)
    _around_step(schedules)
