"""Saves and restores Python state that a step function may change: attributes of modules, optimizers and schedulers, of the
objects that the step, and the functions and classes that it uses, refer to, its sample, and the random generators of Python and
NumPy. Recording runs the step twice and must leave no trace."""

from __future__ import annotations

import argparse
import collections
import copy
import dis
import functools
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ._iterators import copied_iterator, position_of, same_position
from ._leaves import SavedLeaf, is_plain_leaf
from ._objects import objects_of
from ._packages import is_programs, package_of
from ._random_generators import SavedGenerator, is_generator
from .errors import UsageError

# Classes whose attributes are restored. A step may write to an optimizer's state before the update begins, as SAM does.
_OWNERS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)

# Containers whose contents are restored. For objects of other types only the attribute that refers to them is.
_SEQUENCES = (list, collections.deque)
_MAPPINGS = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)
_PLAIN = (*_SEQUENCES, *_MAPPINGS, set)

_ABSENT = object()  # in place of a value: the name had none


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


def _plain_kind_of(container: Any) -> Any:
    """The class of _PLAIN that the container's class is or derives from, whose methods do nothing else."""
    return next((kind for kind in type(container).__mro__ if kind in _PLAIN), None)


def _copy_of(container: Any) -> Any:
    kind = _plain_kind_of(container)
    return dict(container) if issubclass(kind, dict) else kind(container)


def _fill(container: Any, contents: Any) -> None:
    kind = _plain_kind_of(container)
    kind.clear(container)
    (kind.extend if kind in _SEQUENCES else kind.update)(container, contents)


def _refuse_lazy(module: torch.nn.Module, _: Any) -> None:
    raise UsageError(
        f"fit: the parameters of a {type(module).__name__} would get their shapes in the recorded step, which must leave no trace; run "
        f"the model on a batch before fit, as before an optimizer is made"
    )


def _is_assigned(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _slots_of(kind: type) -> list[str]:
    slots = [getattr(one, "__slots__", ()) for one in kind.__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    return [name for name in names if not name.startswith("__")]


# Objects within objects that the step refers to are looked at to this depth, and no longer containers than this.
_DEPTH = 8
_DEPTH_IN_LIBRARIES = 2
_LONGEST = 10_000
_MOST_ITEMS = 1_000_000  # of all containers: data sets may be lists of lists


class PythonState:
    """A snapshot of the state, taken when the object is made.

    Args:
        step: The step function. Part of the state are the object of a method, what a closure and functools.partial hold, and
            the global variables, objects and classes that it uses, directly or through functions of the program, which is
            all that is not installed.
        sample: Its arguments.
    """

    def __init__(self, step: Any = None, sample: Any = None) -> None:
        self._cells: list[tuple[types.CellType, Any]] = []
        self._iterators_in_cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._tensors: list[tuple[torch.Tensor, dict[str, Any]]] = []
        self._leaves: list[SavedLeaf] = []
        self._of_objects: list[tuple[Any, str, Any]] = []  # attributes of classes, and in slots
        self._names_of_classes: list[tuple[type, set[str]]] = []
        self._positions: list[tuple[Any, Any]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._iterators: list[tuple[dict[str, Any], str, Any]] = []
        self._generators = [SavedGenerator(random._inst)]  # type: ignore[attr-defined]
        if (numpy := sys.modules.get("numpy")) is not None:
            self._generators.append(SavedGenerator(numpy.random))
        self._seen: set[int] = set()
        self._items_left = _MOST_ITEMS
        owners = objects_of(_OWNERS)
        lazy = [owner for owner in owners if isinstance(owner, LazyModuleMixin) and owner.has_uninitialized_params()]
        self._handles = [module.register_forward_pre_hook(_refuse_lazy, prepend=True) for module in lazy]
        function = step
        while isinstance(function, functools.partial):
            function = function.func
        # The step's packages, where they are a library's: their instances are looked into, but not their functions.
        self._of_step = {package_of(function), package_of(type(getattr(function, "__self__", function)))} - {"builtins"}
        self._depth = _DEPTH if all(map(is_programs, self._of_step)) else _DEPTH_IN_LIBRARIES
        for owner in owners:
            self._note_attributes(owner.__dict__, self._depth)
            self._note_class(type(owner))
            if isinstance(owner, torch.nn.Module):
                for tensor in (*owner._parameters.values(), *owner._buffers.values()):
                    self._note_tensor(tensor)
        for tensor in objects_of(torch.Tensor):
            self._note_leaf(tensor)
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.__dict__:
                self._note_tensor(tensor)
        self._note_function(step)
        self._note(sample, self._depth)

    def _is_of_the_program(self, thing: Any) -> bool:
        """Whether this is an instance of a class of the program: loggers and other libraries' objects are not."""
        if isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.Tensor, *_OWNERS)):
            return False
        package = package_of(type(thing))
        return package in self._of_step or is_programs(package) or type(thing) in (argparse.Namespace, types.SimpleNamespace)

    def _note_tensor(self, tensor: torch.Tensor | None) -> None:
        """Saves the Python attributes of a parameter or buffer. Those that begin with an underscore are a library's and stay."""
        if tensor is None or id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        self._tensors.append((tensor, dict(tensor.__dict__)))
        for value in tensor.__dict__.values():
            self._note(value, 0)

    def _note_leaf(self, tensor: torch.Tensor) -> None:
        if not is_plain_leaf(tensor):
            return
        leaf = SavedLeaf(tensor)
        self._leaves.append(leaf)
        for hook in (leaf.hooks or {}).values():
            self._note(hook, self._depth)

    def _note_class(self, kind: type) -> None:
        """Saves class attributes, and the state that methods use, for a class of the program and its base classes."""
        for one in kind.__mro__:
            if id(one) in self._seen or not is_programs(package_of(one)):
                continue
            self._seen.add(id(one))
            for name, value in list(vars(one).items()):
                function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                if isinstance(value, property):
                    for accessor in (value.fget, value.fset):
                        self._note_function(accessor)
                elif isinstance(function, types.FunctionType):
                    self._note_function(function)
                elif not name.startswith("__") and not hasattr(type(value), "__get__"):
                    self._of_objects.append((one, name, value))
                    self._note(value, 0)
            self._names_of_classes.append((one, set(vars(one))))

    def _note_function(self, step: Any) -> None:
        if isinstance(step, functools.partial):
            self._note_function(step.func)
            self._note([*step.args, *step.keywords.values()], self._depth)
        elif isinstance(step, types.MethodType):
            self._note(step.__self__, self._depth)
            self._note_function(step.__func__)
        elif isinstance(step, types.FunctionType):
            if id(step) in self._seen:
                return
            self._seen.add(id(step))
            for cell in step.__closure__ or ():
                self._note_cell(cell)
            self._note([*(step.__defaults__ or ()), *(step.__kwdefaults__ or {}).values()], self._depth)
            self._note_attributes(step.__dict__, self._depth)
            self._note_globals(step.__globals__, step.__code__)
            if (wrapped := getattr(step, "__wrapped__", None)) is not None:
                self._note_function(wrapped)
        else:
            self._note(step, self._depth)

    def _note_globals(self, names: dict[str, Any], code: types.CodeType) -> None:
        """Saves the global variables that the code refers to. Follows calls into functions of the program."""
        stored: set[str] = set()
        if dis.opmap["STORE_GLOBAL"] in code.co_code[::2]:
            stored = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}
        for name in code.co_names:  # attributes among them
            if name not in names:
                if name in stored:
                    self._globals.append((names, name, _ABSENT))
                continue
            value = names[name]
            if name in stored:
                self._globals.append((names, name, value))
            if (iterator := copied_iterator(value)) is not None:
                self._iterators.append((names, name, iterator))
            else:
                self._note(value, self._depth)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):  # of a function inside of it
                self._note_globals(names, constant)

    def _note_cell(self, cell: types.CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            self._cells.append((cell, _ABSENT))
            return
        if (iterator := copied_iterator(value)) is not None:
            self._iterators_in_cells.append((cell, iterator))
            return
        self._cells.append((cell, value))
        self._note(value, self._depth)

    def _note_attributes(self, attributes: dict[str, Any], depth: int) -> None:
        self._attributes.append((attributes, dict(attributes)))
        for name, value in attributes.items():
            if (iterator := copied_iterator(value)) is not None:
                self._iterators.append((attributes, name, iterator))
            else:
                self._note(value, depth)

    def _note(self, value: Any, depth: int) -> None:
        """depth: how far to look into objects that are neither containers nor modules."""
        if type(value) in _PLAIN or isinstance(value, _PLAIN) and self._is_of_the_program(value):
            if id(value) in self._seen or len(value) > min(_LONGEST, self._items_left):
                return
            self._seen.add(id(value))
            self._items_left -= len(value)
            self._contents.append((value, _copy_of(value)))
            for item in value.values() if isinstance(value, dict) else value:
                self._note(item, depth)
            if type(value) not in _PLAIN and hasattr(value, "__dict__"):
                self._note_attributes(value.__dict__, depth)
        elif isinstance(value, (collections.UserDict, collections.UserList)):
            self._note(value.data, depth)
        elif isinstance(value, tuple):
            for item in value[:_LONGEST]:
                self._note(item, depth)
        elif isinstance(value, functools.partial) or (
            isinstance(value, (types.FunctionType, types.MethodType)) and is_programs(package_of(value))
        ):
            self._note_function(value)
        elif isinstance(value, type):
            self._note_class(value)
        elif is_generator(value):
            self._generators.append(SavedGenerator(value))
        elif (position := position_of(value)) is not None:
            self._positions.append((value, position))
        elif depth > 0 and id(value) not in self._seen and self._is_of_the_program(value):
            self._seen.add(id(value))
            self._note_class(type(value))
            if hasattr(value, "__dict__"):
                self._note_attributes(value.__dict__, depth - 1)
            for name in _slots_of(type(value)):
                content = getattr(value, name, _ABSENT)
                self._of_objects.append((value, name, content))
                self._note(content, depth - 1)

    def put_back(self) -> None:
        """Restores the snapshot. May be called several times."""
        for attributes, before in self._attributes:
            _restore(attributes, before)
        for tensor, before in self._tensors:
            of_libraries = {name: value for name, value in tensor.__dict__.items() if name.startswith("_")}
            _restore(tensor.__dict__, {**before, **of_libraries})
        for container, contents in self._contents:
            if not _same(container, contents):
                _fill(container, contents)
        for attributes, name, iterator in self._iterators:
            attributes[name] = copy.copy(iterator)
        for kind, names in self._names_of_classes:
            for name in [name for name in vars(kind) if name not in names and not name.startswith("_")]:
                delattr(kind, name)
        for leaf in self._leaves:
            leaf.put_back()
        for thing, name, value in self._of_objects:
            now = vars(thing).get(name) if isinstance(thing, type) else getattr(thing, name, _ABSENT)
            if now is value:
                continue
            if value is _ABSENT:
                delattr(thing, name)
            else:
                setattr(thing, name, value)
        for cell, value in self._cells:
            if value is not _ABSENT:
                cell.cell_contents = value
            elif _is_assigned(cell):
                del cell.cell_contents
        for cell, iterator in self._iterators_in_cells:
            cell.cell_contents = copy.copy(iterator)
        for names, name, value in self._globals:
            if value is _ABSENT:
                names.pop(name, None)
            else:
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
            if not same_position(position_of(iterator), position):
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
