"""Code that torch.compile made. Its kernels write without telling autograd, over what operators of PyTorch made too: nothing
of it is recorded, and its results are kept."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from . import _core

_MODULE = "torch._inductor.output_code"


def _wrap(graph: type) -> None:
    """The class of a compiled graph."""
    plain = graph.__call__

    @functools.wraps(plain)
    def call(self: Any, inputs: Sequence[Any]) -> Any:
        written = getattr(self, "mutated_input_idxs", range(len(inputs)))
        tensors = [inputs[i] for i in written if isinstance(inputs[i], torch.Tensor)]
        with _core.Unrecorded(tensors):
            return plain(self, inputs)

    graph.__call__ = call  # type: ignore[method-assign]


def _wrap_all(module: ModuleType) -> None:
    for name in ("CompiledFxGraph", "CompiledAOTI"):
        if hasattr(module, name):
            _wrap(getattr(module, name))


class _WhenImported(importlib.abc.MetaPathFinder):
    """The compiler is imported when it is first used, which takes seconds; its classes are wrapped then."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            _wrap_all(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _MODULE in sys.modules:
    _wrap_all(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _WhenImported())
