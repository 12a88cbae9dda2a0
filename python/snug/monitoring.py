"""Allocated memory by its use, the limit, and a monitor of both."""

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
    """Returns what the device's allocator has handed out, in bytes, and the memory of the process.

    Args:
        device: By default the device of new tensors (torch.set_default_device), else the CPU.

    Returns:
        A dictionary: "allocated", "mapped" (with cached free memory), their peaks "allocated_peak" and "mapped_peak",
        "limit" (None: none), and "by_tag" and "at_peak_by_tag", by use: weights, gradients, optimizer, activations,
        staging, workspace. Also "resident", the process's resident memory, which is resident_tensors + resident_cached
        + resident_others - resident_untouched, and "device_total" and "device_free".

    Raises:
        UsageError: The device is unknown, or snug does not count its memory.

    Example:
        >>> snug.memory_stats("cuda:0")["by_tag"]["activations"]
    """
    named = device_named(device)
    return {**_core.memory_stats(named), **_core.memory_sample(named)}


def set_memory_limit(size: Size | None, device: str | torch.device | None = None) -> None:
    """Limits what the device's allocator hands out to the whole process, from now on.

    Args:
        size: Bytes, or a text such as "8GiB". None lifts the limit.
        device: By default the device of new tensors.

    Raises:
        UsageError: The size cannot be parsed, or the device is unknown.

    Example:
        >>> snug.set_memory_limit("8GiB")
    """
    _core.set_memory_limit(None if size is None else parse_bytes(size), device_named(device))


def release_cached(device: str | torch.device | None = None) -> None:
    """Returns cached free memory to the system.

    Args:
        device: By default the device of new tensors.

    Raises:
        UsageError: The device is unknown.

    Example:
        >>> snug.release_cached("cuda:0")
    """
    _core.release_cached(device_named(device))


class MemoryAlarm(UserWarning):
    """The category of a Monitor's warnings: growing memory, little free memory, a falling loss scale.

    Example:
        >>> warnings.simplefilter("error", snug.MemoryAlarm)
    """


@dataclass(frozen=True)
class Alarm:
    """An alarm of a Monitor.

    Args:
        kind: "growth", "headroom" or "falling_scale".
        message: One line with the numbers.

    Example:
        >>> [alarm.kind for alarm in monitor.alarms]
    """

    kind: str
    message: str


class Monitor:
    """Watches a device's memory while a `with` runs. Warns of MemoryAlarm, once for as long as a fault lasts.

    Entering resets the peaks of memory_stats. A second `with` of the same Monitor appends to its file.

    Args:
        device: By default the device of new tensors.
        interval: Seconds between samples, which a thread takes; None takes none. By default a millisecond, or None with
            a file.
        file: Gets a JSON line for each step, sample and alarm: bytes by use, the process's resident memory and its
            parts, free memory of the device.
        append: Appends to the file instead of replacing it.
        growth_steps: The number of steps over which memory must not grow all the time. 0 turns the alarm off.
        headroom: The share of the device's memory that must stay free. 0 turns the alarm off.

    Attributes:
        before: Bytes allocated on entry.
        step_peak: The peak of the latest step, in bytes.
        by_tag: The bytes of the peak by use, after the `with`.
        alarms: All alarms so far.

    Raises:
        UsageError: The interval is not positive, or the device is unknown.

    Example:
        >>> with snug.Monitor(file="runs/mine/memory.jsonl") as monitor:
        ...     for batch in loader:
        ...         session.backward(batch)
        ...         monitor.step()
        >>> print(monitor.peak, monitor.by_tag, monitor.alarms)
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
        """Ends a step.

        Args:
            loss_scale: The loss scale of the next step: scaler.get_scale() after scaler.update().

        Returns:
            The alarms of this step.

        Raises:
            UsageError: The monitor's `with` is not running.
        """
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
        """The highest number of allocated bytes since the beginning of the `with`."""
        return self._peak if self._monitor is None else self._monitor.peak

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """Samples: (seconds since the beginning, allocated bytes). Of more than 20,000 every other one is dropped."""
        return self._timeline if self._monitor is None else self._monitor.timeline()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.by_tag.items() if size)
        return f"Monitor(peak {format_bytes(self.peak)}{': ' + parts if parts else ''})"
