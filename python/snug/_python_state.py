"""Saves and restores Python state that a step function may change: attributes of modules, optimizers and schedulers, of the
objects that the step, and the functions and classes that it uses, refer to, its sample, and the random generators of Python and
NumPy. Recording runs the step twice and must leave no trace."""

from __future__ import annotations

import argparse
import array
import collections
import ctypes
import dis
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from . import _core
from ._classes import attributes_of, is_array, is_of, is_shared, slots_of
from ._iterators import WatchedIterator, copied_iterator, is_built_in, parts_of, position_of
from ._leaves import SavedLeaf, is_plain_leaf
from ._objects import OWNERS, LiveObjects
from ._packages import is_programs, package_of
from ._random_generators import SavedGenerator, WatchedSeeds, is_generator, seeds_of
from ._restored import (
    BUFFERS, PLAIN, SavedArray, SavedBuffer, SavedCache, SavedCell, SavedClass, SavedContents, SavedContextVariables, SavedIterator,
    SavedMemory, SavedName, SavedNames, SavedSlot, SavedTensorAttributes, has_references, length_of
)
from .errors import UsageError

# Library classes whose instances are treated like those of the program.
_OF_LIBRARIES = (argparse.Namespace, types.SimpleNamespace, torch.quasirandom.SobolEngine)


def _refuse_lazy(module: torch.nn.Module, _: Any) -> None:
    raise UsageError(
        f"fit: the parameters of a {type(module).__name__} would get their shapes in the recorded step, which must leave no trace; run "
        f"the model on a batch before fit, as before an optimizer is made"
    )


# Their contents are attributes.
_HOLDERS = (
    collections.UserDict, collections.UserList, collections.ChainMap, threading.local, weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary, weakref.WeakSet,
)
_Saved = TypeVar("_Saved")

_OF_CTYPES = (ctypes.Array, ctypes.Structure, ctypes._SimpleCData)

# Objects within objects that the step refers to are looked at to this depth, and no longer containers than this.
_DEPTH = 8
_DEPTH_IN_LIBRARIES = 2
_LONGEST = 10_000
_MOST_ITEMS = 1_000_000  # of all containers: data sets may be lists of lists
_MOST_BYTES = 64 << 20  # of all arrays


class PythonState:
    """A snapshot of the state, taken when the object is made.

    Args:
        step: The step function. Part of the state are the object of a method, what a closure and functools.partial hold, and
            the global variables, objects and classes that it uses, directly or through functions of the program, which is
            all that is not installed.
        sample: Its arguments.
        live: What is alive; by default it is searched for.
    """

    def __init__(self, step: Any = None, sample: Any = None, live: LiveObjects | None = None) -> None:
        self._saved: list[Any] = [
            SavedGenerator(random._inst),  # type: ignore[attr-defined]
            _core.KeptSettings(),
            SavedContextVariables(),
        ]
        if (numpy := sys.modules.get("numpy")) is not None:
            self._saved.append(SavedGenerator(numpy.random))
        self._iterators: dict[int, SavedIterator] = {}  # by id
        self._watched: list[WatchedIterator | WatchedSeeds | SavedCache] = []
        self._seen: set[int] = set()
        self._tuples: list[tuple[Any, ...]] = []  # keeps tuples in _seen alive, so that their ids stay unique
        self._used_modules: set[tuple[int, int]] = set()  # ids of the module and of the code that uses it
        self._objects: set[int] = set()  # whose attributes are saved; _seen has those whose contents are
        self._items_left, self._bytes_left = _MOST_ITEMS, _MOST_BYTES
        self._to_look_at: collections.deque[tuple[Any, int]] = collections.deque()
        live = live if live is not None else LiveObjects()
        lazy = [owner for owner in live.owners if isinstance(owner, LazyModuleMixin) and owner.has_uninitialized_params()]
        self._handles = [module.register_forward_pre_hook(_refuse_lazy, prepend=True) for module in lazy]
        function = step
        while isinstance(function, functools.partial):
            function = function.func
        # The step's packages, where they are a library's: their instances are looked into, but not their functions.
        self._of_step = {package_of(function), package_of(type(getattr(function, "__self__", function)))} - {"builtins"}
        self._depth = _DEPTH if all(map(is_programs, self._of_step)) else _DEPTH_IN_LIBRARIES
        for owner in live.owners:
            self._note_attributes(owner.__dict__, self._depth)
            self._note_class(type(owner))
            if isinstance(owner, torch.nn.Module):
                for tensor in (*owner._parameters.values(), *owner._buffers.values()):
                    self._note_tensor(tensor)
        for tensor in live.tensors:
            self._note_leaf(tensor)
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.__dict__:
                self._note_tensor(tensor)
        for name, hooks in list(vars(torch.nn.modules.module).items()):
            if name.startswith("_global_") and isinstance(hooks, dict):
                self._note(hooks, self._depth)
        self._note_function(step)
        self._note(sample, self._depth)
        while self._to_look_at:
            self._look_at(*self._to_look_at.popleft())

    def _is_of_the_program(self, thing: Any) -> bool:
        """Whether this is an instance of a class of the program: loggers and other libraries' objects are not."""
        if isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.Tensor, *OWNERS)):
            return False
        package = package_of(type(thing))
        return package in self._of_step or is_programs(package) or type(thing) in _OF_LIBRARIES

    def _is_seen(self, thing: Any) -> bool:
        """Whether this was asked before."""
        known = id(thing) in self._seen
        self._seen.add(id(thing))
        return known

    def _save(self, saved: _Saved) -> _Saved:
        self._saved.append(saved)
        return saved

    def _note_tensor(self, tensor: torch.Tensor | None) -> None:
        """Saves the Python attributes of a parameter or buffer."""
        if tensor is None or self._is_seen(tensor):
            return
        self._save(SavedTensorAttributes(tensor))
        for value in tensor.__dict__.values():
            self._note(value, 0)

    def _note_leaf(self, tensor: torch.Tensor) -> None:
        if is_plain_leaf(tensor):
            for hook in self._save(SavedLeaf(tensor)).hooks():
                self._note(hook, self._depth)

    def _note_class(self, kind: type) -> None:
        """Saves class attributes, and the state that methods use, for a class of the program and its base classes."""
        for one in kind.__mro__:
            if not is_programs(package_of(one)) or self._is_seen(one):
                continue
            for value in list(vars(one).values()):
                if isinstance(value, property):
                    for accessor in (value.fget, value.fset):
                        self._note_function(accessor)
                else:
                    function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                    if isinstance(function, types.FunctionType):
                        self._note_function(function)
                    elif isinstance(function, functools._lru_cache_wrapper):
                        self._note_cache(function)
            for value in self._save(SavedClass(one)).values.values():  # one may be the only object of the class
                self._note(value, self._depth - 1)

    def _note_function(self, step: Any) -> None:
        if isinstance(step, functools.partial):
            self._note_function(step.func)
            self._note([*step.args, *step.keywords.values()], self._depth)
        elif isinstance(step, types.MethodType):
            self._note(step.__self__, self._depth)
            self._note_function(step.__func__)
        elif isinstance(step, types.FunctionType):
            if self._is_seen(step):
                return
            for cell in step.__closure__ or ():
                saved = self._save(SavedCell(cell))
                self._note_held(saved.value, self._depth, saved.give)
                self._note_module(saved.value, step.__code__)
            self._note([*(step.__defaults__ or ()), *(step.__kwdefaults__ or {}).values()], self._depth)
            self._note_attributes(step.__dict__, self._depth)
            self._note_globals(step.__globals__, step.__code__, "STORE_GLOBAL")
            if (wrapped := getattr(step, "__wrapped__", None)) is not None:
                self._note_function(wrapped)
        else:
            self._note(step, self._depth)

    def _note_globals(self, names: dict[str, Any], code: types.CodeType, store: str) -> None:
        """Saves the global variables of a module that the code refers to: `names`, which it writes by that instruction.
        Follows calls into functions, and attributes of modules, of the program."""
        stored: set[str] = set()
        if dis.opmap[store] in code.co_code[::2]:
            stored = {one.argval for one in dis.get_instructions(code) if one.opname == store}
        for name in code.co_names:  # attributes among them
            if name in stored:
                saved = self._save(SavedName(names, name))
            if name not in names:
                self._note_module(sys.modules.get(name), code)  # which the function may import
                continue
            value = names[name]
            self._note_held(value, self._depth, saved.give if name in stored else functools.partial(names.__setitem__, name))
            if not is_of(value, types.ModuleType) or value.__dict__ is not names:
                self._note_module(value, code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):  # of a function inside of it
                self._note_globals(names, constant, store)

    def _note_module(self, module: Any, code: types.CodeType) -> None:
        """Saves what the code uses of a module of the program."""
        if not isinstance(module, types.ModuleType) or not is_programs(module.__name__.partition(".")[0]):
            return
        if (key := (id(module), id(code))) not in self._used_modules:  # modules may refer to each other
            self._used_modules.add(key)
            self._note_globals(module.__dict__, code, "STORE_ATTR")

    def _note_attributes(self, attributes: dict[str, Any], depth: int) -> None:
        saved = self._save(SavedNames(attributes))
        for name, value in attributes.items():
            self._note_held(value, depth, functools.partial(saved.give, name))

    def _note_held(self, value: Any, depth: int, give: Callable[[Any], None]) -> None:
        """give: makes who refers to the value refer to another."""
        if copied_iterator(value) is None:
            return self._note(value, depth)
        if id(value) not in self._iterators:
            self._iterators[id(value)] = self._save(SavedIterator(value))
        self._iterators[id(value)].held_by(give)

    def _note(self, value: Any, depth: int) -> None:
        """Queues a value for _look_at, which avoids deep recursion for nested containers. depth: levels of attributes to follow
        in objects that are neither containers nor modules."""
        self._to_look_at.append((value, depth))

    def _look_at(self, value: Any, depth: int) -> None:
        is_plain = type(value) in PLAIN
        if is_plain or is_of(value, PLAIN) and self._is_of_the_program(value):
            self._note_contents(value, depth)
            if not is_plain:
                self._note_object(value, depth)
        elif is_of(value, tuple):
            if self._is_seen(value):
                return
            self._tuples.append(value)
            for item in tuple.__getitem__(value, slice(_LONGEST)):
                self._note(item, depth)
            if self._is_of_the_program(value) and attributes_of(value) is not None:
                self._note_object(value, depth)
        elif is_of(value, functools.partial) or (
            is_of(value, (types.FunctionType, types.MethodType)) and is_programs(package_of(value))
        ):
            self._note_function(value)
        elif is_of(value, types.BuiltinMethodType):
            if isinstance(value.__self__, PLAIN):
                self._note(value.__self__, depth)
        elif is_of(value, functools._lru_cache_wrapper):
            self._note_cache(value)
        elif is_of(value, type):
            self._note_class(value)
        elif is_generator(value):
            self._save(SavedGenerator(value))
            self._note_seeds(value)
        elif seeds_of(value) is not None:
            self._note_seeds(value)
        elif is_array(value):
            self._note_array(value, depth)
        elif is_of(value, BUFFERS):
            self._note_buffer(value, depth)
        elif is_of(value, _OF_CTYPES):
            self._note_memory(value)
        elif is_shared(value):
            self._note_memory(value.get_obj())
        elif is_built_in(value) or position_of(value) is not None:
            self._note_iterator(value, depth)
        elif is_of(value, _HOLDERS) or depth > 0 and self._is_of_the_program(value):
            self._note_object(value, max(depth - 1, 0))

    def _note_contents(self, value: Any, depth: int) -> None:
        length = length_of(value)
        if length > min(_LONGEST, self._items_left) or self._is_seen(value):
            return
        self._items_left -= length
        for item in self._save(SavedContents(value)).values():
            self._note(item, depth)

    def _note_cache(self, function: Any) -> None:
        if not is_programs(package_of(function)) or self._is_seen(function):
            return
        cache = self._save(SavedCache(function))
        self._watched.append(cache)
        for result in cache.results():
            self._note(result, self._depth)
        self._note_function(function.__wrapped__)

    def _note_array(self, value: Any, depth: int) -> None:
        size = memoryview(value).nbytes if isinstance(value, array.array) else value.nbytes
        if size > self._bytes_left or self._is_seen(value):
            return
        self._bytes_left -= size
        saved = self._save(SavedArray(value))
        if not isinstance(value, array.array) and value.dtype == object and value.size <= min(_LONGEST, self._items_left):
            self._items_left -= value.size
            for item in saved.objects():
                self._note(item, depth)
        if attributes := attributes_of(value):  # of a subclass, such as the mask of a masked array
            self._note_attributes(attributes, depth)

    def _note_seeds(self, value: Any) -> None:
        if (seeds := seeds_of(value)) is not None:
            self._watched.append(WatchedSeeds(seeds))

    def _note_buffer(self, value: Any, depth: int) -> None:
        if self._is_of_the_program(value):
            self._note_object(value, depth)
        if self._is_seen(value):
            return
        saved = SavedBuffer(value)
        if saved.size() <= self._bytes_left:
            self._bytes_left -= saved.size()
            self._save(saved)

    def _note_memory(self, value: Any) -> None:
        size = ctypes.sizeof(value)
        if has_references(type(value)) or size > self._bytes_left or self._is_seen(value):
            return
        self._bytes_left -= size
        self._save(SavedMemory(value))

    def _note_iterator(self, value: Any, depth: int) -> None:
        if position_of(value) is not None:
            self._watched.append(WatchedIterator(value))
        try:
            parts = list(parts_of(value)) if is_built_in(value) else []
        except TypeError:
            return
        for part in parts:  # a zip of the program's own iterators, say
            if not hasattr(part, "__len__"):
                self._note(part, depth)

    def _note_object(self, value: Any, depth: int) -> None:
        """Saves attributes and slots, and what the class has."""
        if id(value) in self._objects:
            return
        self._objects.add(id(value))
        self._note_class(type(value))
        if (attributes := attributes_of(value)) is not None:
            self._note_attributes(attributes, depth)
        for slot in slots_of(type(value)):
            self._note(self._save(SavedSlot(value, slot)).value, depth)

    def put_back(self) -> None:
        """Restores the snapshot. May be called several times. Where something cannot be restored, restores the rest
        and then raises the first error."""
        failed = None
        for saved in self._saved:
            try:
                saved.put_back()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Restores the snapshot for the last time."""
        try:
            self.put_back()
        finally:
            for handle in self._handles:
                handle.remove()

    def refuse_advanced(self) -> None:
        """Raises UsageError if a generator or a DataLoader's iterator that cannot be put back was advanced, or a source of seeds or a cache changed. Call
        put_back() first: iterators that it restores may be parts of others."""
        for watched in self._watched:
            if (advanced := watched.advanced()) is not None:
                raise UsageError(
                    f"fit: the recorded step {advanced}, or leave out the sample: fit(step, budget=...) records the first real step"
                )


@contextmanager
def python_state_kept(step: Any, sample: Any, live: LiveObjects) -> Iterator[PythonState]:
    """Restores the state at the end. Yields the snapshot, for restoring it between runs as well."""
    state = PythonState(step, sample, live)
    try:
        yield state
    finally:
        state.close()
