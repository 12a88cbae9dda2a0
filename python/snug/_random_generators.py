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


def is_generator(thing: Any) -> bool:
    if isinstance(thing, random.Random):
        return type(thing).getstate is random.Random.getstate
    if isinstance(thing, torch.Generator):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        thing, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
    )
