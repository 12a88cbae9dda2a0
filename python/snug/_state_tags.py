"""What optimizers keep between steps is counted as optimizer state, in memory_stats() and in a Monitor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core

# By optimizer: how many parameters' state is tagged, and a tensor of the first's, which is another once a state is loaded.
_tagged: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()


def _tensors_in(state: Mapping[Any, Any], first: int) -> Iterator[torch.Tensor]:
    """Of all parameters but those before `first`."""
    for of_parameter in islice(state.values(), first, None):
        if isinstance(of_parameter, Mapping):
            yield from (tensor for tensor in of_parameter.values() if isinstance(tensor, torch.Tensor))


def _after_a_step(optimizer: Any, *_: Any) -> None:
    state = getattr(optimizer, "state", None)
    if not isinstance(state, Mapping):  # somebody's own
        return
    one = next(_tensors_in(state, 0), None)
    known, known_one = _tagged.get(optimizer, (0, lambda: None))
    if known_one() is not one:
        known = 0
    if one is not None and len(state) > known:
        _core.tag(list(_tensors_in(state, known)), "optimizer")
        _tagged[optimizer] = (len(state), ref(one))


# Once and for good, as in _capture.
register_optimizer_step_post_hook(_after_a_step)
