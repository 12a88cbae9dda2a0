"""Iterators that a step may take items from: copies of those that can be copied, and the positions of the others."""

from __future__ import annotations

import copy
import itertools
import types
import warnings
from collections.abc import Iterator
from typing import Any

_COPIED = (*(type(iter(empty)) for empty in ([], (), "", range(0), range(1 << 70))), itertools.count, itertools.repeat)


def copied_iterator(thing: Any) -> Any:
    """Returns a copy of an iterator such as itertools.count, or None for other objects and for generators."""
    # A copy of zip or enumerate shares its inner iterator with the original, so that it cannot be used.
    if type(thing) not in _COPIED:
        return None
    try:
        with warnings.catch_warnings():  # Python 3.12 deprecates copies of itertools objects, 3.14 has none
            warnings.simplefilter("ignore", DeprecationWarning)
            return copy.copy(thing)
    except TypeError:
        return None


def position_of(thing: Any) -> Any:
    """Returns a value that changes when the iterator is advanced, or None if the iterator has none."""
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        # The objects themselves: an id may be another object's by the next time.
        return None if frame is None else (frame.f_lasti, thing.gi_yieldfrom, list(frame.f_locals.items()))
    if not hasattr(type(thing), "__next__"):
        return None
    if is_built_in(thing):
        try:
            return tuple(position_of(part) or part for part in parts_of(thing))
        except TypeError:
            return repr(thing) if isinstance(thing, itertools.count) else None
    return getattr(thing, "_num_yielded", None)  # that of a DataLoader


def is_built_in(thing: Any) -> bool:
    """Whether this is an iterator of the builtins or of itertools, such as zip, map or cycle."""
    return hasattr(type(thing), "__next__") and type(thing).__module__ in ("builtins", "itertools")


def parts_of(thing: Any) -> Iterator[Any]:
    """The arguments in __reduce__() of a built-in iterator, flattened: inner iterators, sequences and positions. Raises
    TypeError where it has no __reduce__()."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _flat(thing.__reduce__()[1:])


def _flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part


def same_position(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and type(a) is type(b):
        return a is b or len(a) == len(b) and all(map(same_position, a, b))
    return a is b or isinstance(a, (int, str, range)) and type(a) is type(b) and a == b
