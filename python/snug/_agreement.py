"""Processes that train one model together decide together what changes what each of them runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _core
from .errors import UsageError


class Group:
    """The processes that vote: those of the process group that is given, else of the DistributedDataParallel model that
    the step runs while it is recorded, from there on; before, and without either, this one alone."""

    def __init__(self, process_group: Any) -> None:
        self._given = process_group is not None
        if self._given:
            if not dist.is_available() or not isinstance(process_group, dist.ProcessGroup):
                raise UsageError(
                    f"fit: the process group is a {type(process_group).__name__}; give one of torch.distributed that this "
                    f"process is in, such as torch.distributed.group.WORLD"
                )
            if dist.get_rank(process_group) < 0:
                raise UsageError("fit: this process is not in the process group; give one that it is in")
        self._group: Any = process_group
        self._mine: torch.Tensor | None = None
        self._all: list[torch.Tensor] = []

    def agreement(self) -> _core.Agreement:
        return _core.Agreement(self._gather)

    @contextmanager
    def found_in_step(self) -> Iterator[None]:
        """Looks for that model in what runs inside."""
        handles = []
        if not self._given and dist.is_available() and dist.is_initialized():
            models = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]
            handles = [model.register_forward_pre_hook(self._runs) for model in models]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _runs(self, model: Any, _: Any) -> None:
        if self._group is not None and self._group is not model.process_group:
            raise UsageError(
                "fit: the step runs DistributedDataParallel models of several process groups; give fit the one whose "
                "processes all run it, by process_group="
            )
        self._group = model.process_group

    def _gather(self, vote: int) -> list[int]:
        """What all processes say, this one among them."""
        if self._group is None:
            return [vote]
        if self._mine is None:
            on_cpu = "cpu:" in dist.get_backend_config(self._group)
            where = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()
            self._mine = torch.zeros(1, dtype=torch.uint8, device=where)
            self._all = [torch.zeros_like(self._mine) for _ in range(dist.get_world_size(self._group))]
        self._mine.fill_(vote)
        dist.all_gather(self._all, self._mine, group=self._group)
        return [int(one) for one in self._all]
