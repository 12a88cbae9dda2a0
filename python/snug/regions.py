"""Regions and names of modules, for programs that choose by hand what autograd keeps."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._core import VerifyReplay
from ._decorating import CallContext, Function
from .actions import Action, in_core
from .allowed import check_module
from .errors import UsageError

_PLACES = (1 << 64) - 1  # of 64 bits

_FATES = ("dropped", "kept", "leaf", "layout")


class Region(CallContext):
    """Sets what happens to the tensors that autograd saves inside. A context manager and a decorator.

    Recompute: they are dropped and replayed in backward, bitwise as they were: same random numbers, no second update of
    running statistics, no hook fired twice. Keep: as without a region. Offload: they leave the device's memory.
    Selective, or a function from OperatorContext to Choice: decides for each operator's results. Regions nest, and the
    innermost one decides. Inside a session's step the plan decides, and honours what a policy says must be.

    A `with` opens this region; it may be opened again once it has ended. A decorated function opens a new region in
    each call, so calls may nest and run in several threads. The counts of this object are those of its `with` alone.

    Args:
        action: Recompute(), Keep(), Offload(), Selective(), or a function from OperatorContext to Choice. The function
            may also return a torch.utils.checkpoint.CheckpointPolicy, or a bool: True is MUST_SAVE and False is
            PREFER_RECOMPUTE. It runs once per operator, in forward, and must not call PyTorch.
        verify_replay: Compares recomputed tensors with dropped ones. VerifyReplay.Once: the first time that a region at
            this place in the program runs, and then one tensor now and then. True is VerifyReplay.Hashes: each time.
            False: never.
        detect_anomalies: Raises Error at the first result with an Inf or a NaN, with the operator and its module. Slow.

    Raises:
        UsageError: The action is none of these, or the region is open already.

    Example:
        >>> with snug.Region(snug.Recompute()) as region:
        ...     y = block(x)
        >>> y.sum().backward()
        >>> region.replayed_ops
        12
        >>> @snug.Region(snug.Selective([torch.ops.aten.mm.default]))
        ... def attention(x): ...
    """

    def __init__(
        self, action: Action, *, verify_replay: VerifyReplay | bool = VerifyReplay.Once, detect_anomalies: bool = False
    ) -> None:
        if isinstance(verify_replay, bool):
            verify_replay = VerifyReplay.Hashes if verify_replay else VerifyReplay.Off
        self._action = action
        self._action_in_core = in_core(action)
        _core.Region.check(self._action_in_core)
        self._options = (verify_replay, detect_anomalies)
        self._place = 0
        # Made when it is entered: the garbage collector cannot look into it for what an action refers to.
        self._core: _core.Region | None = None
        self._open = False

    def _recreate_cm(self) -> Region:
        verify_replay, detect_anomalies = self._options
        region = Region(self._action, verify_replay=verify_replay, detect_anomalies=detect_anomalies)
        region._place = self._place
        return region

    def at_place_of(self, function: Callable[..., Any]) -> Region:
        """Makes the code of a function the place that VerifyReplay.Once goes by. Returns the region."""
        while isinstance(function, (functools.partial, staticmethod, classmethod)):
            function = function.func if isinstance(function, functools.partial) else function.__func__
        if not hasattr(function, "__code__"):  # a module, or another object that can be called
            function = getattr(type(function), "forward", type(function))
        self._place = hash(getattr(function, "__code__", function)) & _PLACES or 1
        return self

    def __call__(self, function: Function) -> Function:
        """Returns a function whose calls run inside of a new region each.

        Raises:
            UsageError: `function` is a class, a generator or a coroutine function, or cannot be called.
        """
        region = self._recreate_cm().at_place_of(function)
        return super(Region, region).__call__(function)

    def __enter__(self) -> Region:
        if self._open:
            raise UsageError("region: it is open already; make another one")
        place = self._place
        if place == 0:
            caller = sys._getframe(1)
            place = hash((caller.f_code, caller.f_lineno)) & _PLACES or 1
        self._core = _core.Region(self._action_in_core, *self._options, place)
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._core is not None:
            self._open = False
            self._core.exit()

    @property
    def replayed_ops(self) -> int:
        """Operators replayed so far. Continues to count after the region has ended."""
        return self._core.replayed_ops if self._core is not None else 0

    @property
    def saved_tensors(self) -> dict[str, int]:
        """Numbers of the tensors that autograd saved, when the region ended: "dropped", "kept" (as the action says),
        "leaf" (weights, inputs, and tensors that code outside of ATen filled), "layout" (no plain strided tensor)."""
        return self._core.saved_tensors if self._core is not None else dict.fromkeys(_FATES, 0)

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that have been moved out of the device's memory."""
        return self._core.offloaded_bytes if self._core is not None else 0

    @property
    def opaque_values(self) -> list[str]:
        """Tensors that are kept because code outside of ATen filled them: a line for each, with the cure."""
        return self._core.opaque_values if self._core is not None else []


class ModuleScope(CallContext):
    """Names the operators inside, for policies and messages. A context manager and a decorator.

    Scopes nest: "blocks.3" inside "model" is "model.blocks.3".

    Args:
        name: The path of a module, relative to the scope around.

    Example:
        >>> with snug.ModuleScope("blocks.3"):
        ...     y = block(x)
        >>> @snug.ModuleScope("loss")
        ... def loss_of(logits, targets): ...
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._core = _core.ModuleScope(name)

    def _recreate_cm(self) -> ModuleScope:
        return ModuleScope(self._name)

    def __enter__(self) -> ModuleScope:
        self._core.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._core.exit()


class _Names:
    """Undoes name_modules."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Removes the hooks. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


_naming: weakref.WeakSet[Callable[..., None]] = weakref.WeakSet()


def is_naming(hook: Callable[..., Any]) -> bool:
    """Returns whether a hook is one of name_modules, which changes no tensor."""
    return hook in _naming


def name_modules(model: torch.nn.Module) -> _Names:
    """Names the operators of every submodule by its path ("layers.3.attention"), by hooks around its calls.

    Policies, Selective.keep_modules and messages use the names, as those of ModuleScope.

    Args:
        model: The module whose submodules are named.

    Returns:
        An object whose remove() removes the hooks.

    Raises:
        UsageError: The model is no torch.nn.Module.

    Example:
        >>> names = snug.name_modules(model)
        >>> with snug.Region(snug.Selective(keep_modules=["attention"])):
        ...     loss = model(batch)
        >>> names.remove()
    """
    check_module("name_modules", model)
    stacks = threading.local()
    handles: list[Any] = []

    def hooks_of(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: Any) -> None:
            open_scopes = stacks.__dict__.setdefault("open", [])
            outer = next((n for n, _ in reversed(open_scopes) if name.startswith(n + ".")), "")
            scope = ModuleScope(name[len(outer) + 1 :] if outer else name)
            scope.__enter__()
            open_scopes.append((name, scope))

        def leave(*_: Any) -> None:
            open_scopes = stacks.__dict__.setdefault("open", [])
            mine = next((i for i in reversed(range(len(open_scopes))) if open_scopes[i][0] == name), None)
            if mine is not None:
                close_down_to(open_scopes, mine)

        _naming.update((enter, leave))
        return enter, leave

    def close_down_to(open_scopes: list[Any], size: int) -> None:
        while len(open_scopes) > size:
            open_scopes.pop()[1].__exit__()

    def begin(*_: Any) -> None:
        close_down_to(stacks.__dict__.setdefault("open", []), 0)  # what an interrupted forward pass left

    handles.append(model.register_forward_pre_hook(begin))
    for name, module in model.named_modules():
        if name:
            enter, leave = hooks_of(name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
    return _Names(handles)
