"""Classes of PyTorch that take long to import, and of which nobody has an object before somebody has imported them."""

from __future__ import annotations

import sys
from typing import Any


def class_of(module: str, name: str) -> type | None:
    """That class, if somebody has imported its module."""
    return getattr(sys.modules.get(module), name, None)


def is_a(thing: Any, module: str, name: str) -> bool:
    """Whether it is an object of that class, of a module that need not have been imported."""
    kind = class_of(module, name)
    return kind is not None and issubclass(type(thing), kind)
