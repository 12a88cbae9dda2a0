"""Which device's memory is meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from . import _core


def _tensors_in(sample: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Also in mappings that are no dict, dataclasses and plain objects, as batches come in."""
    for leaf in torch.utils._pytree.tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth > 0 and not isinstance(leaf, (type, torch.nn.Module)):
            inside = dict(leaf) if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", None)
            if inside:
                yield from _tensors_in(inside, depth - 1)


def device_named(device: str | torch.device | None) -> str:
    """A device with its number; without one, of several of a type, the one that is in use now. None: where the calling
    thread makes new tensors (torch.set_default_device), the CPU where these have no memory."""
    if device is None:
        device = torch.get_default_device()
        if device.type == "meta":
            device = "cpu"
    return _core.with_index(str(device))


def device_of(device: str | torch.device | None, sample: Any, others: Iterable[str | torch.device] = ()) -> str:
    """Where a step's memory is, with its number: as it is said, else where the first of the sample's tensors is that is on an
    accelerator, or the first, not counting those on devices that are among the others; else where new ones are made."""
    if device is None:
        known = {device_named(other) for other in others}
        devices = [t.device for t in _tensors_in(sample)]
        devices = [d for d in devices if device_named(d) not in known] or devices
        device = next((d for d in devices if d.type != "cpu"), devices[0] if devices else None)
    return device_named(device)
