"""The objects of this process, as Python's garbage collector knows them."""

from __future__ import annotations

import gc
from typing import Any

import torch

from . import _core


def objects_of(*kinds: type) -> list[Any]:
    """Returns the live instances of these classes, subclasses included.

    Calls gc.unfreeze(), as the garbage collector does not list frozen objects.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    # By type: other things may pretend to be of a class, or compute something when they are asked.
    return _core.instances_among(gc.get_objects(), kinds)


# Classes whose attributes are restored. A step may write to an optimizer's state before the update begins, as SAM does.
OWNERS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


class LiveObjects:
    """The tensors of this process, and its owners of tensors: modules, optimizers and schedulers. They are searched for once, for all
    that ask before a step is recorded. Keeps them alive until forget()."""

    def __init__(self) -> None:
        found = objects_of(torch.Tensor, *OWNERS)
        self.tensors = [thing for thing in found if issubclass(type(thing), torch.Tensor)]
        self.owners = [thing for thing in found if not issubclass(type(thing), torch.Tensor)]

    def modules(self) -> list[torch.nn.Module]:
        return [thing for thing in self.owners if issubclass(type(thing), torch.nn.Module)]

    def forget(self) -> None:
        self.tensors, self.owners = [], []
