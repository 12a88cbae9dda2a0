"""Checkpoints of functions, with the arguments of torch.utils.checkpoint and with snug's own `mode`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import torch
import torch.utils.checkpoint as _torch_checkpoint
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import noop_context_fn

from . import _core
from ._core import Choice, OperatorContext
from ._decorating import decorated
from .actions import Policy, choice_of
from .errors import Error, UsageError, shown
from .modes import CHECKS, Contexts, Mode, Replay, Rerun, TorchArguments, chosen_mode
from .regions import Region

_T = TypeVar("_T")
_P = ParamSpec("_P")

# Before patch() replaces it.
original = _torch_checkpoint.checkpoint
_TORCH_RESPECTS_HOOKS = "respect_saved_tensors_hooks" in inspect.signature(original).parameters


def _rerun(
    function: Callable[..., Any],
    mode: Rerun,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: Contexts | None = None,
) -> Any:
    """Calls the function so that backward calls it again. `around`: contexts of the first call and of the second."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    first, again = around if around is not None else (contextlib.nullcontext(), contextlib.nullcontext())
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
        call, arguments, mode.preserve_rng_state, CHECKS[mode.determinism_check], mode.debug, mode.early_stop
    )
    scope.enter()  # keeps the thread's state as it is outside of the first context
    try:
        with first:
            return function(*args, **kwargs)
    finally:
        scope.exit()


def _run(function: Callable[..., Any], mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(mode, Rerun):
        return _rerun(function, mode, args, kwargs)
    with Region(mode.action, verify_replay=mode.verify_replay).at_place_of(function):
        return function(*args, **kwargs)


# --- selective contexts of torch -------------------------------------------------------------------------------------


def _policy_of(forward: Any) -> Policy | None:
    """Returns the policy of create_selective_checkpoint_contexts if it was given a list of operators. A function of the
    program may look at operands and results, which OperatorContext does not have."""
    policy = getattr(forward, "policy_fn", None)
    if policy is None or getattr(policy, "__module__", "") != _torch_checkpoint.__name__:
        return None
    context = _torch_checkpoint.SelectiveCheckpointContext(is_recompute=False)
    choices: dict[str, Choice] = {}

    def ask(operator: OperatorContext) -> Choice:
        name = operator.name
        if name not in choices:
            choices[name] = choice_of(policy(context, _overload(name)), name)
        return choices[name]

    return ask


def _overload(name: str) -> Any:
    """Returns torch.ops.aten.add.Tensor for "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _with_cure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with an explanation of torch's error where its second call runs other operators."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, Error) or "not found in storage" not in str(error):
                raise
            raise Error(
                f"checkpoint: {str(error).split(' encountered')[0]} ran in the second call of the function and not in "
                "the first, and a selective policy that is a function needs the same operators in both; under autocast "
                "the first call reads casts of weights from autocast's cache, which is empty in the second; give "
                "create_selective_checkpoint_contexts a list of operators, or snug.checkpoint "
                "mode=Replay(Selective([...])), which replay without a second call, or use "
                "torch.autocast(..., cache_enabled=False)"
            ) from error

    return call


def _selective_by_torch(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: Rerun,
    contexts: Contexts,
    respect_saved_tensors_hooks: bool | None,
) -> Any:
    """Runs torch's own mechanism, which stores results in the first call and hands them out in the second."""
    if mode.determinism_check == "values":
        raise UsageError(
            'checkpoint: determinism_check="values" cannot be honoured with a selective policy in a second call; give '
            "create_selective_checkpoint_contexts a list of operators, and no argument that asks for a second call"
        )
    hooks: dict[str, Any] = {}
    if _TORCH_RESPECTS_HOOKS:
        hooks["respect_saved_tensors_hooks"] = respect_saved_tensors_hooks
    elif respect_saved_tensors_hooks:
        raise UsageError(
            "checkpoint: respect_saved_tensors_hooks=True needs torch 2.15 with a selective policy, and this is torch "
            f"{torch.__version__}"
        )
    return original(
        _with_cure(function), *args, use_reentrant=False, context_fn=lambda: contexts, early_stop=mode.early_stop,
        determinism_check=mode.determinism_check, preserve_rng_state=mode.preserve_rng_state, **hooks, **kwargs,
    )


def _run_in_contexts(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: Mode,
    arguments: TorchArguments,
) -> Any:
    """Runs a checkpoint with context_fn. `mode` is what all other arguments ask for."""
    forward, again = arguments.context_fn()
    as_rerun = Rerun(determinism_check=arguments.determinism_check) if isinstance(mode, Replay) else mode
    if not hasattr(forward, "policy_fn"):
        return _rerun(function, as_rerun, args, kwargs, (forward, again))
    policy = _policy_of(forward)
    hooks = arguments.respect_saved_tensors_hooks
    if policy is not None and isinstance(mode, Replay) and not hooks:
        return _run(function, dataclasses.replace(mode, action=policy), args, kwargs)
    return _selective_by_torch(function, args, kwargs, as_rerun, (forward, again), hooks)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def run_checkpoint(
    function: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: Mode | None,
    arguments: TorchArguments,
) -> Any:
    """Runs a checkpoint, or returns a decorator if there is neither a function nor an argument."""
    if function is None and not args:
        if kwargs:
            raise UsageError(
                f"checkpoint: Unexpected keyword arguments: {','.join(kwargs)}; a decorator takes none for its function"
            )
        chosen_mode(mode, arguments, {})

        def call(inside: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return run_checkpoint(inside, args, kwargs, mode, arguments)

        return lambda function: decorated("checkpoint", function, call)
    if not callable(function):
        raise UsageError(f"checkpoint: the function is {shown(function)}; give one that can be called")
    chosen = chosen_mode(mode, arguments, kwargs)
    if arguments.context_fn is not noop_context_fn:
        return _run_in_contexts(function, args, kwargs, chosen, arguments)
    return _run(function, chosen, args, kwargs)


@overload
def checkpoint(
    function: Callable[..., _T],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    mode: Mode | None = None,
    **kwargs: Any,
) -> _T: ...


@overload
def checkpoint(
    function: None = None,
    *,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    mode: Mode | None = None,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...


def checkpoint(
    function: Callable[..., Any] | None = None,
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    mode: Mode | None = None,
    **kwargs: Any,
) -> Any:
    """Drops what autograd saves in function(*args, **kwargs), and recomputes it in backward.

    The arguments are those of torch.utils.checkpoint.checkpoint, and `mode`. By default backward replays the operators
    that the function ran, and the function is called once. Arguments that speak of a second call make one. Without a
    function, as checkpoint(use_reentrant=False), the result is a decorator.

    Args:
        function: The function, or None for a decorator.
        *args: Its positional arguments.
        use_reentrant: Accepted for torch's sake: gradients and saved tensors are those of use_reentrant=False. As in
            torch, True takes no kwargs, context_fn or debug, and does not compare or stop a second call.
        preserve_rng_state: False calls the function again with other random numbers.
        context_fn: Returns contexts for the first call and the second, and makes a second call. Those of
            create_selective_checkpoint_contexts with a list of operators are replayed. With a policy function, which
            may look at operands, torch's own implementation runs.
        determinism_check: Of a replay, "default" compares contents once for each function, "values" always and "none"
            never, as Replay(verify_replay=...) does. Of a second call, as in Rerun.
        debug: True calls the function again, and errors name the operators where the two calls differ.
        early_stop: False calls the function again, to its end.
        respect_saved_tensors_hooks: Whether surrounding saved_tensors_hooks see the results that a selective policy
            keeps. True needs torch 2.15.
        mode: Replay or Rerun, with their options, in place of the arguments above.
        **kwargs: The function's keyword arguments.

    Returns:
        What the function returns, or a decorator.

    Raises:
        UsageError: Arguments contradict each other, or cannot be honoured in `mode`.
        Error: In backward: an input was modified in place, or the two calls of a Rerun differ.

    Example:
        >>> y = snug.checkpoint(block, x, mask=mask)
        >>> @snug.checkpoint(mode=snug.Rerun())
        ... def raw_kernels(x): ...
    """
    arguments = TorchArguments(
        use_reentrant, preserve_rng_state, context_fn, determinism_check, debug, early_stop, respect_saved_tensors_hooks
    )
    return run_checkpoint(function, args, kwargs, mode, arguments)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]] | torch.nn.Sequential,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
    mode: Mode | None = None,
    **unexpected: Any,
) -> Any:
    """Runs functions one after the other, in segments of equal length that are checkpoints.

    The last segment is no checkpoint: backward needs it first. The arguments are those of
    torch.utils.checkpoint.checkpoint_sequential, and `mode`.

    Args:
        functions: A torch.nn.Sequential, or a list of functions of one argument.
        segments: The number of segments.
        input: The argument of the first function.
        use_reentrant: As in checkpoint.
        preserve_rng_state: As in checkpoint.
        mode: As in checkpoint.

    Returns:
        What the last function returns.

    Raises:
        UsageError: There are more segments than functions, or arguments that torch has not either.

    Example:
        >>> y = snug.checkpoint_sequential(model.layers, 4, x)
    """
    if unexpected:
        raise UsageError(
            f"checkpoint_sequential: Unexpected keyword arguments: {','.join(unexpected)}; it takes use_reentrant, "
            "preserve_rng_state and mode"
        )
    layers = list(functions.children()) if isinstance(functions, torch.nn.Sequential) else list(functions)
    if not 1 <= segments <= len(layers):
        raise UsageError(
            f"checkpoint_sequential: {segments} segments of {len(layers)} layers; there must be at least one layer in "
            "each"
        )
    chosen = chosen_mode(mode, TorchArguments(use_reentrant, preserve_rng_state), {})
    length = len(layers) // segments

    def run(begin: int, end: int, x: Any) -> Any:
        for layer in layers[begin:end]:
            x = layer(x)
        return x

    last = length * (segments - 1)
    for begin in range(0, last, length):
        input = _run(run, chosen, (begin, begin + length, input), {})
    return run(last, len(layers), input)
