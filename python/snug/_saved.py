"""Saved tensors of autograd.Function as the program saved them: the same objects, with their attributes and subclass."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from . import _core

_plain = torch._C._FunctionBase.saved_tensors


def _saved_tensors(ctx: Any) -> Any:
    return _core.with_originals(lambda: _plain.__get__(ctx))


# Autograd makes a new tensor of what a saved-tensor hook returns where that needs a gradient.
BackwardCFunction.saved_tensors = property(_saved_tensors, doc=_plain.__doc__)  # type: ignore[misc]
