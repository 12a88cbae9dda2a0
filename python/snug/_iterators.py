"""Iterators that a step may take items from: copies of those that can be copied, and the positions of the others."""

from __future__ import annotations

import copy
import gc
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


def position_of(thing: Any, outer: tuple[Any, ...] = ()) -> Any:
    """Returns a value that changes when the iterator is advanced, or None if there is none. outer: the iterators that contain
    this one, to stop at cycles."""
    if not hasattr(type(thing), "__next__") or any(thing is one for one in outer):
        return None
    within = (*outer, thing)
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        if frame is None:
            return None
        # The objects themselves: an id may be another object's by the next time.
        inner = [position for one in _held_by(thing) if (position := position_of(one, within)) is not None]
        return (frame.f_lasti, list(frame.f_locals.items()), inner)
    if is_built_in(thing):
        try:
            return tuple(position_of(part, within) or part for part in parts_of(thing))
        except TypeError:
            return repr(thing) if isinstance(thing, itertools.count) else None
    # Of a DataLoader, and of csv.reader.
    return getattr(thing, "_num_yielded", getattr(thing, "line_num", None))


def _held_by(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """The iterators that a generator that is not running holds: in variables, in loops and in `yield from`."""
    # The items of its loops are nowhere but on its stack, which the garbage collector visits; up to Python 3.10 with the frame.
    held = [*gc.get_referents(generator), *gc.get_referents(generator.gi_frame)]
    return list({id(one): one for one in held if hasattr(type(one), "__next__")}.values())


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


class WatchedIterator:
    """An iterator whose position can be told, but not restored."""

    def __init__(self, iterator: Any) -> None:
        self._iterator, self._before = iterator, position_of(iterator)

    def advanced(self) -> str | None:
        """Returns part of an error message: what the step changed irreversibly, and what to do. None if it changed nothing."""
        if same_position(position_of(self._iterator), self._before):
            return None
        name = type(self._iterator).__name__
        return f"took items from an iterator ({name}) that cannot be put back; give the step its batch as an argument"
