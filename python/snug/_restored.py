"""What a snapshot of Python state is made of: names, contents and iterators, each with put_back(), which restores it."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from ._iterators import copied_iterator, position_of, same_position

_SEQUENCES = (list, collections.deque)
_MAPPINGS = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)

# Containers whose contents are restored. For objects of other types only the attribute that refers to them is.
PLAIN = (*_SEQUENCES, *_MAPPINGS, set)

ABSENT = object()  # in place of a value: the name had none


def _same(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects, which need not be comparable."""
    if len(a) != len(b):
        return False
    if isinstance(a, set):
        return {id(item) for item in a} == {id(item) for item in b}
    if isinstance(a, dict):
        return all(x is y and a[x] is b[y] for x, y in zip(a, b))
    return all(x is y for x, y in zip(a, b))


def _plain_kind_of(container: Any) -> Any:
    """The class of PLAIN that the container's class is or derives from, whose methods do nothing else."""
    return next((kind for kind in type(container).__mro__ if kind in PLAIN), None)


class SavedContents:
    """Of a container of PLAIN, or of a class that derives from one."""

    def __init__(self, container: Any) -> None:
        kind = _plain_kind_of(container)
        self._container = container
        self._contents = dict(container) if issubclass(kind, dict) else kind(container)

    def put_back(self) -> None:
        if _same(self._container, self._contents):
            return
        kind = _plain_kind_of(self._container)
        kind.clear(self._container)
        (kind.extend if kind in _SEQUENCES else kind.update)(self._container, self._contents)


class SavedNames:
    """A dictionary of names, as the attributes of an object are: writes those that differ, as other threads may read the
    others."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names, self._before = names, dict(names)

    def give(self, name: str, value: Any) -> None:
        """The name refers to this from now on."""
        self._names[name] = self._before[name] = value

    def put_back(self) -> None:
        for name in [name for name in self._names if name not in self._before]:
            self._names.pop(name, None)
        for name, value in self._before.items():
            if self._names.get(name, ABSENT) is not value:
                self._names[name] = value


class SavedName:
    """One name of a dictionary, such as a global variable."""

    def __init__(self, names: dict[str, Any], name: str) -> None:
        self._names, self._name, self._value = names, name, names.get(name, ABSENT)

    def give(self, value: Any) -> None:
        """It refers to this from now on."""
        self._names[self._name] = self._value = value

    def put_back(self) -> None:
        if self._value is ABSENT:
            self._names.pop(self._name, None)
        elif self._names.get(self._name, ABSENT) is not self._value:
            self._names[self._name] = self._value


class SavedTensorAttributes:
    """Those of a tensor that do not begin with an underscore: the others are a library's and stay."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._before = tensor, dict(tensor.__dict__)

    def put_back(self) -> None:
        now = self._tensor.__dict__
        before = {**self._before, **{name: value for name, value in now.items() if name.startswith("_")}}
        for name in [name for name in now if name not in before]:
            del now[name]
        for name, value in before.items():
            if now.get(name, ABSENT) is not value:
                now[name] = value


class SavedClass:
    """The attributes of a class of the program that are no methods and no descriptors, and which names it has."""

    def __init__(self, kind: type) -> None:
        self._kind, self._all = kind, set(vars(kind))
        self.values = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__")
            and not isinstance(value, (types.FunctionType, staticmethod, classmethod, property))
            and not hasattr(type(value), "__get__")
        }

    def put_back(self) -> None:
        now = dict(vars(self._kind))
        for name in now:
            if name not in self._all and not name.startswith("_"):
                delattr(self._kind, name)
        for name, value in self.values.items():
            if now.get(name, ABSENT) is not value:
                setattr(self._kind, name, value)


class SavedSlot:
    """The content of a slot, read and written past the class's own __getattr__ and __setattr__."""

    def __init__(self, thing: Any, slot: types.MemberDescriptorType) -> None:
        self._thing, self._slot = thing, slot
        self.value = self._now()

    def _now(self) -> Any:
        try:
            return self._slot.__get__(self._thing, type(self._thing))
        except AttributeError:  # not assigned yet
            return ABSENT

    def put_back(self) -> None:
        if self._now() is self.value:
            return
        if self.value is ABSENT:
            self._slot.__delete__(self._thing)
        else:
            self._slot.__set__(self._thing, self.value)


class SavedCell:
    """The variable of a closure."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell
        self.value = self._now()

    def _now(self) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT

    def give(self, value: Any) -> None:
        """It refers to this from now on."""
        self._cell.cell_contents = self.value = value

    def put_back(self) -> None:
        if self._now() is self.value:
            return
        if self.value is ABSENT:
            del self._cell.cell_contents
        else:
            self._cell.cell_contents = self.value


class SavedIterator:
    """An iterator that can be copied, and who refers to it. It goes back itself where it can, so that all go on with the
    same one; else those that are known to refer to it get a copy."""

    def __init__(self, iterator: Any) -> None:
        self._now = iterator
        self._copy = copied_iterator(iterator)
        self._holders: list[Callable[[Any], None]] = []

    def held_by(self, give: Callable[[Any], None]) -> None:
        self._holders.append(give)

    def _has_moved(self) -> bool:
        return not same_position(position_of(self._now), position_of(self._copy))

    def put_back(self) -> None:
        if not self._has_moved():
            return
        state = self._copy.__reduce__()[2:]
        if state and isinstance(state[0], int):
            self._now.__setstate__(state[0])
        if not self._has_moved():
            return
        self._now = copied_iterator(self._copy)
        for give in self._holders:
            give(self._now)
