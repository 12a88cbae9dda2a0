"""Inspects objects by their types, without calling methods of their classes, which may have side effects."""

from __future__ import annotations

import array
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any


def is_of(value: Any, kinds: Any) -> bool:
    """Like isinstance, but ignores __class__, which mocks and proxies override."""
    return issubclass(type(value), kinds)


def attributes_of(thing: Any) -> dict[str, Any] | None:
    """Returns its __dict__ without calling __getattr__ of the program's class."""
    if issubclass(type(thing), threading.local):
        return thing.__dict__  # of this thread
    try:
        names = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return names if type(names) is dict else None


def is_shared(value: Any) -> bool:
    """Whether it is a multiprocessing.Value or Array with a lock."""
    shared = sys.modules.get("multiprocessing.sharedctypes")
    return shared is not None and is_of(value, shared.SynchronizedBase)


def is_array(value: Any) -> bool:
    if is_of(value, array.array):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and is_of(value, numpy.ndarray) and value.flags.writeable


def slots_of(kind: type) -> Iterator[types.MemberDescriptorType]:
    for one in kind.__mro__:
        if "__slots__" in vars(one):
            yield from (slot for slot in vars(one).values() if isinstance(slot, types.MemberDescriptorType))
