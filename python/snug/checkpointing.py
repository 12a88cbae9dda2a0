"""Checkpoints and regions, for those who choose by hand what is kept; and patch(), which puts them in the place of
torch.utils.checkpoint."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint as _torch_checkpoint
from torch.utils import _pytree as pytree

from . import _core
from ._core import Choice, DeterminismCheck, Keep, Offload, OperatorContext, Recompute, Selective, VerifyReplay
from .choices import check_module
from .errors import UsageError

_FATES = ("dropped", "kept", "leaf", "layout")

Policy = Callable[[OperatorContext], Choice]
Action = Recompute | Keep | Offload | Selective | Policy


class Region:
    """Sets what happens to the values that operators make inside:

        with snug.Region(snug.Recompute()):
            y = block(x)

    Recompute: what autograd saves is dropped, and replayed in backward, bitwise as it was: same random numbers, no second
    update of running statistics, no hook fired twice. Keep: as without a region. Offload: it leaves the device's memory.
    Selective, or a function from OperatorContext to Choice: each operator's results by what it says. Regions nest; the
    innermost wins. Inside a session's step the plan decides, around what a policy says must be.

    verify_replay compares what is made again with what was dropped; detect_anomalies names the first result that holds a
    NaN or an infinity.
    """

    def __init__(
        self, action: Action, *, verify_replay: VerifyReplay | bool = False, detect_anomalies: bool = False
    ) -> None:
        if isinstance(verify_replay, bool):
            verify_replay = VerifyReplay.Hashes if verify_replay else VerifyReplay.Off
        _core.Region.check(action)
        self._action = action
        self._options = (verify_replay, detect_anomalies)
        # Made when it is entered: the garbage collector cannot look into it for what an action refers to.
        self._core: _core.Region | None = None
        self._open = False

    def __enter__(self) -> Region:
        if self._open:
            raise UsageError("region: it is open already; make another one")
        self._core = _core.Region(self._action, *self._options)
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._core is not None:
            self._open = False
            self._core.exit()

    @property
    def replayed_ops(self) -> int:
        """Operators replayed so far; goes on counting when the region is over."""
        return self._core.replayed_ops if self._core is not None else 0

    @property
    def saved_tensors(self) -> dict[str, int]:
        """What became of the tensors that autograd saved, counted when the region ended: "dropped", "kept" (as the action
        says), "leaf" (weights, inputs, what something outside of ATen filled), "layout" (no plain strided tensor)."""
        return self._core.saved_tensors if self._core is not None else dict.fromkeys(_FATES, 0)

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that have left the device's memory."""
        return self._core.offloaded_bytes if self._core is not None else 0

    @property
    def opaque_values(self) -> list[str]:
        """What is kept because something outside of ATen filled it: a line for each, with the cure."""
        return self._core.opaque_values if self._core is not None else []


class ModuleScope:
    """Names the operators inside, for policies and messages. Scopes nest: "blocks.3" in "model" is "model.blocks.3"."""

    def __init__(self, name: str) -> None:
        self._core = _core.ModuleScope(name)

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
        for handle in self._handles:
            handle.remove()
        self._handles = []


_naming: weakref.WeakSet[Callable[..., None]] = weakref.WeakSet()


def is_naming(hook: Callable[..., Any]) -> bool:
    """Whether a hook is one of name_modules: it changes nothing of what a module computes."""
    return hook in _naming


def name_modules(model: torch.nn.Module) -> _Names:
    """Names the operators of every submodule by its path ("layers.3.attention"), as ModuleScope does, by hooks around
    their calls. For policies, Selective.keep_modules and messages. Returns what removes the hooks."""
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


@dataclass(frozen=True)
class Replay:
    """Backward replays the operators that the function ran; the function is called once. `action` as in Region."""

    action: Action = field(default_factory=Recompute)
    verify_replay: VerifyReplay | bool = False


@dataclass(frozen=True)
class Rerun:
    """Backward calls the function again, as torch.utils.checkpoint does: for functions that compute outside of PyTorch.

    determinism_check: "default" (shapes, dtypes, devices), "none", or "values" (contents too).
    """

    preserve_rng_state: bool = True
    determinism_check: str = "default"
    debug: bool = False
    early_stop: bool = True


_CHECKS = {
    "none": DeterminismCheck.NoCheck,
    "default": DeterminismCheck.Metadata,
    "values": DeterminismCheck.Values,
}


def _rerun(
    function: Callable[..., Any],
    mode: Rerun,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]] | None = None,
) -> Any:
    """`around`: contexts of the first call and of the second."""
    first, again = around if around is not None else (contextlib.nullcontext(), contextlib.nullcontext())
    if mode.determinism_check not in _CHECKS:
        raise UsageError(
            f'checkpoint: determinism_check is "{mode.determinism_check}"; it can be {", ".join(_CHECKS)}'
        )
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    arguments = [leaves[i] for i in tensors]
    others = [None if i in set(tensors) else leaf for i, leaf in enumerate(leaves)]

    def call(now: Sequence[torch.Tensor]) -> None:
        filled = list(others)
        for i, tensor in zip(tensors, now, strict=True):
            filled[i] = tensor
        args_now, kwargs_now = pytree.tree_unflatten(filled, spec)
        with again:
            function(*args_now, **kwargs_now)

    scope = _core.RerunScope(
        call, arguments, mode.preserve_rng_state, _CHECKS[mode.determinism_check], mode.debug, mode.early_stop
    )
    scope.enter()  # keeps the thread's state as it is outside of the first context
    try:
        with first:
            return function(*args, **kwargs)
    finally:
        scope.exit()


def _run(function: Callable[..., Any], mode: Replay | Rerun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(mode, Rerun):
        return _rerun(function, mode, args, kwargs)
    with Region(mode.action, verify_replay=mode.verify_replay):
        return function(*args, **kwargs)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    mode: Replay | Rerun | None = None,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Runs function(*args, **kwargs) and returns its result; what autograd saves inside is dropped and made again in
    backward. The name and the meaning are those of torch.utils.checkpoint (use_reentrant=False), but the function is
    called once: its operators are replayed. `mode` chooses between Replay (the default) and Rerun, with their options.
    use_reentrant is taken for torch's sake and changes nothing.
    """
    mode = mode if mode is not None else Replay()
    if not isinstance(mode, (Replay, Rerun)):
        raise UsageError(f"checkpoint: the mode is {mode!r}; give Replay(), Replay(an action) or Rerun()")
    return _run(function, mode, args, kwargs)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]] | torch.nn.Sequential,
    segments: int,
    input: Any,
    *,
    mode: Replay | Rerun | None = None,
    use_reentrant: bool | None = None,
) -> Any:
    """Runs the functions one after the other, in `segments` of equal length that are checkpointed, except the last,
    which backward needs first anyway. Semantics of torch.utils.checkpoint.checkpoint_sequential; use_reentrant is taken
    for torch's sake and changes nothing."""
    layers = list(functions.children()) if isinstance(functions, torch.nn.Sequential) else list(functions)
    if not 1 <= segments <= len(layers):
        raise UsageError(
            f"checkpoint_sequential: {segments} segments of {len(layers)} layers; there must be at least one layer in each"
        )
    length = len(layers) // segments

    def run(begin: int, end: int, x: Any) -> Any:
        for layer in layers[begin:end]:
            x = layer(x)
        return x

    last = length * (segments - 1)
    for begin in range(0, last, length):
        input = checkpoint(run, begin, begin + length, input, mode=mode)
    return run(last, len(layers), input)


# --- in the place of torch.utils.checkpoint --------------------------------------------------------------------------

_original = _torch_checkpoint.checkpoint
_original_sequential = _torch_checkpoint.checkpoint_sequential

_CHOICES = {
    "MUST_SAVE": Choice.MustKeep,
    "PREFER_SAVE": Choice.PreferKeep,
    "MUST_RECOMPUTE": Choice.MustRecompute,
    "PREFER_RECOMPUTE": Choice.PreferRecompute,
    "MUST_CPU_OFFLOAD": Choice.Offload,
}


def _operator(name: str) -> Any:
    """torch.ops.aten.add.Tensor of "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _policy_of(forward: Any) -> Policy | None:
    """The policy of create_selective_checkpoint_contexts when it was given a list of operators. One of the program's own
    may look at operands, which are not at hand here."""
    policy = getattr(forward, "policy_fn", None)
    if policy is None or getattr(policy, "__module__", "") != _torch_checkpoint.__name__:
        return None
    context = _torch_checkpoint.SelectiveCheckpointContext(is_recompute=False)
    return lambda operator: _CHOICES[policy(context, _operator(operator.name)).name]


def _in_place_of_torch(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], Any] = _torch_checkpoint.noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """torch.utils.checkpoint.checkpoint by snug: replays instead of calling the function again. What only a second call
    can do (other random numbers, contexts around it) is a rerun; selective policies in Python, which may look at operands,
    stay with torch."""
    if use_reentrant and kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if use_reentrant and (context_fn is not _torch_checkpoint.noop_context_fn or debug is not False):
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    # The scopes that override them for a whole program.
    if _torch_checkpoint._checkpoint_debug_enabled is not None:
        debug = _torch_checkpoint._checkpoint_debug_enabled
    if _torch_checkpoint._enable_checkpoint_early_stop is not None:
        early_stop = _torch_checkpoint._enable_checkpoint_early_stop
    mode = Rerun(preserve_rng_state, determinism_check, debug, early_stop)
    if context_fn is not _torch_checkpoint.noop_context_fn:
        forward, again = context_fn()
        policy = _policy_of(forward)
        if policy is not None:
            return _run(function, Replay(policy), args, kwargs)
        if hasattr(forward, "policy_fn"):  # it keeps results for the second call: torch's own mechanism
            return _original(
                function, *args, use_reentrant=False, context_fn=lambda: (forward, again),
                determinism_check=determinism_check, debug=debug, early_stop=early_stop,
                preserve_rng_state=preserve_rng_state, **kwargs,
            )
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        return _rerun(function, mode, args, kwargs, (forward, again))
    if not preserve_rng_state or debug or determinism_check not in ("default", "none"):
        return _rerun(function, mode, args, kwargs)
    return _run(function, Replay(), args, kwargs)


def _sequential_in_place_of_torch(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    return checkpoint_sequential(functions, segments, input, mode=None if preserve else Rerun(preserve_rng_state=False))


_REPLACED = (
    (_original, _in_place_of_torch),
    (_original_sequential, _sequential_in_place_of_torch),
)


def _replace(pairs: Sequence[tuple[Any, Any]]) -> None:
    """In every module that is loaded, wherever it stands under whatever name."""
    for module in list(sys.modules.values()):
        if not isinstance(module, types.ModuleType) or module.__name__.split(".")[0] == "snug":
            continue
        for name, value in list(vars(module).items()):
            for old, new in pairs:
                if value is old:
                    setattr(module, name, new)


_patches = 0  # that hold now


class _Patched:
    """Undoes a patch; as a context manager, at its end. Where patches nest, the last to go undoes them."""

    def __init__(self) -> None:
        global _patches
        _patches += 1
        self._holds = True

    def undo(self) -> None:
        """Also in modules that were imported while it held. A second call does nothing."""
        global _patches
        if not self._holds:
            return
        self._holds = False
        _patches -= 1
        if _patches == 0:
            _replace([(new, old) for old, new in _REPLACED])

    def __enter__(self) -> _Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch() -> _Patched:
    """Puts snug in the place of torch.utils.checkpoint for the whole program: checkpoint and checkpoint_sequential, also
    where a module that is loaded by now has imported them by name (transformers and others do). Returns what undoes it.
    What keeps the function itself is not reached: call it before model.gradient_checkpointing_enable(), which does.
    """
    _replace(_REPLACED)
    return _Patched()
