"""Random generators of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class SavedGenerator:
    """A random generator, with its state."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        if isinstance(thing, random.Random):
            self._state = thing.getstate()
        elif hasattr(thing, "get_state"):  # torch.Generator, numpy.random.RandomState, or the module itself
            self._state = thing.get_state()
        else:  # numpy.random.Generator, or the bit generator inside of one
            self._thing = getattr(thing, "bit_generator", thing)
            self._state = self._thing.state

    def put_back(self) -> None:
        if isinstance(self._thing, random.Random):
            self._thing.setstate(self._state)
        elif hasattr(self._thing, "set_state"):
            self._thing.set_state(self._state)
        else:
            self._thing.state = self._state


def seeds_of(thing: Any) -> Any:
    """Returns the numpy.random.SeedSequence that a generator of NumPy spawns others from, or one itself, or None."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    # By type, since any other object may do something when it is asked for an attribute.
    if issubclass(type(thing), numpy.random.Generator):
        thing = thing.bit_generator
    if issubclass(type(thing), numpy.random.BitGenerator):
        thing = getattr(thing, "seed_seq", None)  # since NumPy 1.25
    return thing if issubclass(type(thing), numpy.random.SeedSequence) else None


class WatchedSeeds:
    """A numpy.random.SeedSequence, which counts what has been spawned from it, and cannot be set back."""

    def __init__(self, seeds: Any) -> None:
        self._seeds, self._before = seeds, seeds.n_children_spawned

    def advanced(self) -> str | None:
        """Returns part of an error message: what the step changed irreversibly, and what to do. None if it changed nothing."""
        if self._seeds.n_children_spawned == self._before:
            return None
        return (
            "spawned generators from a numpy.random.SeedSequence or Generator, which cannot be put back, so that others would be "
            "spawned afterwards; spawn them before fit"
        )


def is_generator(thing: Any) -> bool:
    kind = type(thing)  # isinstance() believes objects that claim another class
    if issubclass(kind, random.Random):
        return kind.getstate is random.Random.getstate
    if issubclass(kind, torch.Generator):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(
        kind, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
    )
