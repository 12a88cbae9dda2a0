"""Kernels that write to tensors without an operator of PyTorch: graphs that torch.compile made, and Triton kernels that a
program launches itself. snug cannot replay them, so it keeps the tensors that they write."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core


def _wrap_graph(graph: type) -> None:
    """The class of a graph that inductor compiled, which knows which of its inputs it writes."""
    plain = graph.__call__

    @functools.wraps(plain)
    def call(self: Any, inputs: Sequence[Any]) -> Any:
        is_known = hasattr(self, "mutated_input_idxs")
        positions = self.mutated_input_idxs if is_known else range(len(inputs))
        tensors = [inputs[i] for i in positions if isinstance(inputs[i], torch.Tensor)]
        with _core.Unrecorded(tensors if is_known else [], maybe_written=[] if is_known else tensors):
            return plain(self, inputs)

    graph.__call__ = call  # type: ignore[method-assign]


def _wrap_inductor(module: ModuleType) -> None:
    for name in ("CompiledFxGraph", "CompiledAOTI"):
        if hasattr(module, name):
            _wrap_graph(getattr(module, name))


def _wrap_triton(module: ModuleType) -> None:
    """Every launch, by kernel[grid](...) or by an autotuner, goes through JITFunction.run. Which of its tensors a kernel
    writes it does not say, so any may be."""
    plain = module.JITFunction.run

    @functools.wraps(plain)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):
            return plain(self, *args, **kwargs)
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
        with _core.Unrecorded([], maybe_written=tensors):
            return plain(self, *args, **kwargs)

    module.JITFunction.run = run


def _count_fused_writes(optimizer: Any, *_: Any) -> None:
    """Fused kernels of optimizers do not raise the versions of the parameters that they write. A replay that comes later, as
    where hooks step in the backward pass, has to notice."""
    if not _core.any_tape():
        return
    found_inf = getattr(optimizer, "found_inf", None)  # of a GradScaler: then the kernel writes nothing
    if isinstance(found_inf, torch.Tensor) and found_inf.device.type == "cpu" and found_inf.item():
        return
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version([p for p in group["params"] if p.grad is not None])


register_optimizer_step_post_hook(_count_fused_writes)

# Functions that wrap the classes of a module, by its name.
_WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    "torch._inductor.output_code": _wrap_inductor,
    "triton.runtime.jit": _wrap_triton,
}


class _WhenImported(importlib.abc.MetaPathFinder):
    """Wraps the classes of a module when it is imported: both take seconds to import, and most programs need neither."""

    def __init__(self, name: str, wrap: Callable[[ModuleType], None]) -> None:
        self._name, self._wrap = name, wrap

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            self._wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


for _name, _wrap in _WRAPPED.items():
    if _name in sys.modules:
        _wrap(sys.modules[_name])
    else:
        sys.meta_path.insert(0, _WhenImported(_name, _wrap))
