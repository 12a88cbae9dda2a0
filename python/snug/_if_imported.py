"""Classes of PyTorch that take long to import, and of which nobody has an object before somebody has imported them."""

from __future__ import annotations

import sys
from typing import Any


def is_a(thing: Any, module: str, name: str) -> bool:
    """Whether it is an object of that class, of a module that need not have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and issubclass(type(thing), kind)
