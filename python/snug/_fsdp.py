"""What FSDP2 (torch.distributed.fsdp.fully_shard) keeps from one iteration to the next, where a step ends in its middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._if_imported import class_of
from ._objects import objects_of
from .errors import UsageError


def _modules() -> list[Any]:
    """All that fully_shard has wrapped in this process."""
    kind = class_of("torch.distributed.fsdp", "FSDPModule")
    # Each class that is wrapped gets one of its own.
    if kind is None or not kind.__subclasses__():
        return []
    return [thing for thing in objects_of(kind) if "_modules" in thing.__dict__]


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    one = getattr(state, "_fsdp_param_group", None)  # before PyTorch 2.13
    return getattr(state, "_fsdp_param_groups", [one] if one is not None else [])


def forget_iterations() -> None:
    """Resets FSDP2 after an exception out of a forward or backward pass, as PyTorch asks for: weights are in shards, no
    message is on its way, and gradients that have been accumulated without a reduction are gone. Gradients of shards
    stay, which PyTorch 2.15 clears as well."""
    modules = _modules()
    for module in modules:
        state = module._get_fsdp_state()
        has_run = hasattr(getattr(state, "_comm_ctx", None), "post_forward_order")
        if not state._is_root or not has_run or not hasattr(module, "reset_iter_state"):
            continue
        shards = [p.sharded_param for m in modules for group in _groups(m) for p in group.fsdp_params]
        gradients = [shard.grad for shard in shards]
        module.reset_iter_state()
        for shard, gradient in zip(shards, gradients, strict=True):
            if gradient is not None and shard.grad is None:
                shard.grad = gradient


def _has_accumulated(parameter: Any) -> bool:
    """Whether FSDP2 holds a gradient of the whole parameter that it has not reduced."""
    unsharded = getattr(parameter, "_unsharded_param", None)
    return getattr(parameter, "unsharded_accumulated_grad", None) is not None or getattr(unsharded, "grad", None) is not None


def refuse_accumulated() -> None:
    """Gradients of micro-batches that are not in `.grad` yet: a recording would add to them, and could not put them back."""
    for module in _modules():
        for group in _groups(module):
            if getattr(group, "_partial_reduce_output", None) is not None or any(map(_has_accumulated, group.fsdp_params)):
                raise UsageError(
                    "fit: fully_shard has accumulated gradients that it has not reduced yet; call fit before the first "
                    "micro-batch of an update, or behind the last"
                )


def begun_anew(run: Callable[[], Any]) -> Callable[[], Any]:
    """A step function that is run again after runs that have failed, or are to leave nothing behind."""

    def run_anew() -> Any:
        forget_iterations()
        return run()

    return run_anew
