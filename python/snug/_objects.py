"""The objects of this process, as Python's garbage collector knows them."""

from __future__ import annotations

import gc
from typing import Any

from . import _core


def objects_of(*kinds: type) -> list[Any]:
    """Returns the live instances of these classes, subclasses included.

    Calls gc.unfreeze(), as the garbage collector does not list frozen objects.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    # By type: other things may pretend to be of a class, or compute something when they are asked.
    return _core.instances_among(gc.get_objects(), kinds)
