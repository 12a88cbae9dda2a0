"""Simulated accelerators, for tests of programs for a GPU."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator

import torch

from .errors import UsageError

__all__ = ["simulated_device"]


def simulated_device(index: int = 0) -> torch.device:
    """Returns one of two accelerators that the CPU simulates, with memory, streams and random generators of their own.

    Results have the bits of the CPU, and a budget is of the simulated memory. The devices take PyTorch's type "hpu" from the
    first call to the end of the process. Call it before the first backward pass. Only a build with snug's tests has
    them (make test), for a torch without CUDA.

    Args:
        index: 0 or 1.

    Returns:
        The device.

    Raises:
        UsageError: This build has none, or none of that index.

    Example:
        >>> torch.set_default_device(snug.testing.simulated_device())
    """
    try:
        from . import _simulated  # type: ignore[attr-defined]
    except ImportError:
        raise UsageError("simulated_device: this build has none; build snug with its tests (make test) and use build/release/python") from None
    if not 0 <= index < _simulated.count:
        raise UsageError(f"simulated_device: there are {_simulated.count}, and none of number {index}")
    _simulated.install()
    if not hasattr(torch, "hpu"):
        module = _module(_simulated)
        torch._register_device_module("hpu", module)
        _seed_with(module.manual_seed_all)
    return torch.device("hpu", index)


def _seed_with(seed_devices: Callable[[int], object]) -> None:
    """torch.manual_seed() seeds "all devices", of those that it has a list of."""
    seed_others = torch.manual_seed

    @functools.wraps(seed_others)
    def manual_seed(seed: int) -> torch.Generator:
        seed_devices(int(seed))
        return seed_others(seed)

    torch.manual_seed = torch.random.manual_seed = manual_seed


def _module(of: types.ModuleType) -> types.ModuleType:
    """What torch asks the module of a device type for."""

    def number(device: int | str | torch.device | None) -> int:
        named = device if isinstance(device, int) or device is None else torch.device(device).index
        return of.current_device() if named is None else named

    @contextlib.contextmanager
    def device(index: int | str | torch.device | None) -> Iterator[None]:
        before = of.current_device()
        of.set_device(number(index))
        try:
            yield
        finally:
            of.set_device(before)

    module = types.ModuleType("torch.hpu")
    vars(module).update(
        _lazy_init=lambda: None,
        _initialized=True,
        _is_in_bad_fork=lambda: False,
        is_available=lambda: True,
        is_initialized=lambda: True,
        device=device,
        device_count=lambda: of.count,
        current_device=of.current_device,
        set_device=lambda device: of.set_device(number(device)),
        synchronize=lambda device=None: of.synchronize(),
        get_rng_state=lambda device=None: of.get_rng_state(number(device)),
        get_rng_state_all=lambda: [of.get_rng_state(i) for i in range(of.count)],
        set_rng_state=lambda state, device=None: of.set_rng_state(state, number(device)),
        manual_seed=lambda seed: of.manual_seed(seed % 2**64, of.current_device()),
        manual_seed_all=lambda seed: [of.manual_seed(seed % 2**64, i) for i in range(of.count)],
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    )
    return module
