"""Saves and restores Python state that a step function may change: attributes of modules, optimizers and schedulers, of the
objects that the step refers to, its sample, and the random generators of Python and NumPy. Recording runs the step twice and must
leave no trace."""

from __future__ import annotations

import collections
import copy
import dis
import functools
import itertools
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ._objects import objects_of
from .errors import UsageError

# Classes whose attributes are restored. A step may write to an optimizer's state before the update begins, as SAM does.
_OWNERS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)

# Containers whose contents are restored. For objects of other types only the attribute that refers to them is.
_SEQUENCES = (list, collections.deque)
_MAPPINGS = (dict, collections.defaultdict, collections.OrderedDict)
_PLAIN = (*_SEQUENCES, *_MAPPINGS, set)


def _same(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects, which need not be comparable."""
    if len(a) != len(b):
        return False
    if isinstance(a, set):
        return {id(item) for item in a} == {id(item) for item in b}
    if isinstance(a, dict):
        return all(x is y and a[x] is b[y] for x, y in zip(a, b))
    return all(x is y for x, y in zip(a, b))


def _restore(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    """Writes the names that differ, as other threads may read the others."""
    for name in [name for name in attributes if name not in before]:
        del attributes[name]
    for name, value in before.items():
        if name not in attributes or attributes[name] is not value:
            attributes[name] = value


def _fill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, _SEQUENCES):
        container.extend(contents)
    else:
        container.update(contents)


class _Generator:
    """A random generator of Python or NumPy, with its state."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        if isinstance(thing, random.Random):
            self._state = thing.getstate()
        elif hasattr(thing, "get_state"):  # numpy.random.RandomState, or the module itself
            self._state = thing.get_state()
        else:  # numpy.random.Generator
            self._state = thing.bit_generator.state

    def put_back(self) -> None:
        if isinstance(self._thing, random.Random):
            self._thing.setstate(self._state)
        elif hasattr(self._thing, "set_state"):
            self._thing.set_state(self._state)
        else:
            self._thing.bit_generator.state = self._state


def _is_generator(thing: Any) -> bool:
    if isinstance(thing, random.Random):
        return type(thing).getstate is random.Random.getstate
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, (numpy.random.Generator, numpy.random.RandomState))


_COPIED = (*(type(iter(empty)) for empty in ([], (), "", range(0), range(1 << 70))), itertools.count, itertools.repeat)


def _copied_iterator(thing: Any) -> Any:
    """Returns a copy of an iterator such as itertools.count, or None for other objects and for generators."""
    # A copy of zip or enumerate shares its inner iterator with the original, so that it cannot be used.
    if type(thing) not in _COPIED:
        return None
    try:
        return copy.copy(thing)
    except TypeError:  # a generator
        return None


def _position(thing: Any) -> Any:
    """Returns a value that differs once the iterator has been advanced, or None if there is none."""
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        # The objects themselves: an id may be another object's by the next time.
        return None if frame is None else (frame.f_lasti, thing.gi_yieldfrom, list(frame.f_locals.items()))
    if type(thing) is enumerate:
        return thing.__reduce__()[1][1]  # type: ignore[index]
    return getattr(thing, "_num_yielded", None) if hasattr(type(thing), "__next__") else None  # that of a DataLoader


def _same_position(a: Any, b: Any) -> bool:
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return a == b
    same_locals = len(a[2]) == len(b[2]) and all(x[0] == y[0] and x[1] is y[1] for x, y in zip(a[2], b[2]))
    return a[0] == b[0] and a[1] is b[1] and same_locals


def _package_of(thing: Any) -> str:
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _refuse_lazy(module: torch.nn.Module, _: Any) -> None:
    raise UsageError(
        f"fit: the parameters of a {type(module).__name__} would get their shapes in the recorded step, which must leave no trace; run "
        f"the model on a batch before fit, as before an optimizer is made"
    )


# Objects within objects that the step refers to are looked at to this depth, and no longer containers than this.
_DEPTH = 2
_LONGEST = 10_000


class PythonState:
    """A snapshot of the state, taken when the object is made.

    Args:
        step: The step function. The object of a method, what a closure and functools.partial hold, and global variables that the
            function assigns to are part of the state.
        sample: Its arguments.
    """

    def __init__(self, step: Any = None, sample: Any = None) -> None:
        self._cells: list[tuple[types.CellType, Any]] = []
        self._iterators_in_cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._positions: list[tuple[Any, Any]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._iterators: list[tuple[dict[str, Any], str, Any]] = []
        self._generators = [_Generator(random._inst)]  # type: ignore[attr-defined]
        if (numpy := sys.modules.get("numpy")) is not None:
            self._generators.append(_Generator(numpy.random))
        self._seen: set[int] = set()
        owners = objects_of(_OWNERS)
        lazy = [owner for owner in owners if isinstance(owner, LazyModuleMixin) and owner.has_uninitialized_params()]
        self._handles = [module.register_forward_pre_hook(_refuse_lazy, prepend=True) for module in lazy]
        for owner in owners:
            self._note_attributes(owner.__dict__, 0)
        function = step
        while isinstance(function, functools.partial):
            function = function.func
        self._packages = {"__main__", _package_of(function), _package_of(type(getattr(function, "__self__", function)))} - {"builtins"}
        self._note_function(step)
        self._note(sample, _DEPTH)

    def _is_of_the_program(self, thing: Any) -> bool:
        """Whether this is an instance of a class in the step's own package: loggers and other libraries' objects are not."""
        is_instance = not isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.Tensor, *_OWNERS))
        return is_instance and _package_of(type(thing)) in self._packages and hasattr(thing, "__dict__")

    def _note_function(self, step: Any) -> None:
        if isinstance(step, functools.partial):
            self._note_function(step.func)
            self._note([*step.args, *step.keywords.values()], _DEPTH)
        elif isinstance(step, types.MethodType):
            self._note(step.__self__, _DEPTH)
            self._note_function(step.__func__)
        elif isinstance(step, types.FunctionType):
            for cell in step.__closure__ or ():
                self._note_cell(cell)
            for name in {one.argval for one in dis.get_instructions(step) if one.opname == "STORE_GLOBAL"} & set(step.__globals__):
                self._globals.append((step.__globals__, name, step.__globals__[name]))
            if (wrapped := getattr(step, "__wrapped__", None)) is not None:
                self._note_function(wrapped)
        else:
            self._note(step, _DEPTH)

    def _note_cell(self, cell: types.CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        if (iterator := _copied_iterator(value)) is not None:
            self._iterators_in_cells.append((cell, iterator))
            return
        self._cells.append((cell, value))
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)) and id(value) not in self._seen:
            self._seen.add(id(value))
            self._note_function(value)
        else:
            self._note(value, _DEPTH)

    def _note_attributes(self, attributes: dict[str, Any], depth: int) -> None:
        self._attributes.append((attributes, dict(attributes)))
        for name, value in attributes.items():
            if (iterator := _copied_iterator(value)) is not None:
                self._iterators.append((attributes, name, iterator))
            else:
                self._note(value, depth)

    def _note(self, value: Any, depth: int) -> None:
        """depth: how far to look into objects that are neither containers nor modules."""
        if type(value) in _PLAIN:
            if id(value) in self._seen or len(value) > _LONGEST:
                return
            self._seen.add(id(value))
            self._contents.append((value, copy.copy(value)))
            for item in value.values() if isinstance(value, dict) else value:
                self._note(item, depth)
        elif type(value) is tuple:
            for item in value[:_LONGEST]:
                self._note(item, depth)
        elif _is_generator(value):
            self._generators.append(_Generator(value))
        elif (position := _position(value)) is not None:
            self._positions.append((value, position))
        elif depth > 0 and id(value) not in self._seen and self._is_of_the_program(value):
            self._seen.add(id(value))
            self._note_attributes(value.__dict__, depth - 1)

    def put_back(self) -> None:
        """Restores the snapshot. May be called several times."""
        for attributes, before in self._attributes:
            _restore(attributes, before)
        for container, contents in self._contents:
            if not _same(container, contents):
                _fill(container, contents)
        for attributes, name, iterator in self._iterators:
            attributes[name] = copy.copy(iterator)
        for cell, value in self._cells:
            cell.cell_contents = value
        for cell, iterator in self._iterators_in_cells:
            cell.cell_contents = copy.copy(iterator)
        for names, name, value in self._globals:
            names[name] = value
        for generator in self._generators:
            generator.put_back()

    def close(self) -> None:
        """Restores the snapshot for the last time."""
        self.put_back()
        for handle in self._handles:
            handle.remove()

    def refuse_advanced(self) -> None:
        """Raises UsageError if a generator or a DataLoader's iterator that cannot be put back was advanced."""
        for iterator, position in self._positions:
            if not _same_position(_position(iterator), position):
                raise UsageError(
                    f"fit: the recorded step took items from a {type(iterator).__name__}, which cannot be put back; give the step its "
                    "batch as an argument, or leave out the sample: fit(step, budget=...) records the first real step"
                )


@contextmanager
def python_state_kept(step: Any = None, sample: Any = None) -> Iterator[PythonState]:
    """Restores the state at the end. Yields the snapshot, for restoring it between runs as well."""
    state = PythonState(step, sample)
    try:
        yield state
    finally:
        state.close()
