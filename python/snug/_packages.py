"""Which code is the program's own, and which a library's."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

_LIBRARIES = ("builtins", "snug", "torch")  # which need not be installed where libraries are
_FOLDERS = ("site-packages", "dist-packages")
_PYTHONS_OWN = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


def package_of(thing: Any) -> str:
    """The name of the package, without those inside of it, that a function, a class or an object of a class is from."""
    module = getattr(thing, "__module__", None)
    return (module if isinstance(module, str) else "").partition(".")[0]


def is_programs(package: str) -> bool:
    """Whether it is no library: neither installed, nor Python's own, nor built in."""
    if package == "__main__":
        return True
    if package in _LIBRARIES:
        return False
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))  # a package without an __init__.py

    def is_of_a_library(place: str) -> bool:
        return place.startswith(_PYTHONS_OWN) or any(f"/{folder}/" in f"{place}/" for folder in _FOLDERS)

    return bool(places) and not any(map(is_of_a_library, places))
