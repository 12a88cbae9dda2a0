"""Train PyTorch models inside a memory budget.

    import snug

    session = snug.fit(step, batch, budget="8GiB")     # step(batch) returns the loss
    for batch in loader:
        loss = session.backward(batch)
        optimizer.step()
        optimizer.zero_grad()

snug records the step once, plans what to keep and what to recompute, runs every step under that cap, and gives the same
gradients to the bit. No change to the model, no torch.compile.
"""

from __future__ import annotations

import torch as _torch  # before the extension: its engine is the one that goes on running backward passes

from . import _build_check
from ._version import built_for as _built_for
from ._version import version as __version__

_build_check.check(_built_for)
_build_check.check_is_built(__path__)

from . import _core, _effects, _higher_order, _raw_kernels, _saved, _wrapped  # noqa: E402
from ._core import Choice, OperatorContext, VerifyReplay  # noqa: E402
from .actions import Keep, Offload, Recompute, Selective  # noqa: E402
from .arguments import Arguments  # noqa: E402
from .checkpointing import checkpoint, checkpoint_sequential  # noqa: E402
from .errors import DoesNotFit, Error, Mismatch, OutOfBudget, UsageError  # noqa: E402
from .following import PlanNotFollowed  # noqa: E402
from .fusing import Fused, fuse, unfuse  # noqa: E402
from .installation import doctor  # noqa: E402
from .lazy_logits import LazyLogits, tiled_loss  # noqa: E402
from .micro_batching import micro_batch  # noqa: E402
from .modes import Replay, Rerun  # noqa: E402
from .monitoring import Alarm, MemoryAlarm, Monitor, memory_stats, release_cached, set_memory_limit  # noqa: E402
from .operators import declare_operator  # noqa: E402
from .patching import patch  # noqa: E402
from .planning import plan  # noqa: E402
from .plans import Plan  # noqa: E402
from .regions import ModuleScope, Region, name_modules  # noqa: E402
from .session import ArenaStats, Session, StepReport, fit  # noqa: E402
from .sizes import format_bytes, parse_bytes  # noqa: E402
from .streaming import StreamedTensors  # noqa: E402
from .verifying import gradient_errors, verify  # noqa: E402

__all__ = [
    "Alarm",
    "ArenaStats",
    "Arguments",
    "Choice",
    "DoesNotFit",
    "Error",
    "Fused",
    "Keep",
    "LazyLogits",
    "MemoryAlarm",
    "Mismatch",
    "ModuleScope",
    "Monitor",
    "Offload",
    "OperatorContext",
    "OutOfBudget",
    "Plan",
    "PlanNotFollowed",
    "Recompute",
    "Region",
    "Replay",
    "Rerun",
    "Selective",
    "Session",
    "StepReport",
    "StreamedTensors",
    "UsageError",
    "VerifyReplay",
    "checkpoint",
    "checkpoint_sequential",
    "declare_operator",
    "doctor",
    "fit",
    "format_bytes",
    "fuse",
    "gradient_errors",
    "memory_stats",
    "micro_batch",
    "name_modules",
    "parse_bytes",
    "patch",
    "plan",
    "release_cached",
    "set_memory_limit",
    "tiled_loss",
    "unfuse",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in ("integrations", "lightning"):  # import transformers, and Lightning
        import importlib

        return importlib.import_module(f"snug.{name}")
    raise AttributeError(f"module 'snug' has no attribute '{name}'")
