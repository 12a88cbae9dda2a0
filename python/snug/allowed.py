"""What a step may be changed in to save memory: only what is named."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from . import _core
from .errors import UsageError, shown
from .lazy_logits import tiled_loss

# The names that `allow` takes, and what a step then runs inside of.
CHOICES: dict[str, Callable[[], Any]] = {"tiled_loss": tiled_loss}
# Those that allow plans a lossy codec.
LOSSY = {
    "bf16_activations": _core.Lossy.BFloat16,
    "fp8_activations": _core.Lossy.Float8,
    "int8_activations": _core.Lossy.Int8,
    "int4_activations": _core.Lossy.Int4,
}


def checked_names(call: str, names: Any, known: Collection[str]) -> list[str]:
    """What `allow` of a call has, each once. Raises UsageError for what it does not take."""
    if isinstance(names, str):
        raise UsageError(f'{call}: allow is the text "{names}"; give a list: allow=["{names}"]')
    if not isinstance(names, Iterable):
        raise UsageError(f"{call}: allow is {shown(names)}; give a list of names: {', '.join(known)}")
    names = list(dict.fromkeys(names))
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(str(name), known, 1)
        hint = f'did you mean "{near[0]}"? ' if near else ""
        raise UsageError(f"{call}: allow has {shown(name)}, which is not known; {hint}it takes {', '.join(known)}")
    return names


def check_module(call: str, model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{call}: the model is a {type(model).__name__}; give a torch.nn.Module")


class Allowed:
    """Choices by their names. Raises UsageError for what is none."""

    def __init__(self, names: Sequence[str]) -> None:
        names = checked_names("fit", names, [*CHOICES, *LOSSY])
        lossy = [name for name in names if name in LOSSY]
        if len(lossy) > 1:
            raise UsageError(f"fit: allow has {' and '.join(lossy)}; a plan has one lossy codec, so name one of them")
        self.lossy = LOSSY[lossy[0]] if lossy else _core.Lossy.Off
        self._names = [name for name in names if name in CHOICES]

    def __call__(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step with what is allowed."""
        if not self._names:
            return step

        def chosen(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as choices:
                for name in self._names:
                    choices.enter_context(CHOICES[name]())
                return step(*args, **kwargs)

        return chosen
