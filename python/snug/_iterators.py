"""Iterators that a step may take items from: copies of those that can be copied, and the positions of the others."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Iterator
from typing import Any

_COPIED = (*(type(iter(empty)) for empty in ([], (), "", range(0), range(1 << 70))), itertools.count, itertools.repeat)


def copied_iterator(thing: Any) -> Any:
    """Returns a copy of an iterator such as itertools.count, or None for other objects and for generators."""
    # A copy of zip or enumerate shares its inner iterator with the original, so that it cannot be used.
    if type(thing) not in _COPIED:
        return None
    try:
        return copy.copy(thing)
    except TypeError:  # a generator
        return None


def position_of(thing: Any) -> Any:
    """Returns a value that changes when the iterator is advanced, or None if the iterator has none."""
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        # The objects themselves: an id may be another object's by the next time.
        return None if frame is None else (frame.f_lasti, thing.gi_yieldfrom, list(frame.f_locals.items()))
    if not hasattr(type(thing), "__next__"):
        return None
    if type(thing).__module__ in ("builtins", "itertools"):  # zip, map, cycle: __reduce__ returns their inner iterators
        try:
            return tuple(position_of(part) or part for part in _flat(thing.__reduce__()[1:]))
        except TypeError:
            return None
    return getattr(thing, "_num_yielded", None)  # that of a DataLoader


def _flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part


def same_position(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and type(a) is type(b):
        return a is b or len(a) == len(b) and all(map(same_position, a, b))
    return a is b or isinstance(a, (int, str)) and type(a) is type(b) and a == b
