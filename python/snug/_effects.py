"""Operators that torch.library knows to have an ordered effect, as print or send: they run once, and are not replayed.

torch.library has no way to be told of a registration, so EffectHolder.register is wrapped. That an operator takes a script
object, which PyTorch counts as an effect, too, the core sees by itself."""

from __future__ import annotations

import functools
from typing import Any

from torch._library import effects, simple_registry

from . import _core

_PYTORCHS = ("aten", "prims", "higher_order", "profiler")


def _effectful() -> set[str]:
    """The names of the operators that have one now, without overloads; PyTorch's own are the core's matter."""
    entries = list(simple_registry.singleton._data.items())
    names = {name.partition(".")[0] for name, entry in entries if entry.effect.effect is effects.EffectType.ORDERED}
    return {name for name in names if name.partition("::")[0] not in _PYTORCHS}


def has_ordered_effect(name: str) -> bool:
    """Whether the operator, "mylib::log", has one."""
    return name in _effectful()


def _run_once(name: str) -> None:
    _core.declare_operator(name, [], None, None, None, True)


def _know_effects() -> None:
    for name in _effectful():
        _run_once(name)
    plain = effects.EffectHolder.register

    @functools.wraps(plain)
    def register(self: Any, effect: Any) -> Any:
        handle = plain(self, effect)
        if effect is effects.EffectType.ORDERED:
            _run_once(self.qualname.partition(".")[0])
        return handle

    effects.EffectHolder.register = register  # type: ignore[method-assign]


_know_effects()
