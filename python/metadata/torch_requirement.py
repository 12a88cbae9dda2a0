"""What the package needs, for scikit-build-core: torch, of the minor release that the extension is built for."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path


def _version_in(libtorch: Path) -> str | None:
    """That of a folder with include/ and lib/."""
    for header in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"):
        path = libtorch / "include" / header
        parts = dict(re.findall(r"define TORCH_VERSION_(MAJOR|MINOR) (\d+)", path.read_text())) if path.is_file() else {}
        if len(parts) == 2:
            return f"{parts['MAJOR']}.{parts['MINOR']}"
    return None


def _installed_version() -> str | None:
    """That of the environment that is installed into, whose packages pip hides from the build: its own folder, the
    user's, and the system's, as Python looks for them."""
    outer = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    folders = [sysconfig.get_path("platlib"), site.getusersitepackages(), sysconfig.get_path("platlib", vars=outer)]
    found = distributions(name="torch", path=list(dict.fromkeys(folders)))
    return next((".".join(d.version.split(".")[:2]) for d in found), None)


def dynamic_metadata(field: str, settings: dict[str, object] | None = None) -> list[str]:
    if field != "dependencies" or settings:
        raise ValueError(f"torch_requirement: it tells dependencies, without settings; it was asked for {field}")
    folder = os.environ.get("SNUG_LIBTORCH")
    version = _version_in(Path(folder)) if folder else _installed_version()
    if version is None:
        raise RuntimeError(
            "snug: there is no torch to build for; install it first, as in pip install torch, or set SNUG_LIBTORCH "
            "to a LibTorch"
        )
    return [f"torch=={version}.*"]
