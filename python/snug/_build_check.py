"""Refuses a torch other than the one that the extension was built for, before its symbols do."""

from __future__ import annotations

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
