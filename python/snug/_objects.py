"""The objects of this process, as Python's garbage collector knows them."""

from __future__ import annotations

import gc
from typing import Any


def objects_of(kind: type | tuple[type, ...]) -> list[Any]:
    """Returns the live instances of a class or of several, subclasses included.

    Calls gc.unfreeze(), as the garbage collector does not list frozen objects.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    # By type: other things may pretend to be of a class, or compute something when they are asked.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
