"""What every program has: batches, a step, a loop around it, and all the state that training changes."""

import contextlib
import dataclasses
import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

PROGRAMS: dict[str, type["Program"]] = {}

Backward = Callable[..., Any]  # session.backward, or what plain PyTorch does in its place


class Program:
    """A training program. A subclass makes its model, optimizers and `batches` in `__init__`, where the random generators
    are seeded, and defines `step`.

    goes_backward: whether `step` calls backward() itself; otherwise the runner does so on the loss that it returns.
    error: a pattern of the snug.Error that ends the first step, or fit; None: every bit is that of plain PyTorch.
    may_fail: the same pattern for a program that snug may also run with the right bits, as it depends on the plan.
    broken: the reason why the program is an expected failure in `broken_in`, or everywhere.
    places: the budgets and other places where the test runs it.
    """

    goes_backward = True
    error: str | None = None
    may_fail: str | None = None
    broken: str | None = None
    broken_in: tuple[str, ...] = ()
    places: tuple[str, ...] = ("100%", "80%", "60%", "recomputed")

    batches: list[Any]
    # Around each forward pass of a step with several backward passes: snug.micro_batch in a session.
    micro_batch: Callable[[], contextlib.AbstractContextManager[Any]] = staticmethod(contextlib.nullcontext)

    def step(self, batch: Any) -> Any:
        raise NotImplementedError

    def iteration(self, batch: Any, backward: Backward) -> Any:
        """One turn of the training loop; returns the loss."""
        return backward(batch)

    def sample(self) -> Any:
        """The batch that fit is given; the largest, if they vary."""
        return self.batches[0]

    def fit_options(self) -> dict[str, Any]:
        """Arguments of snug.fit beside the step, the sample and the budget."""
        return {}

    def blocks(self) -> list[nn.Module]:
        """Modules that a user would checkpoint."""
        model = getattr(self, "model", None)
        return [m for m in model if any(True for _ in m.parameters())] if isinstance(model, nn.Sequential) else []

    def state(self) -> dict[str, Any]:
        """The bits of all random generators, and of all attributes whose names begin with a letter."""
        seen: dict[int, Any] = {}
        names = [name for name in vars(self) if name not in ("batches", "micro_batch") and name[0] != "_"]
        state = {name: bits(getattr(self, name), seen) for name in names}
        numpy_state = np.random.get_state()
        state["random generators"] = (bits(torch.get_rng_state()), random.getstate(), numpy_state[1].tobytes(), numpy_state[2])
        return state


def program(cls: type[Program]) -> type[Program]:
    """Adds the class to PROGRAMS."""
    PROGRAMS[cls.__name__] = cls
    return cls


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def module_bits(module: nn.Module, seen: dict[int, Any]) -> dict[str, Any]:
    """Parameters with their gradients and flags, buffers, and the plain attributes of all submodules."""
    found: dict[str, Any] = {}
    for name, p in module.named_parameters():
        found[name] = (bits(p, seen), bits(p.grad, seen), p.requires_grad)
    for name, buffer in module.named_buffers():
        found[name] = bits(buffer, seen)
    for path, child in module.named_modules():
        found[f"{path} training"] = child.training
        for name, value in vars(child).items():
            if not name.startswith("_") and name not in ("training", "forward") and not isinstance(value, type):
                found[f"{path}.{name}"] = bits(value, seen)
    return found


def bits(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Returns something that is equal for two values if and only if all their bits are. Functions count for nothing."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        return tensor_bits(value)
    if isinstance(value, (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, torch.Generator):
        return bits(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if id(value) in seen:
        return "seen"
    seen[id(value)] = value  # alive, so that no other object has its id
    if isinstance(value, nn.Module):
        return module_bits(value, seen)
    if isinstance(value, dict):
        return {str(key): bits(item, seen) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)) or type(value).__name__ == "deque":
        return [bits(item, seen) for item in value]
    if dataclasses.is_dataclass(value):
        return bits(vars(value), seen)
    if hasattr(value, "state_dict"):  # optimizers, schedules, scalers
        return bits(value.state_dict(), seen)
    return None


def tensor_bits(tensor: torch.Tensor) -> Any:
    if nn.parameter.is_lazy(tensor):
        return "uninitialized"
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce()
        return [tensor_bits(tensor.indices()), tensor_bits(tensor.values())]
    tensor = tensor.as_subclass(torch.Tensor)
    digest = hashlib.sha1(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()
    return (str(tensor.dtype), tuple(tensor.shape), digest)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths of what differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {**one, **other}
        return [d for k in keys for d in differences(one.get(k, "missing"), other.get(k, "missing"), f"{path}/{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other)) for d in differences(a, b, f"{path}/{i}")]
    return [] if one == other else [path]


def layers(width: int, depth: int, *others: Callable[[], nn.Module]) -> list[nn.Module]:
    """Blocks of a linear layer, GELU and `others`."""
    return [nn.Sequential(nn.Linear(width, width), nn.GELU(), *(make() for make in others)) for _ in range(depth)]


def gaussian_batches(count: int, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape) for _ in range(count)]
