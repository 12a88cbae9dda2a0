"""Names of parameters and buffers in the core's error messages."""

from __future__ import annotations

import torch

from . import _core
from ._objects import LiveObjects


def name_parameters(live: LiveObjects) -> None:
    """Names the parameters and buffers of all live modules as named_parameters of the outermost module does."""
    modules = live.modules()
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    names = []
    for module in modules:
        # A module whose __init__ has not run, and one under construction by torch.jit, have no such dictionaries.
        if id(module) in inner or "_parameters" not in module.__dict__:
            continue
        names += [(name, p) for name, p in module.named_parameters() if type(p) in (torch.Tensor, torch.nn.Parameter)]
        names += [(name, b) for name, b in module.named_buffers() if type(b) is torch.Tensor]
    _core.name_tensors(names)
