"""Copies of optimizers that step in place of the originals and share their tensors."""

from __future__ import annotations

import copyreg
import functools
import types
from collections import OrderedDict, defaultdict
from typing import Any

import torch

_CONTAINERS = (dict, defaultdict, OrderedDict, list, tuple)
# Values that are shared without a look at their attributes.
_SHARED = (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.ModuleType, str, int, float, type(None))


def attributes_of(thing: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those in slots included."""
    slots = [name for name in copyreg._slotnames(type(thing)) if hasattr(thing, name)]  # type: ignore[attr-defined]
    return {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots}}


def twin_of(optimizer: Any) -> Any:
    """Returns a copy of an optimizer that steps without an effect on the original, apart from writes to tensors.

    Tensors are shared. Dictionaries and lists, the optimizers that it wraps, its bound methods, and objects that hold
    the optimizer in an attribute are copied. A closure or a weak reference still refers to the original.
    """
    return _Copies().of_optimizer(optimizer)


class _Copies:
    """The copies of one optimizer's attributes. Each object is copied once."""

    def __init__(self) -> None:
        self._by_id: dict[int, Any] = {}

    def of_optimizer(self, optimizer: Any) -> Any:
        twin = self._by_id.get(id(optimizer))
        return twin if twin is not None else self._of_attributes(optimizer)

    def _of_attributes(self, thing: Any) -> Any:
        twin = object.__new__(type(thing))  # wrappers may have an __init__ that does more than this
        self._by_id[id(thing)] = twin
        for name, value in attributes_of(thing).items():
            if name in getattr(thing, "__dict__", {}):
                twin.__dict__[name] = self._of(value)
            else:
                object.__setattr__(twin, name, self._of(value))
        return twin

    def _of(self, value: Any) -> Any:
        if id(value) in self._by_id:
            return self._by_id[id(value)]
        if type(value) in _CONTAINERS:
            return self._of_container(value)
        if isinstance(value, _SHARED):
            return value
        if isinstance(value, types.MethodType):
            owner = self._of(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if type(value) is functools.partial:
            return functools.partial(self._of(value.func), *map(self._of, value.args), **self._of(value.keywords))
        return self._of_attributes(value) if _is_optimizer(value) or self._holds_a_copied_one(value) else value

    def _of_container(self, container: Any) -> Any:
        copied: Any
        if isinstance(container, dict):
            copied = defaultdict(container.default_factory) if isinstance(container, defaultdict) else {}
            self._by_id[id(container)] = copied
            copied.update((key, self._of(value)) for key, value in container.items())
        else:
            copied = []
            self._by_id[id(container)] = copied
            copied += map(self._of, container)
            if isinstance(container, tuple):
                copied = self._by_id[id(container)] = tuple(copied)
        return copied

    def _holds_a_copied_one(self, value: Any) -> bool:
        """Returns whether an object refers to a copied one in an attribute, itself or by a bound method."""
        held = (one for one in attributes_of(value).values() if type(one) not in _CONTAINERS)
        return any(id(getattr(one, "__self__", one)) in self._by_id for one in held)


def _is_optimizer(value: Any) -> bool:
    if isinstance(value, torch.optim.Optimizer):
        return True
    return hasattr(type(value), "step") and "param_groups" in attributes_of(value)
