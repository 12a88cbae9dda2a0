"""What FSDP2 (torch.distributed.fsdp.fully_shard) keeps from one iteration to the next, where a step ends in its middle."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from .errors import UsageError


def _modules() -> list[Any]:
    """All that fully_shard has wrapped in this process."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)  # nobody has one before it is imported
    if kind is None:
        return []
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind) and "_modules" in thing.__dict__]


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    return getattr(state, "_fsdp_param_groups", None) or [group for group in [getattr(state, "_fsdp_param_group", None)] if group]


def forget_iterations() -> None:
    """After an exception out of a forward or backward pass, as PyTorch asks for: weights are in shards, nothing is on its way, and
    gradients that have been accumulated without a reduction are gone."""
    for module in _modules():
        state = module._get_fsdp_state()
        has_run = hasattr(getattr(state, "_comm_ctx", None), "all_gather_state")
        if state._is_root and has_run and hasattr(module, "reset_iter_state"):
            module.reset_iter_state()


def refuse_accumulated() -> None:
    """Gradients of micro-batches that are not in `.grad` yet: a recording would add to them, and could not put them back."""
    for module in _modules():
        for group in _groups(module):
            if getattr(group, "_partial_reduce_output", None) is not None or any(
                getattr(parameter, "unsharded_accumulated_grad", None) is not None for parameter in group.fsdp_params
            ):
                raise UsageError(
                    "fit: fully_shard has accumulated gradients that it has not reduced yet; call fit before the first "
                    "micro-batch of an update, or behind the last"
                )


class Attempts:
    """A step function that is run again after runs that have failed, or are to leave nothing behind."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __call__(self) -> Any:
        forget_iterations()
        return self._run()
