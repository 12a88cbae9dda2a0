"""Compares a planned step with the plain step, bit by bit."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import _core
from ._capture import Recorded, run_plain
from ._fitted import Step
from ._leaves import is_leaf_with_gradient
from ._objects import LiveObjects
from ._options import FitOptions, by_device
from ._python_state import PythonState
from ._wrapped import unwrapped
from .allowed import check_module
from .arguments import Arguments
from .devices import device_named, device_of
from .errors import DoesNotFit, Mismatch, UsageError
from .session import Session, fitted_session
from .sizes import Size


def bits_of(tensor: torch.Tensor | None) -> bytes | None:
    """The bytes of the elements, in Python's own memory. Unlike values, a NaN equals itself and 0 is not -0."""
    if tensor is None:
        return None
    plain = tensor.detach()
    if (apart := unwrapped(plain)) is not None:  # a DTensor: what this process has of it
        return b"".join(bits_of(part) or b"" for part in apart[0])
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if plain.numel() and plain.data_ptr() == 0:  # it is streamed
        plain = plain.clone()
    # Not by way of NumPy, which may not be there.
    return f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + (
        ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.numel() else b""
    )


@contextlib.contextmanager
def _without_limits(devices: Sequence[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(_core.HeldLimit(None, device))
        yield


@contextlib.contextmanager
def _deterministic(devices: Sequence[str]) -> Iterator[None]:
    """On accelerators torch's fastest kernels differ from themselves from run to run, such as attention's backward pass on
    CUDA: others, where there are some, and a warning of those that have none."""
    if torch.are_deterministic_algorithms_enabled() or all(device == "cpu" for device in devices):
        yield
        return
    if torch.version.cuda is not None:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it is first used
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # which takes time, and decides nothing
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fills


def _is_finite(gradient: torch.Tensor) -> bool:
    dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
    return bool(dense.isfinite().all())


class _World:
    """What a step may change, by name: gradients, buffers, random numbers. Whoever runs one restores the latter."""

    def __init__(
        self, parameters: list[tuple[str, torch.Tensor]], buffers: list[tuple[str, torch.Tensor]], step: Step, arguments: Arguments
    ) -> None:
        self.parameters, self.buffers = parameters, buffers
        # The step may also train leaves that are not parameters of the model.
        known = {id(p) for _, p in parameters}
        others = [tensor for tensor in LiveObjects().tensors if id(tensor) not in known and is_leaf_with_gradient(tensor)]
        self._gradients = [(p, p.grad) for _, p in parameters]
        self._gradients_of_others = [(p, p.grad) for p in others]  # UndoneWrites restores their contents
        # A step may write parameters, too, as a layer does that initializes itself from its first batch.
        # Those that are streamed are not there.
        written = [p for _, p in parameters if unwrapped(p) is None and p.layout == torch.strided and p.data_ptr() != 0]
        self._before = [(b, b.detach().clone()) for _, b in buffers]
        self._before += [(p, copied.view(p.shape)) for p in written if (copied := _copied(p)) is not None]
        self._state = PythonState(step, [*arguments.args, *arguments.kwargs.values()])

    def reset(self) -> None:
        self._state.put_back()
        with torch.no_grad():
            for tensor, before in self._before:
                if bits_of(tensor) != bits_of(before):
                    tensor.copy_(before)
        for parameter, _ in self._gradients:
            if parameter.grad is not None:
                parameter.grad = None
        for parameter, gradient in self._gradients_of_others:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def outcome(self, loss: torch.Tensor | None) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {} if loss is None else {"loss": bits_of(loss)}
        for name, parameter in self.parameters:
            found[f"gradient of {name}"] = bits_of(parameter.grad)
        for name, buffer in self.buffers:
            found[f"buffer {name}"] = bits_of(buffer)
        found["random numbers afterwards"] = bits_of(torch.get_rng_state())
        if torch.accelerator.is_available():
            device = torch.get_device_module(torch.accelerator.current_accelerator())
            for i, state in enumerate(device.get_rng_state_all()):
                found[f"random numbers of device {i} afterwards"] = bits_of(state)
        return found

    def finite_gradients(self) -> set[str]:
        """The names of parameters that have one."""
        return {name for name, p in self.parameters if p.grad is not None and _is_finite(p.grad)}

    def restore(self) -> None:
        self.reset()
        self._state.close()
        for parameter, gradient in self._gradients:
            if gradient is not None:
                parameter.grad = gradient


@contextlib.contextmanager
def _following_lossy_alone(session: Session) -> Iterator[None]:
    session._core.follow_lossy_alone(True)
    try:
        yield
    finally:
        session._core.follow_lossy_alone(False)


def _gradients_of_lossy_alone(
    session: Session, step: Step, sample: Any, world: _World, finite: set[str]
) -> dict[str, bytes | None]:
    """Those of a step that has the lossy codec and nothing else of the plan. `finite`: the names of those that are, without."""
    if session.last_step.planned_anew:
        raise UsageError("verify: the session has made its plan for this step only now; verify once more")
    with _core.UndoneDraws(), _core.UndoneWrites(), _following_lossy_alone(session):
        session.backward(sample, step=step)
        with _without_limits(session._devices):
            alone, still_finite = world.outcome(None), world.finite_gradients()
    spoilt = sorted(finite - still_finite)
    if spoilt:
        raise Mismatch(
            f"verify: gradients of {', '.join(spoilt[:5])} are finite without the lossy codec, and not with it; allow one "
            "of more bits, or none",
            spoilt,
        )
    return {name: bits for name, bits in alone.items() if name.startswith("gradient of ")}


def gradient_errors(step: Step, sample: Any, model: torch.nn.Module, *, session: Session) -> dict[str, float]:
    """Compares the gradients of a session that has a lossy codec with exact ones.

    Runs the step plain and under the plan, from the same state, and restores everything. The plain step runs without a
    limit.

    Args:
        step: The step of the session.
        sample: A batch, or an Arguments, as in fit.
        model: The module whose parameters are compared.
        session: The session.

    Returns:
        For each parameter with a gradient, the norm of the difference over the norm of the exact gradient. 0 for a plan
        that is not lossy.

    Raises:
        UsageError: The model is no module, or the session updates in the backward pass.

    Example:
        >>> session = snug.fit(step, batch, "4GiB", allow=["int8_activations"])
        >>> max(snug.gradient_errors(step, batch, model, session=session).values())
    """
    if session._updates is not None:
        raise UsageError("gradient_errors: the session updates in the backward pass and leaves no gradients; give one without in_backward")
    check_module("gradient_errors", model)
    parameters = list(model.named_parameters())
    up_to_the_update = Recorded(lambda _: None, [p for _, p in parameters])
    with _without_limits(session._devices):
        world = _World(parameters, list(model.named_buffers()), step, Arguments.of(sample))
        found = []
        try:
            for run in (lambda: run_plain(session._allowed(step), Arguments.of(sample)), lambda: session.backward(sample, step=step)):
                world.reset()
                with up_to_the_update, _core.UndoneDraws(), _core.UndoneWrites():
                    run()
                    found.append([_copied(p.grad) for _, p in parameters])
        finally:
            world.reset()
            world.restore()
        return {
            name: _relative((a.double() - b.double()).norm().item(), a.double().norm().item())
            for (name, _), a, b in zip(parameters, *found, strict=True)
            if a is not None and b is not None
        }


def _copied(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """In memory that no budget counts."""
    if gradient is None:
        return None
    plain = gradient.detach().cpu().contiguous().clone()
    contents = bytearray(ctypes.string_at(plain.data_ptr(), plain.nbytes))
    return torch.frombuffer(contents, dtype=plain.dtype) if contents else None


def _relative(difference: float, size: float) -> float:
    if not math.isfinite(difference):
        return math.nan
    return difference / size if size > 0 else math.inf if difference > 0 else 0.0


Named = list[tuple[str, torch.Tensor]]


def _parts_of(model: torch.nn.Module | Iterable[torch.Tensor]) -> tuple[Named, Named]:
    """Parameters and buffers."""
    if isinstance(model, torch.nn.Module):
        return list(model.named_parameters()), list(model.named_buffers())
    if not isinstance(model, Iterable):
        raise UsageError(f"verify: the model is a {type(model).__name__}; give a torch.nn.Module, or its parameters")
    return [(f"parameter {i}", p) for i, p in enumerate(model)], []


Outcome = dict[str, bytes | None]


def _plain_outcome(step: Step, arguments: Arguments, world: _World) -> tuple[Outcome, set[str], bool]:
    """Runs the plain step. Returns its outcome, the names of finite gradients, and whether it returned its loss."""
    loss = run_plain(step, arguments)
    if all(p.grad is None for _, p in world.parameters):
        raise UsageError(
            f"verify: the step has gradients for none of the {len(world.parameters)} parameters of the model; give the one "
            "that the step trains"
        )
    return world.outcome(loss), world.finite_gradients(), loss is not None


def _outcomes(
    step: Step, arguments: Arguments, parameters: Named, buffers: Named, session: Session | None,
    make: Callable[[], Session], devices: Sequence[str],
) -> tuple[Outcome, Outcome]:
    """Returns the outcomes of the plain step and of one of `session`, or of one that make() returns and that is closed."""
    own: Session | None = None
    up_to_the_update = Recorded(lambda _: None, [p for _, p in parameters])
    with _without_limits(devices):
        world = _World(parameters, buffers, step, arguments)
    # A session has its plans for the kernels that it was made with.
    with _deterministic(devices) if session is None else contextlib.nullcontext():
        try:
            with _without_limits(devices), up_to_the_update:
                world.reset()
                with _core.UndoneDraws(), _core.UndoneWrites():
                    plain = session._allowed(step) if session is not None else step
                    expected, finite, returns_loss = _plain_outcome(plain, arguments, world)
            with _without_limits(devices):
                world.reset()
            if session is None:
                session = own = make()
            with up_to_the_update, contextlib.ExitStack() as undone:
                with _without_limits(devices):  # the states of generators are in the device's memory
                    undone.enter_context(_core.UndoneDraws())
                undone.enter_context(_core.UndoneWrites())
                loss = session.backward(arguments, step=step)
                with _without_limits(devices):
                    found = world.outcome(loss if returns_loss else None)
            if session.last_step.lossy_bytes > 0:
                world.reset()
                with up_to_the_update:
                    expected |= _gradients_of_lossy_alone(session, step, arguments, world, finite)
        finally:
            if own is not None:
                own.close()
            with _without_limits(devices):
                world.restore()
    return expected, found


def verify(
    step: Step,
    sample: Any,
    model: torch.nn.Module | Iterable[torch.Tensor],
    budget: Size | None = None,
    *,
    session: Session | None = None,
    strategy: str = "optimal",
    device: str | torch.device | None = None,
    other_budgets: Mapping[str | torch.device, Size] | None = None,
    host_budget: Size | None = None,
    disk_budget: Size | None = None,
) -> list[str]:
    """Runs a step plain and under a plan, from the same state, and compares every bit.

    Compares the loss, gradients, buffers and random generators, and restores everything. A step that updates runs as far
    as its first optimizer step or write to a parameter. With a lossy codec, gradients are compared with those of a third
    run, which has the codec alone. The plain step runs without a limit. Within the budget there must be room for a second
    set of gradients, so zero those that are there. Given a budget, torch's deterministic algorithms are on for
    accelerators; with a session, turn them on before fit.

    Args:
        step: As in fit.
        sample: As in fit.
        model: The module, or the parameters, that the step trains.
        budget: As in fit; by default "60%", or the smallest budget that a plan fits where that is more.
        session: A session of the step, in place of a budget and the arguments that follow.
        strategy: As in fit.
        device: As in fit.
        other_budgets: As in fit.
        host_budget: As in fit.
        disk_budget: As in fit.

    Returns:
        The names of all that was compared.

    Raises:
        Mismatch: Bits differ. Its `names` says of what.
        DoesNotFit: No plan keeps the step under the budget.
        UsageError: An argument is wrong, or the step has no gradients for the model.

    Example:
        >>> snug.verify(step, batch, model, "8GiB")
        ['loss', 'gradient of 0.weight', ...]
    """
    given = budget is not None or strategy != "optimal" or device is not None or other_budgets
    if session is not None and (given or host_budget is not None or disk_budget is not None):
        raise UsageError("verify: the session has its budgets, its device and its strategy; leave them out, or the session")
    if session is not None and session._updates is not None:
        raise UsageError(
            "verify: the session updates in the backward pass and leaves no gradients; give a session of the same step "
            "without in_backward, or the budget alone"
        )
    parameters, buffers = _parts_of(model)
    others = by_device(other_budgets)
    where = device_of(device, [sample, *(p for _, p in parameters)], others)
    options = FitOptions(
        strategy=strategy, device=where, other_budgets=other_budgets, host_budget=host_budget, disk_budget=disk_budget
    )
    devices = [where, *map(device_named, others)] if session is None else session._devices

    def make() -> Session:
        try:
            return fitted_session(step, sample, "60%" if budget is None else budget, options)
        except DoesNotFit as error:
            if budget is not None or error.device:
                raise
            return fitted_session(step, sample, error.floor, options)

    expected, found = _outcomes(step, Arguments.of(sample), parameters, buffers, session, make, devices)
    differing = [name for name in expected if expected[name] != found[name]]
    if differing:
        raise Mismatch(
            f"verify: {len(differing)} of {len(expected)} differ between the plain step and the planned one: "
            f"{', '.join(differing[:5])}{', ...' if len(differing) > 5 else ''}",
            differing,
        )
    return list(expected)
