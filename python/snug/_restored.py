"""What a snapshot of Python state is made of: names, contents, iterators and others, each with put_back(), which restores it."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import gc
import io
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._iterators import copied_iterator, position_of, same_position

_SEQUENCES = (list, collections.deque)
_MAPPINGS = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)

# Containers whose contents are restored. For objects of other types only the attribute that refers to them is.
PLAIN = (*_SEQUENCES, *_MAPPINGS, set)

ABSENT = object()  # in place of a value: the name had none


def _plain_kind_of(container: Any) -> Any:
    return next(kind for kind in type(container).__mro__ if kind in PLAIN)


def length_of(container: Any) -> int:
    """Returns the number of items without calling a method of the program's class."""
    return int(_plain_kind_of(container).__len__(container))


class SavedContents:
    """Restores the contents of a container whose class is in PLAIN or derives from one of them. Calls no methods of the program's
    classes, which may do something else as well."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._kind = _plain_kind_of(container)
        self._items = self._now()

    def _now(self) -> list[Any]:
        if self._kind in _MAPPINGS:
            return list(self._kind.items(self._container))
        return list(self._kind.__iter__(self._container))

    def _without_removed(self, now: list[Any]) -> list[Any]:
        """Returns the items except dead weak references that were removed meanwhile, as weak containers do: restored, they would never
        be removed."""
        parts_of: Callable[[Any], tuple[Any, ...]] = tuple if self._kind in _MAPPINGS else lambda item: (item,)
        there = {tuple(map(id, parts_of(item))) for item in now}

        def is_removed(item: Any) -> bool:
            is_dead = any(isinstance(part, weakref.ref) and part() is None for part in parts_of(item))
            return is_dead and tuple(map(id, parts_of(item))) not in there

        return [item for item in self._items if not is_removed(item)]

    def values(self) -> list[Any]:
        return [value for _, value in self._items] if self._kind in _MAPPINGS else self._items

    def _is_back(self, now: list[Any]) -> bool:
        """Whether it holds the same objects, which need not be comparable."""
        if self._kind is set:
            return set(map(id, now)) == set(map(id, self._items))
        if self._kind in _MAPPINGS:
            return len(now) == len(self._items) and all(a is c and b is d for (a, b), (c, d) in zip(now, self._items))
        return len(now) == len(self._items) and all(map(operator.is_, now, self._items))

    def put_back(self) -> None:
        now = self._now()
        if self._is_back(now):
            return
        self._items = self._without_removed(now)
        if self._is_back(now):
            return
        self._kind.clear(self._container)
        if self._kind in _MAPPINGS:
            for key, value in self._items:
                self._kind.__setitem__(self._container, key, value)
        else:
            (self._kind.extend if self._kind in _SEQUENCES else self._kind.update)(self._container, self._items)


class SavedArray:
    """Restores the elements of an array.array or a NumPy array, of whose subclasses (masked arrays, records, files in memory)
    no method is called."""

    def __init__(self, elements: Any) -> None:
        is_numpys = not isinstance(elements, array.array)
        self._elements = sys.modules["numpy"].asarray(elements) if is_numpys else elements
        self._copy = self._elements.copy() if is_numpys else elements[:]

    def objects(self) -> list[Any]:
        """The elements that are Python objects."""
        has_any = not isinstance(self._copy, array.array) and self._copy.dtype == object
        return self._copy.reshape(-1).tolist() if has_any else []

    def put_back(self) -> None:
        if isinstance(self._elements, array.array):
            if self._elements.tobytes() != self._copy.tobytes():
                self._elements[:] = self._copy
        elif self._elements.shape == self._copy.shape and self._elements.tobytes() != self._copy.tobytes():
            self._elements[...] = self._copy


def has_references(kind: Any) -> bool:
    """Whether objects of this ctypes class refer to Python objects, as a c_char_p does, so that their bytes are not all."""
    if issubclass(kind, ctypes.Array):
        return has_references(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        fields = [field for one in kind.__mro__ for field in vars(one).get("_fields_", ())]
        return any(has_references(field[1]) for field in fields)
    return not issubclass(kind, ctypes._SimpleCData) or kind._type_ in ("O", "X", "Z", "z")


class SavedMemory:
    """Restores the bytes of a ctypes object without references, such as that of a multiprocessing.Value."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._before = self._now()

    def _now(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self._thing), ctypes.sizeof(self._thing))

    def put_back(self) -> None:
        if self._now() != self._before:
            ctypes.memmove(ctypes.addressof(self._thing), self._before, len(self._before))


class SavedCache:
    """Restores what functools.cache or lru_cache has of a function, unless the cache is bounded and had entries before."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._size = function.cache_info().currsize
        # The dictionary of an unbounded cache has the results, that of a bounded one has links to them.
        held = [held for held in gc.get_referents(function) if type(held) is dict and held is not function.__dict__]
        self._entries = next((one for one in held if self._is_unbounded() or self._has_links(one)), {})
        self._before = dict(self._entries)
        # A full cache reuses the link of the evicted entry, so comparing links is not enough.
        self._held = self._now()

    @staticmethod
    def _has_links(entries: dict[Any, Any]) -> bool:
        return bool(entries) and all(type(link).__name__ == "_lru_list_elem" for link in entries.values())

    def _now(self) -> list[Any]:
        """Returns the objects that a bounded cache refers to, keys and results among them. Empty for an unbounded cache."""
        return [] if self._is_unbounded() else gc.get_referents(self._function)

    def results(self) -> list[Any]:
        if self._is_unbounded():
            return list(self._before.values())
        own = (self._entries, self._function.__dict__, self._function.__wrapped__)
        return [held for held in self._held if not isinstance(held, type) and not any(held is one for one in own)]

    def _is_unbounded(self) -> bool:
        return self._function.cache_info().maxsize is None

    def _is_back(self) -> bool:
        pairs = zip(self._entries.items(), self._before.items())  # without the program's __eq__
        if len(self._entries) != len(self._before) or not all(a is c and b is d for (a, b), (c, d) in pairs):
            return False
        return sorted(map(id, self._now())) == sorted(map(id, self._held))  # a hit changes their order

    def advanced(self) -> str | None:
        """Returns part of an error message: what the step changed irreversibly, and what to do. None if it changed nothing."""
        if not self._size or self._is_unbounded() or self._is_back():
            return None
        name = f"{self._function.__qualname__}()"
        return f"changed the entries of the cache of {name}, which cannot be restored; call it with these arguments before fit"

    def put_back(self) -> None:
        if not self._size:
            if self._function.cache_info().currsize:
                self._function.cache_clear()
        elif self._is_unbounded() and not self._is_back():
            self._entries.clear()
            self._entries.update(self._before)


BUFFERS = (io.StringIO, io.BytesIO)


class SavedBuffer:
    """Restores the contents and the position of an object of one of BUFFERS or of a class derived from it. One that is closed, now
    or by the step, stays closed. Calls no methods of the program's class. Raises BufferError if the length has changed and a
    memoryview of it has been made since, as BytesIO does."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._kind: Any = next(kind for kind in BUFFERS if issubclass(type(buffer), kind))
        self._before = self._now()

    def _now(self) -> tuple[Any, ...]:
        """Contents, position and, of text, how lines end: what the state of the class begins with; the attributes follow."""
        return () if self._kind.closed.__get__(self._buffer) else self._kind.__getstate__(self._buffer)[:-1]

    def size(self) -> int:
        return len(self._before[0]) if self._before else 0

    def put_back(self) -> None:
        if not (now := self._now()) or now == self._before:
            return
        before = self._before[0]
        if isinstance(before, bytes) and len(before) == len(now[0]):  # possible with views of it, too
            self._kind.getbuffer(self._buffer)[:] = before
            self._kind.seek(self._buffer, self._before[1])
        else:
            self._kind.__setstate__(self._buffer, (*self._before, None))


class SavedContextVariables:
    """Restores what contextvars.ContextVars have in this thread. One that had no value gets its default, if it has any."""

    def __init__(self) -> None:
        self._before = contextvars.copy_context()

    def put_back(self) -> None:
        for variable, value in contextvars.copy_context().items():
            if variable in self._before:
                if self._before[variable] is not value:
                    variable.set(self._before[variable])
                continue
            default = self._default_of(variable)
            if default is not ABSENT and default is not value:
                variable.set(default)

    @staticmethod
    def _default_of(variable: contextvars.ContextVar[Any]) -> Any:
        try:
            return contextvars.Context().run(variable.get)
        except LookupError:
            return ABSENT


class SavedNames:
    """Restores a dictionary of names, such as the attributes of an object. Writes only the names that differ, since other
    threads may read the rest."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names, self._before = names, dict(names)

    def give(self, name: str, value: Any) -> None:
        """The name refers to this from now on."""
        self._names[name] = self._before[name] = value

    def _stays(self, name: str) -> bool:
        """Whether the name keeps the value that it has now."""
        return False

    def put_back(self) -> None:
        for name in [name for name in self._names if name not in self._before and not self._stays(name)]:
            self._names.pop(name, None)
        for name, value in self._before.items():
            now = self._names.get(name, ABSENT)
            if now is not value and (now is ABSENT or not self._stays(name)):
                self._names[name] = value


class SavedTensorAttributes(SavedNames):
    """Restores the Python attributes of a tensor, except names with a leading underscore, which libraries set."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.__dict__)

    def _stays(self, name: str) -> bool:
        return name.startswith("_")


class SavedName:
    """Restores one name of a dictionary, such as a global variable."""

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


_METHODS = (types.FunctionType, staticmethod, classmethod, property)


class SavedClass:
    """Restores the attributes of a class, methods among them, and deletes names that were added."""

    def __init__(self, kind: type) -> None:
        self._kind, self._all = kind, set(vars(kind))
        self._methods = {name: value for name, value in vars(kind).items() if isinstance(value, _METHODS)}
        self.values = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") and not hasattr(type(value), "__get__")
        }

    def put_back(self) -> None:
        now = dict(vars(self._kind))
        for name in now:
            if name not in self._all and not name.startswith("_"):
                delattr(self._kind, name)
        for name, value in (*self.values.items(), *self._methods.items()):
            if now.get(name, ABSENT) is not value:
                setattr(self._kind, name, value)


class SavedSlot:
    """Restores the value of a slot through its descriptor, without calling __getattr__ or __setattr__ of the class."""

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
    """Restores a variable of a closure."""

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
    """Restores an iterator that can be copied: in place where it has __setstate__, so that it stays the same object; otherwise
    its known holders get a copy."""

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
