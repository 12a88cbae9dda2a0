"""How a checkpoint recomputes: snug's modes, and the arguments of torch.utils.checkpoint that ask for one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.utils.checkpoint as _torch_checkpoint
from torch.utils.checkpoint import noop_context_fn

from ._core import DeterminismCheck, VerifyReplay
from .actions import Action, Recompute
from .errors import UsageError, shown

Contexts = tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Replay:
    """Backward replays the operators that the function ran. The function is called once.

    Args:
        action: What happens to saved tensors, as in Region.
        verify_replay: Compares recomputed tensors with dropped ones, as in Region.

    Example:
        >>> y = snug.checkpoint(block, x, mode=snug.Replay(snug.Selective([torch.ops.aten.mm.default])))
    """

    action: Action = field(default_factory=Recompute)
    verify_replay: VerifyReplay | bool = VerifyReplay.Once


@dataclass(frozen=True)
class Rerun:
    """Backward calls the function again, as torch.utils.checkpoint does. For functions that compute outside of PyTorch.

    Args:
        preserve_rng_state: Restores the random number generators before the second call.
        determinism_check: What is compared of the tensors that both calls save: "default" (shapes, dtypes, devices),
            "none" (their number), or "values" (contents too).
        debug: Errors name the operators where the two calls differ.
        early_stop: Leaves the second call at the last tensor that backward needs.

    Example:
        >>> y = snug.checkpoint(triton_block, x, mode=snug.Rerun(early_stop=False))
    """

    preserve_rng_state: bool = True
    determinism_check: str = "default"
    debug: bool = False
    early_stop: bool = True


Mode = Replay | Rerun

# What determinism_check can be.
CHECKS = {
    "none": DeterminismCheck.NoCheck,
    "default": DeterminismCheck.Metadata,
    "values": DeterminismCheck.Values,
}


def _check_determinism(what: str) -> None:
    if what not in CHECKS:
        raise UsageError(f"checkpoint: determinism_check is {shown(what)}; it can be {', '.join(CHECKS)}")


@dataclass(frozen=True)
class TorchArguments:
    """The arguments of torch.utils.checkpoint.checkpoint that say how tensors are recomputed, with torch's defaults."""

    use_reentrant: bool | None = None
    preserve_rng_state: bool = True
    context_fn: Callable[[], Contexts] = noop_context_fn
    determinism_check: str = "default"
    debug: bool = False
    early_stop: bool = True
    respect_saved_tensors_hooks: bool | None = None

    def check(self, kwargs: dict[str, Any]) -> None:
        """Raises UsageError for combinations that torch refuses. `kwargs`: the arguments of the function."""
        if self.use_reentrant and kwargs:
            raise UsageError(
                f"checkpoint: Unexpected keyword arguments: {','.join(kwargs)}; with use_reentrant=True the function "
                "takes none, so give use_reentrant=False"
            )
        if self.use_reentrant and (self.context_fn is not noop_context_fn or self.debug is not False):
            raise UsageError("checkpoint: Passing `context_fn` or `debug` is only supported when use_reentrant=False")
        if self.use_reentrant and self.respect_saved_tensors_hooks is not None:
            raise UsageError(
                "checkpoint: Passing `respect_saved_tensors_hooks` is only supported when use_reentrant=False"
            )
        _check_determinism(self.determinism_check)
        if self.scoped_debug and self.context_fn is not noop_context_fn:
            raise UsageError(
                "checkpoint: debug=True is incompatible with non-default context_fn, as it has contexts of its own; "
                "give one of them"
            )

    @property
    def scoped_debug(self) -> bool:
        """`debug`, or the value of torch.utils.checkpoint.set_checkpoint_debug_enabled where it is set."""
        scope: bool | None = _torch_checkpoint._checkpoint_debug_enabled
        return self.debug if scope is None else scope

    @property
    def scoped_early_stop(self) -> bool:
        """`early_stop`, or the value of torch.utils.checkpoint.set_checkpoint_early_stop where it is set."""
        scope: bool | None = _torch_checkpoint._enable_checkpoint_early_stop
        return self.early_stop if scope is None else scope

    def given(self) -> dict[str, Any]:
        """Arguments that differ from their defaults, but for use_reentrant."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name != "use_reentrant"}
        return {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}

    def needs_second_call(self) -> bool:
        """Returns whether the arguments speak of a second call, which a replay does not make."""
        if self.use_reentrant:  # torch ignores the others there
            return not self.preserve_rng_state
        return not self.preserve_rng_state or self.scoped_debug or not self.scoped_early_stop

    def as_mode(self) -> Mode:
        """Returns Replay, or Rerun if the arguments speak of a second call."""
        if not self.needs_second_call():
            return {"none": Replay(verify_replay=False), "values": Replay(verify_replay=True)}.get(
                self.determinism_check, Replay()
            )
        if self.use_reentrant:  # torch neither compares the calls nor stops the second one there
            return Rerun(self.preserve_rng_state, "none", False, False)
        return Rerun(self.preserve_rng_state, self.determinism_check, self.scoped_debug, self.scoped_early_stop)


# With mode=Replay(...): where to give what these arguments ask for.
_ELSEWHERE = {
    "determinism_check": "write Replay(verify_replay=True), or False for no check",
    "context_fn": "leave mode out",
    "respect_saved_tensors_hooks": "leave mode out",
}


def _check_replay(given: dict[str, Any]) -> None:
    """Raises UsageError for arguments of torch that mode=Replay(...) does not honour. A replay respects no hooks."""
    unmet = {name: value for name, value in given.items() if (name, value) != ("respect_saved_tensors_hooks", False)}
    if unmet:
        cures = dict.fromkeys(_ELSEWHERE.get(name, "give mode=Rerun(...)") for name in unmet)
        raise UsageError(
            f"checkpoint: {_as_arguments(unmet)} cannot be honoured with mode=Replay(...), which does not call the "
            f"function again; {', or '.join(cures)}"
        )


def _as_arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def chosen_mode(mode: Mode | None, arguments: TorchArguments, kwargs: dict[str, Any]) -> Mode:
    """Returns `mode`, or the one that torch's arguments ask for. Raises UsageError if the two contradict."""
    arguments.check(kwargs)
    if mode is None:
        return arguments.as_mode()
    if not isinstance(mode, (Replay, Rerun)):
        raise UsageError(f"checkpoint: the mode is {shown(mode)}; give Replay(), Replay(an action) or Rerun()")
    given = arguments.given()
    if isinstance(mode, Replay):
        _check_replay(given)
        return mode
    _check_determinism(mode.determinism_check)
    options = {field.name for field in dataclasses.fields(Rerun)}
    twice = _as_arguments({name: value for name, value in given.items() if name in options})
    if twice:
        raise UsageError(f"checkpoint: {twice} is given in addition to mode=Rerun(...); write Rerun({twice})")
    scopes = TorchArguments(debug=mode.debug, early_stop=mode.early_stop)
    return dataclasses.replace(mode, debug=scopes.scoped_debug, early_stop=scopes.scoped_early_stop)
