"""What memory is taken, by what it is for, and its course."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch

from . import _core, _state_tags  # noqa: F401  (whose hook tags what optimizers keep)
from .devices import device_named
from .errors import Error, UsageError
from .sizes import Size, format_bytes, parse_bytes


def memory_stats(device: str | torch.device | None = None) -> dict[str, Any]:
    """Bytes that the device's allocator has handed out: allocated, mapped (with cached free memory), their peaks, the
    limit, and the split by what they are for: weights, gradients, optimizer, activations, staging, workspace. Beside them
    the process's resident memory, and who has it (resident_tensors + resident_cached + resident_others - resident_untouched),
    and what the device has in all and free. device: by default where the calling thread makes new tensors (torch.set_default_device),
    here and in what follows."""
    named = device_named(device)
    return {**_core.memory_stats(named), **_core.memory_sample(named)}


def set_memory_limit(size: Size | None, device: str | torch.device | None = None) -> None:
    """No more than so many bytes of the device's memory are handed out from now on, to anybody in the process; None lifts
    the limit."""
    _core.set_memory_limit(None if size is None else parse_bytes(size), device_named(device))


def release_cached(device: str | torch.device | None = None) -> None:
    """Returns cached free memory to the system."""
    _core.release_cached(device_named(device))


class MemoryAlarm(UserWarning):
    """Something that a Monitor saw: memory that keeps growing, little that is free, a loss scale that keeps falling."""


@dataclass(frozen=True)
class Alarm:
    """kind: "growth", "headroom" or "falling_scale"."""

    kind: str
    message: str


class Monitor:
    """Watches a device's memory for the life of a `with`:

        with snug.Monitor(file="runs/mine/memory.jsonl") as monitor:
            for batch in loader:
                session.backward(batch)
                monitor.step()
        print(monitor.peak, monitor.by_tag, monitor.alarms)

    `peak` is the highest since its beginning, now; by_tag, what that is of, is there after the `with`. It starts the device's peak
    figures again (memory_stats). `step()` ends a step: step_peak is its own peak, and what is wrong
    is warned of as MemoryAlarm, once for as long as it lasts, and kept in `alarms`. A thread takes a sample every `interval`
    seconds (None: none; by default each millisecond, and none where there is a file): `timeline` has at most 20,000 of them, of which
    every other one goes when there are more. `file` gets a JSON line for each step, sample and alarm: bytes by what they are for, the
    process's resident memory and who has it, what the device has free; append=True goes on behind what is there, as a second `with`
    of the same Monitor does. growth_steps: steps over which memory must not have grown all the while; headroom: the share of the
    device's memory that must stay free; 0 turns either off.
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        interval: float | None | EllipsisType = ...,
        *,
        file: str | os.PathLike[str] | None = None,
        append: bool = False,
        growth_steps: int = 40,
        headroom: float = 0.05,
    ) -> None:
        if interval is ...:
            interval = 0.001 if file is None else None
        if interval is not None and not interval > 0:
            raise UsageError(f"monitor: an interval of {interval}; it must be positive, in seconds, or None for no samples")
        self._device = device_named(device)
        self._interval = interval
        self._file = None if file is None else os.fspath(file)
        self._append = append
        self._rules = growth_steps, headroom
        self._monitor: _core.Monitor | None = None
        self._timeline: list[tuple[float, int]] = []
        self._steps = 0
        self.before = 0
        self.step_peak = 0
        self._peak = 0
        self.by_tag: dict[str, int] = {}
        self.alarms: list[Alarm] = []

    def __enter__(self) -> Monitor:
        self._monitor = _core.Monitor(self._device, self._interval or 0.0, self._file, self._append, *self._rules)
        self._append = True
        self._steps = 0
        self.alarms = []
        _core.reset_peak(self._device)
        self.before = memory_stats(self._device)["allocated"]
        return self

    def step(self, loss_scale: float | None = None) -> list[Alarm]:
        """A step has ended. loss_scale: that of the next one, as `scaler.get_scale()` after `scaler.update()`."""
        if self._monitor is None:
            raise UsageError("monitor: step() outside of its `with`; write `with snug.Monitor() as monitor:` around the loop")
        alarms = [Alarm(*alarm) for alarm in self._monitor.step(self._steps, loss_scale)]
        self._steps += 1
        self.step_peak = self._monitor.step_peak
        self.alarms += alarms
        for alarm in alarms:
            warnings.warn(alarm.message, MemoryAlarm, stacklevel=2)
        return alarms

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._monitor is not None
        monitor, self._monitor = self._monitor, None
        try:
            monitor.close()
        except Error:
            if kind is None:  # what ends the block is told first
                raise
        finally:
            self._timeline = monitor.timeline()
            self._peak = monitor.peak
            self.by_tag = memory_stats(self._device)["at_peak_by_tag"]

    @property
    def peak(self) -> int:
        """Bytes: the highest since the beginning of the `with`."""
        return self._peak if self._monitor is None else self._monitor.peak

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """(seconds since the beginning, bytes allocated)"""
        return self._timeline if self._monitor is None else self._monitor.timeline()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.by_tag.items() if size)
        return f"Monitor(peak {format_bytes(self.peak)}{': ' + parts if parts else ''})"
