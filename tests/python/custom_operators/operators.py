"""How cases define operators."""
import functools
from typing import Any

import torch

from .network import CALLS, LIBRARY


def straight(ctx: Any, *gradients: Any) -> Any:
    """The backward of an operator that saves nothing, by its first result."""
    return gradients[0]


def counted(name: str, kernel: Any) -> Any:
    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += 1
        return kernel(*args, **kwargs)

    return call


def operator(name: str, backward: Any = straight, mutates: Any = (), save: Any = None, inputs: int = 1) -> Any:
    """torch.library.custom_op that counts its calls. Its backward returns the gradient of its first argument."""

    def define(kernel: Any) -> Any:
        op = torch.library.custom_op(f"own::{name}", counted(name, kernel), mutates_args=mutates)
        if backward is not None:

            def all_gradients(ctx: Any, *gradients: Any) -> Any:
                result = backward(ctx, *gradients)
                if isinstance(result, tuple) or inputs == 1:
                    return result
                return (result, *[None] * (inputs - 1))

            op.register_autograd(all_gradients, setup_context=save)
        return op

    return define


def define(schema: str, key: str = "CompositeExplicitAutograd") -> Any:
    """An operator by its schema, as C++ libraries define theirs, without the checks of custom_op."""
    name = schema.split("(")[0]

    def implement(kernel: Any) -> Any:
        LIBRARY.define(schema)
        LIBRARY.impl(name, counted(name, kernel), key)
        return getattr(torch.ops.own, name)

    return implement


def save_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*(t for t in inputs if isinstance(t, torch.Tensor)))


def backward_of_product(ctx: Any, g: torch.Tensor) -> Any:
    x, w = ctx.saved_tensors
    return g @ w.t().to(g.dtype), x.t().to(g.dtype) @ g
