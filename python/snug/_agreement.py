"""Processes that train one model together decide together what changes what each of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import _core
from ._if_imported import is_a
from ._objects import objects_of
from ._pipelining import stages_found
from .errors import UsageError


def _meshes_of(module: nn.Module) -> list[Any]:
    """Of the parameters that are DTensors."""
    meshes = [p.device_mesh for p in module.parameters() if is_a(p, "torch.distributed.tensor", "DTensor")]
    return [mesh for mesh in meshes if mesh.get_coordinate() is not None]


def _group_of(module: nn.Module) -> Any:
    """The processes that it runs together with, as far as it says: None for a module that runs alone, and a UsageError where
    they have no group."""
    groups = [m.process_group for m in module.modules() if isinstance(m, DistributedDataParallel)]
    if meshes := _meshes_of(module):
        mesh = max(meshes, key=lambda m: m.size())
        whole = getattr(mesh, "_get_root_mesh", lambda: mesh)()
        if mesh.size() < dist.get_world_size() and (mesh.ndim > 1 or whole.size() > mesh.size()):
            return UsageError(
                f"fit: the step runs a model that is divided over {mesh.size()} processes of {dist.get_world_size()}, and does not "
                f"say which of the others run it together with these; give fit a group of all that do, by process_group="
            )
        groups.append(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD)
    return max(groups, key=dist.get_world_size, default=None)


def _refuse_untried(model: Any, _arguments: Any) -> None:
    """A static graph is learned in a first iteration, which a recording must not be."""
    if model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", True):
        raise UsageError(
            "fit: the step runs a DistributedDataParallel model with static_graph=True that has had no iteration yet; run the "
            "step once before fit, or leave static_graph out"
        )


class Group:
    """The processes that vote: those of the process group that is given, else of the models that the step runs with others
    while it is recorded, from there on: DistributedDataParallel, or with parameters that are DTensors, as fully_shard and
    parallelize_module make them, or as stages of a pipeline. Before, and without any, this one alone."""

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
        self._all: torch.Tensor | None = None

    def agreement(self) -> _core.Agreement:
        return _core.Agreement(self._gather)

    @contextmanager
    def found_in_step(self) -> Iterator[None]:
        """Looks for such modules, and stages of pipelines, in what runs inside."""
        with stages_found(lambda stage: None if self._given else self._runs(stage.group or dist.group.WORLD, None, None)):
            with self._found_among_modules():
                yield

    @contextmanager
    def _found_among_modules(self) -> Iterator[None]:
        handles = []
        if dist.is_available() and dist.is_initialized():
            for thing in objects_of(nn.Module):
                if "_modules" not in thing.__dict__:  # half made
                    continue
                if isinstance(thing, DistributedDataParallel):
                    handles.append(thing.register_forward_pre_hook(_refuse_untried))
                # Now: while it runs, weights in shards are others.
                if not self._given and (group := _group_of(thing)) is not None:
                    handles.append(thing.register_forward_pre_hook(partial(self._runs, group), prepend=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _runs(self, group: Any, _module: Any, _arguments: Any) -> None:
        if isinstance(group, UsageError):
            if self._group is None:
                raise group
            return  # a part of a model whose group is known
        if self._group is None:
            self._group = group
        if self._group is group:
            return
        mine, others = (set(dist.get_process_group_ranks(g)) for g in (self._group, group))
        if not others <= mine:
            raise UsageError(
                "fit: the step runs models of several process groups; give fit the one whose processes all run it, by "
                "process_group="
            )

    def _gather(self, vote: int) -> list[int]:
        """What all processes say, this one among them."""
        if self._group is None:
            return [vote]
        if self._mine is None or self._all is None:
            on_cpu = "cpu:" in dist.get_backend_config(self._group)
            where = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()
            self._mine = torch.zeros(1, dtype=torch.uint8, device=where)
            self._all = torch.zeros(dist.get_world_size(self._group), dtype=torch.uint8, device=where)
        self._mine.fill_(vote)
        dist.all_gather(list(self._all.split(1)), self._mine, group=self._group)
        return self._all.tolist()  # one copy from the device, however many processes there are
