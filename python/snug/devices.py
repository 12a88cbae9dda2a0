"""Which device's memory is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .errors import UsageError


def _tensors_in(sample: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Also in mappings that are no dict, dataclasses and plain objects, as batches come in."""
    for leaf in torch.utils._pytree.tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth > 0 and not isinstance(leaf, (type, torch.nn.Module)):
            inside = dict(leaf) if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", None)
            if inside:
                yield from _tensors_in(inside, depth - 1)


def device_named(device: str | torch.device) -> str:
    """The type of a device. Of several of a type the one in use is meant; another's number is refused."""
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f'device: "{device}" is none; give "cpu" or "cuda"') from error
    if named.index is not None and named.type != "cpu" and named.index != torch.accelerator.current_device_index():
        raise UsageError(
            f"device: {named} is not the one in use, {named.type}:{torch.accelerator.current_device_index()}, which snug "
            f"counts and caps; call torch.accelerator.set_device_index({named.index}) first"
        )
    return named.type


def device_of(device_type: str | torch.device | None, sample: Any) -> str:
    """Where a step's memory is: as it is said, else where the sample's tensors are."""
    if device_type is not None:
        return device_named(device_type)
    return next((t.device.type for t in _tensors_in(sample) if t.device.type != "cpu"), "cpu")
