"""Objects of classes of PyTorch; also of those that take long to import, which nobody has before somebody has imported them."""

from __future__ import annotations

import gc
import sys
from typing import Any


def is_a(thing: Any, module: str, name: str) -> bool:
    """Whether it is an object of that class, of a module that need not have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and issubclass(type(thing), kind)


def objects_of(kind: type) -> list[Any]:
    """Those of that class and of all derived ones in this process. gc.freeze() is undone: it hides them. Processes with large
    libraries have a million objects."""
    if gc.get_freeze_count():
        gc.unfreeze()
    kinds, found = {kind}, [kind]
    while found:
        derived = set(type.__subclasses__(found.pop())) - kinds
        kinds |= derived
        found += derived
    return [thing for thing in gc.get_objects() if type(thing) in kinds]
