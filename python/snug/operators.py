"""What the schema of an operator does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from ._effects import has_ordered_effect


def declare_operator(
    operator: str | Any,
    *,
    writes: Sequence[int] = (),
    writes_only_if: int | None = None,
    scratch_result: int | None = None,
    draws: bool | None = None,
    keeps_state: bool | None = None,
) -> None:
    """Declares what the schema of an operator does not tell, and recording and replay must know.

    A declaration replaces an earlier one of the same operator; of PyTorch's own operators what it does not say stays. It
    holds for all overloads.

    Args:
        operator: "mylib::normalize", torch.ops.mylib.normalize, or what torch.library.custom_op returns.
        writes: positions of arguments that it writes although its schema does not say so, such as running statistics. A
            replay writes to copies of them. Positions count from 0.
        writes_only_if: the position of the bool argument that says whether it does.
        scratch_result: the position of a result that only its own backward understands and that may hold memory which
            nothing wrote. Its bits are not compared.
        draws: whether it draws random numbers. By default snug looks whether a random generator moves while it runs.
        keeps_state: whether it keeps a state outside of its tensors, such as a counter. Then it runs once, and its
            results are kept. By default operators that take a script object (torchbind) do, and those with an ordered
            effect (register_effect of torch.library).

    Raises:
        UsageError: the name is none, or the operator has nothing of that kind at a position.

    Example:
        snug.declare_operator("mylib::counted", keeps_state=True)
    """
    if isinstance(operator, torch._library.custom_ops.CustomOpDef):
        operator = operator._qualname
    elif isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator._qualified_op_name
    elif isinstance(operator, torch._ops.OpOverload):
        operator = operator._schema.name
    if keeps_state is None and has_ordered_effect(str(operator)):
        keeps_state = True
    _core.declare_operator(str(operator), list(writes), writes_only_if, scratch_result, draws, keeps_state)
