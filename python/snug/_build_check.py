"""Refuses a torch other than the one that the extension was built for, before its symbols do."""

from __future__ import annotations

import importlib.machinery
import os
from collections.abc import Iterable

import torch


def minor_of(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check(built_for: str, running: str = torch.__version__) -> None:
    """Raises ImportError unless both are of one minor release, between which LibTorch's C++ interface changes."""
    if minor_of(built_for) == minor_of(running):
        return
    wanted = ".".join(map(str, minor_of(built_for)))
    raise ImportError(
        f"snug: this build is for torch {wanted} (built with {built_for}) and torch {running} is installed: either "
        f"install torch=={wanted}.*, or build snug again for the one that is here: "
        f"pip install --force-reinstall --no-deps --no-cache-dir <the folder of snug's sources>"
    )


def check_is_built(folders: Iterable[str]) -> None:
    """Raises ImportError unless the extension is in one of the package's folders."""
    names = tuple("_core" + suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders for name in names):
        return
    raise ImportError(
        "snug: the extension has not been built for this Python: pip install <the folder of snug's sources> builds and installs "
        "it, as does the CMake target snug_python"
    )
