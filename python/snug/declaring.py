"""What schemas do not tell of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _core


def declare_operator(
    operator: str | Any, *, writes: Sequence[int] = (), writes_only_if: int | None = None, scratch_result: int | None = None
) -> None:
    """Says of an operator of yours what its schema does not, and recording and replay must know.

    operator: "mylib::normalize", torch.ops.mylib.normalize, or what torch.library.custom_op returns; all its overloads are meant. writes: positions of arguments that
    it writes all the same, such as running statistics: where it runs again it is to write copies. writes_only_if: the position
    of the bool that says whether it does. scratch_result: the position of a result that only its own backward understands and that
    may hold what nobody wrote. Positions count from 0. A declaration takes the place of an earlier one. Raises UsageError.
    """
    if isinstance(operator, torch._library.custom_ops.CustomOpDef):
        operator = operator._qualname
    elif isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator._qualified_op_name
    elif isinstance(operator, torch._ops.OpOverload):
        operator = operator._schema.name
    _core.declare_operator(str(operator), list(writes), writes_only_if, scratch_result)
