"""Replaces torch.utils.checkpoint by snug in a whole program."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.checkpoint as _torch_checkpoint

from .checkpointing import checkpoint_sequential, original, run_checkpoint
from .modes import TorchArguments

_original_sequential = _torch_checkpoint.checkpoint_sequential
_ARGUMENTS = frozenset(field.name for field in dataclasses.fields(TorchArguments))


@functools.wraps(original, updated=())
def _in_place_of_torch(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """snug.checkpoint without `mode`, which is the function's own argument here."""
    arguments = TorchArguments(**{name: kwargs.pop(name) for name in list(kwargs) if name in _ARGUMENTS})
    return run_checkpoint(function, args, kwargs, None, arguments)


_REPLACED = (
    (original, _in_place_of_torch),
    (_original_sequential, checkpoint_sequential),
)


def _replace(pairs: Sequence[tuple[Any, Any]]) -> None:
    """In every module that is loaded, under whatever name."""
    for module in list(sys.modules.values()):
        if not isinstance(module, types.ModuleType) or module.__name__.split(".")[0] == "snug":
            continue
        for name, value in list(vars(module).items()):
            for old, new in pairs:
                if value is old:
                    setattr(module, name, new)


_patches = 0  # that hold now


class _Patched:
    """Undoes a patch; as a context manager, at its end. Where patches nest, the last one undoes them."""

    def __init__(self) -> None:
        global _patches
        _patches += 1
        self._holds = True

    def undo(self) -> None:
        """Restores torch's functions, also in modules that were imported while it held. A second call does nothing."""
        global _patches
        if not self._holds:
            return
        self._holds = False
        _patches -= 1
        if _patches == 0:
            _replace([(new, old) for old, new in _REPLACED])

    def __enter__(self) -> _Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch() -> _Patched:
    """Replaces torch.utils.checkpoint's checkpoint and checkpoint_sequential by snug's for the whole program.

    Modules that are loaded and have imported them by name are included, as transformers. Objects that hold the function
    itself are not: call patch() before model.gradient_checkpointing_enable(), which makes such objects.

    Returns:
        An object whose undo() restores torch's functions. As a context manager it does so at the end of its `with`.

    Example:
        >>> with snug.patch():
        ...     model.gradient_checkpointing_enable()
        ...     model(**batch).loss.backward()
    """
    _replace(_REPLACED)
    return _Patched()
