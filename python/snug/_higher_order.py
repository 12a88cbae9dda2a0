"""Lets higher-order operators (cond, while_loop, scan, flex_attention) run while operators are recorded. They dispatch in
Python by all included keys, and have no kernel for the recorder's. It becomes a fallthrough key: the inner operators are
recorded."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import HigherOrderOperator, _higher_order_ops

from . import _core


def _leave_out_recorder(operator: Any) -> None:
    keys = _core.without_recording_key(operator.non_fallthrough_keys.raw_repr())
    operator.non_fallthrough_keys = torch._C.DispatchKeySet.from_raw_repr(keys)


def _install() -> None:
    plain = HigherOrderOperator.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        _leave_out_recorder(self)

    HigherOrderOperator.__init__ = init  # type: ignore[method-assign]
    for operator in _higher_order_ops.values():
        _leave_out_recorder(operator)


_install()
