"""Saves and restores Python state that a step function may change: attributes of modules, optimizers and schedulers, and the
random generators of Python and NumPy. Recording runs the step twice and must leave no trace."""

from __future__ import annotations

import collections
import copy
import random
import sys
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


def _copied_iterator(thing: Any) -> Any:
    """Returns a copy of an iterator such as itertools.count, or None for other objects and for generators."""
    if not hasattr(type(thing), "__next__") or type(thing).__module__ not in ("builtins", "itertools"):
        return None
    try:
        return copy.copy(thing)
    except TypeError:  # a generator
        return None


def _refuse_lazy(module: torch.nn.Module, _: Any) -> None:
    raise UsageError(
        f"fit: the parameters of a {type(module).__name__} would get their shapes in the recorded step, which must leave no trace; run "
        f"the model on a batch before fit, as before an optimizer is made"
    )


class PythonState:
    """A snapshot of the state, taken when the object is made."""

    def __init__(self) -> None:
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
            self._note_attributes(owner.__dict__)

    def _note_attributes(self, attributes: dict[str, Any]) -> None:
        self._attributes.append((attributes, dict(attributes)))
        for name, value in attributes.items():
            if (iterator := _copied_iterator(value)) is not None:
                self._iterators.append((attributes, name, iterator))
            else:
                self._note(value)

    def _note(self, value: Any) -> None:
        if type(value) in _PLAIN:
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            self._contents.append((value, copy.copy(value)))
            for item in value.values() if isinstance(value, dict) else value:
                self._note(item)
        elif _is_generator(value):
            self._generators.append(_Generator(value))

    def put_back(self) -> None:
        """Restores the snapshot. May be called several times."""
        for attributes, before in self._attributes:
            if not _same(attributes, before):
                _fill(attributes, before)
        for container, contents in self._contents:
            if not _same(container, contents):
                _fill(container, contents)
        for attributes, name, iterator in self._iterators:
            attributes[name] = copy.copy(iterator)
        for generator in self._generators:
            generator.put_back()

    def close(self) -> None:
        """Restores the snapshot for the last time."""
        self.put_back()
        for handle in self._handles:
            handle.remove()


@contextmanager
def python_state_kept() -> Iterator[PythonState]:
    """Restores the state at the end. Yields the snapshot, for restoring it between runs as well."""
    state = PythonState()
    try:
        yield state
    finally:
        state.close()
