"""Micro-batches of a step: forward passes that have a backward pass each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _core
from ._capture import micro_batch_begins


@contextmanager
def micro_batch() -> Iterator[None]:
    """Marks the forward pass of one micro-batch, its loss included, in a step that goes backward several times.

    A session sees each as a forward pass of its own, whose backward pass may come at any time after it. It plans for the
    highest number of micro-batches that have gone forward and not backward. What runs between micro-batches is not
    recorded. Stages of torch.distributed.pipelining need no micro_batch(). Outside of a step it does nothing.

    Raises:
        UsageError: The session updates in the backward pass, or has streamed tensors.

    Example:
        >>> def step(batches):
        ...     for batch in batches:
        ...         with snug.micro_batch():
        ...             loss = model(batch).loss / len(batches)
        ...         loss.backward()
    """
    micro_batch_begins()
    try:
        yield
    except BaseException:
        _core.micro_batch_fails()
        raise
    _core.micro_batch_ends()
