"""What memory is taken, by what it is for, and its course."""

from __future__ import annotations

from typing import Any

import torch

from . import _core
from .devices import device_named
from .sizes import Size, format_bytes, parse_bytes


def memory_stats(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Bytes that the device's allocator has handed out: allocated, mapped (with cached free memory), their peaks, the
    limit, and the split by what they are for: weights, gradients, optimizer, activations, staging, workspace."""
    return _core.memory_stats(device_named(device))


def set_memory_limit(size: Size | None, device: str | torch.device = "cpu") -> None:
    """No more than so many bytes of the device's memory are handed out from now on, to anybody in the process; None lifts
    the limit."""
    _core.set_memory_limit(None if size is None else parse_bytes(size), device_named(device))


def release_cached(device: str | torch.device = "cpu") -> None:
    """Returns cached free memory to the system."""
    _core.release_cached(device_named(device))


class Monitor:
    """Watches a device's memory for the life of a `with`:

        with snug.Monitor() as monitor:
            session.backward(batch)
        print(monitor.peak, monitor.by_tag)

    peak is exact, and starts the device's peak figures again; the timeline is sampled every `interval` seconds.
    """

    def __init__(self, device: str | torch.device = "cpu", interval: float = 0.001) -> None:
        self._device = device_named(device)
        self._sampler = _core.Sampler(self._device, interval)
        self.before = 0
        self.peak = 0
        self.by_tag: dict[str, int] = {}

    def __enter__(self) -> Monitor:
        _core.reset_peak(self._device)
        self.before = self.peak = memory_stats(self._device)["allocated"]
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        stats = memory_stats(self._device)
        self.peak = stats["allocated_peak"]
        self.by_tag = stats["at_peak_by_tag"]

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """(seconds since the beginning, bytes allocated)"""
        return self._sampler.samples()

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.by_tag.items() if size)
        return f"Monitor(peak {format_bytes(self.peak)}{': ' + parts if parts else ''})"
