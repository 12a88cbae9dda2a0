"""Logits that are not made until they are asked for, so that their loss never has all of them: for any model, unedited."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from . import _core
from ._decorating import CallContext
from .errors import Error, UsageError, shown
from .sizes import Size, bytes_of

# Projections of at least so many columns are taken for logits of a vocabulary, if a table of as many embeddings has been looked up
# in, or if they are more than so many for each row. What is none is made at its first use, with the bits that it would have had.
_FEWEST, _MORE_THAN_EACH = 4096, 8
_IGNORED = -100
DEFAULT_TILE = 32 << 20


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# Does to a tensor (rows..., columns) what is done to the logits, whose last dimension it leaves alone.
_Move = Callable[[torch.Tensor], torch.Tensor]


class _Projection:
    """What logits are made of, in the types that autocast has there, and the grad mode."""

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = bias.to(dtype) if bias is not None else None
        self.hidden, self.weight, self.bias = hidden, weight, bias
        parts = [t for t in (hidden, weight, bias) if t is not None]
        self.graded = torch.is_grad_enabled() and any(t.requires_grad for t in parts)
        self._versions = [(t, None if t.is_inference() else t._version) for t in parts]

    def check(self) -> None:
        """That they are still what they were when the logits would have been computed."""
        if any(version is not None and t._version != version for t, version in self._versions):
            raise Error(
                "tiled_loss: logits are asked for after what they are made of, the hidden states or the output matrix, was "
                "written in place, by an optimizer perhaps; ask before that, or leave tiled_loss out"
            )

    def real(self) -> torch.Tensor:
        self.check()
        # Also where tiled_loss is on, and would make it lazy again.
        with torch.autocast(self.hidden.device.type, enabled=False), torch._C.DisableTorchFunction():
            return F.linear(self.hidden, self.weight, self.bias)


class LazyLogits(torch.Tensor):
    """F.linear(hidden, weight, bias) that is not computed yet, as tiled_loss returns it in place of logits.

    It knows its shape, dtype and device. float(), to(), contiguous(), view, reshape, flatten and slices of rows return a
    LazyLogits. F.cross_entropy computes its loss a few rows at a time. Every other operation computes the logits, once.

    Example:
        >>> with snug.tiled_loss():
        ...     logits = lm_head(hidden)
        >>> logits.materialize()
    """

    _projection: _Projection
    _parent: LazyLogits | None
    _move: _Move
    _made: torch.Tensor | None
    _tile: int

    @staticmethod
    def __new__(
        cls,
        projection: _Projection,
        shape: torch.Size,
        dtype: torch.dtype,
        tile: int,
        parent: LazyLogits | None = None,
        move: _Move = _same,
    ) -> LazyLogits:
        needs = torch.is_grad_enabled() and projection.graded
        self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=dtype, device=projection.hidden.device, requires_grad=needs
        )
        self._projection, self._tile, self._parent, self._move, self._made = projection, tile, parent, move, None
        if needs:
            with torch._C.DisableTorchFunctionSubclass():
                self.register_hook(_refuse_gradient)
        return self

    def materialize(self) -> torch.Tensor:
        """The tensor itself."""
        if self._made is not None:
            return self._made
        self._refuse_graph()
        graded = self._projection.graded
        with torch.set_grad_enabled(graded and torch.is_grad_enabled()):
            base = self._parent.materialize() if self._parent is not None else self._projection.real()
            made = self._move(base).to(self.dtype)
        # What is made without gradients, for a metric say, is not what a loss is made of.
        if torch.is_grad_enabled() or not graded:
            self._made = made
        return made

    @property
    def _is_real(self) -> bool:
        return self._made is not None or (self._parent is not None and self._parent._is_real)

    def _refuse_graph(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            through = self.grad_fn is not None
        if through:
            _refuse_gradient(self)

    def _moved(self, move: _Move, shape: torch.Size) -> LazyLogits:
        return LazyLogits(self._projection, shape, self.dtype, self._tile, self, move)

    def _typed(self, dtype: torch.dtype) -> LazyLogits:
        return LazyLogits(self._projection, self.shape, dtype, self._tile, self)

    def _rows(self) -> torch.Tensor:
        """What the rows of logits are made of."""
        return self._move(self._parent._rows() if self._parent is not None else self._projection.hidden)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LazyLogits(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        understood = _UNDERSTOOD.get(func)
        if understood is not None and not args and "input" in kwargs:
            args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
        if understood is not None and args and isinstance(args[0], LazyLogits):
            result = understood(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _writes(func, kwargs):
            with torch.enable_grad():  # what is written stays, whoever writes
                tree_map(_made_real, (args, kwargs))
        return func(*tree_map(_made_real, args), **tree_map(_made_real, kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # From C++, where nothing asks the function above.
        return func(*tree_map(_made_real, args), **tree_map(_made_real, kwargs or {}))


def _refuse_gradient(_: torch.Tensor) -> None:
    raise Error(
        "tiled_loss: logits were given to something that PyTorch tells nothing of, as autograd.Function.apply, and their "
        "gradient would be lost; give it logits.materialize() where they are a snug.LazyLogits, or leave tiled_loss out"
    )


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return "out" in kwargs or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__iand__",
             "__ior__", "__ixor__", "__ilshift__", "__irshift__")


def _made_real(value: Any) -> Any:
    return value.materialize() if isinstance(value, LazyLogits) else value


def _to(logits: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and device != logits.device:
        return NotImplemented
    if dtype is None or dtype == logits.dtype:
        return logits
    return logits._typed(dtype) if dtype == torch.float32 else NotImplemented


def _float(logits: LazyLogits, **kwargs: Any) -> Any:
    return NotImplemented if kwargs else _to(logits, torch.float32)


def _contiguous(logits: LazyLogits, **kwargs: Any) -> Any:
    return NotImplemented if kwargs else logits._moved(lambda t: t.contiguous(), logits.shape)


def _reshape(logits: LazyLogits, *shape: Any, **kwargs: Any) -> Any:
    if kwargs or not shape:
        return NotImplemented
    if len(shape) == 1 and not isinstance(shape[0], int):
        if isinstance(shape[0], torch.dtype):
            return NotImplemented
        (shape,) = map(tuple, shape)
    columns, rows = logits.shape[-1], math.prod(logits.shape[:-1])
    *front, last = shape
    known = math.prod(n for n in front if n != -1)
    if last == -1 and -1 not in front and known == rows:
        last = columns
    if last != columns or front.count(-1) > 1:
        return NotImplemented
    if -1 in front:
        if known == 0 or rows % known:
            return NotImplemented
        front[front.index(-1)] = rows // known
    if math.prod(front) != rows:
        return NotImplemented
    return logits._moved(lambda t: t.reshape(*front, t.shape[-1]), torch.Size((*front, columns)))


def _flatten(logits: LazyLogits, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % logits.dim(), end_dim % logits.dim()
    if last >= logits.dim() - 1 or first > last:
        return NotImplemented
    sizes = logits.shape
    return _reshape(logits, (*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :]))


def _getitem(logits: LazyLogits, index: Any) -> Any:
    index = index if isinstance(index, tuple) else (index,)
    if not all(i is Ellipsis or type(i) is int or isinstance(i, slice) or _picks_rows(i) for i in index):
        return NotImplemented
    used = sum(i is not Ellipsis for i in index)
    counted_from_behind = used < len(index) and index[-1] is not Ellipsis
    if used > logits.dim():
        return NotImplemented
    if used == logits.dim() or counted_from_behind:
        last = next(i for i in reversed(index) if i is not Ellipsis)  # which is of the columns
        if not isinstance(last, slice) or last != slice(None):
            return NotImplemented
    shape = torch.empty(logits.shape, device="meta")[tree_map(_as_meta, index)].shape
    return logits._moved(lambda t: t[index], shape)


def _picks_rows(index: Any) -> bool:
    # How many a mask picks is known when it is read.
    return isinstance(index, torch.Tensor) and not isinstance(index, LazyLogits) and index.dtype == torch.int64


def _as_meta(index: Any) -> Any:
    return index.to("meta") if isinstance(index, torch.Tensor) else index


def _cross_entropy(
    logits: LazyLogits,
    target: Any,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = _IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    plain = weight is None and size_average is None and reduce is None and 0.0 <= label_smoothing <= 1.0
    if not plain or reduction not in ("mean", "sum") or logits.dim() != 2:
        return NotImplemented
    if logits._is_real or isinstance(target, LazyLogits):
        return NotImplemented
    if target.dtype != torch.int64 or target.shape != logits.shape[:1] or target.device != logits.device:
        return NotImplemented
    projection = logits._projection
    projection.check()
    logits._refuse_graph()
    with torch.set_grad_enabled(projection.graded and torch.is_grad_enabled()):
        return _loss_of_rows(logits, target, reduction, ignore_index, label_smoothing)


def _loss_of_rows(
    logits: LazyLogits, target: torch.Tensor, reduction: str, ignored: int, label_smoothing: float
) -> torch.Tensor:
    projection, rows = logits._projection, logits._rows()
    counted = (target != ignored).sum()
    dtype = torch.float32 if torch.is_autocast_enabled(logits.device.type) else logits.dtype
    scale = None
    if rows.dtype == torch.float16:
        # Gradients of the sum, not of the mean, which would vanish before the loss is scaled.
        scale = torch.full((), float(1 << (max(int(counted), 1) - 1).bit_length()), device=logits.device)
    with torch.autocast(logits.device.type, enabled=False):
        loss = _core.linear_cross_entropy(
            rows, projection.weight, target, logits._tile, projection.bias, scale, ignored, label_smoothing
        )
        if reduction == "sum":
            loss = torch.where(counted > 0, loss * counted, torch.zeros_like(loss))
        return loss.to(dtype)


_METADATA = {
    torch.Tensor.shape.__get__,
    torch.Tensor.dtype.__get__,
    torch.Tensor.device.__get__,
    torch.Tensor.layout.__get__,
    torch.Tensor.ndim.__get__,
    torch.Tensor.requires_grad.__get__,
    torch.Tensor.is_cuda.__get__,
    torch.Tensor.is_sparse.__get__,
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.element_size,
    torch.Tensor.is_floating_point,
    torch.Tensor.__len__,
    torch.is_floating_point,
    torch.numel,
}
_UNDERSTOOD: dict[Any, Callable[..., Any]] = {
    torch.Tensor.float: _float,
    torch.Tensor.to: _to,
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.view: _reshape,
    torch.Tensor.reshape: _reshape,
    torch.reshape: _reshape,
    torch.Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    torch.Tensor.__getitem__: _getitem,
    F.cross_entropy: _cross_entropy,
}


class tiled_loss(CallContext, TorchFunctionMode):
    """Computes the cross-entropy of logits over a large vocabulary a few rows at a time. A context manager and a decorator.

    Inside, projections onto a vocabulary are LazyLogits. Their cross-entropy is computed together with the gradients that
    backward will ask for, and takes as much memory as `tile` bytes of logits in place of several times all of them. Sums
    are in another order than PyTorch's. Holds for one thread. `fit(..., allow=["tiled_loss"])` does this to a step. A
    decorated function enters a new one in each call, so calls may nest and run in several threads.

    Args:
        tile: Size of the logits that are computed at a time, 1 byte or more.

    Raises:
        UsageError: The tile is no size.
        Error: Logits are used in a way that would lose their gradient, or after their inputs were written in place.

    Example:
        >>> with snug.tiled_loss():
        ...     loss = model(**batch).loss
        >>> @snug.tiled_loss(tile=8 << 20)
        ... def loss_of(batch): ...
    """

    def __init__(self, tile: Size = DEFAULT_TILE) -> None:
        super().__init__()
        self.tile = bytes_of("tiled_loss: tile", tile)
        if self.tile < 1:
            raise UsageError(f"tiled_loss: tile is {shown(tile)}; give the bytes of logits that are computed at a time, 1 or more")
        self._vocabularies: set[int] = set()

    def _recreate_cm(self) -> tiled_loss:
        return tiled_loss(self.tile)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.embedding:
            self._look_up(*args, **kwargs)
        return func(*args, **kwargs)

    def _look_up(self, input: Any, weight: Any, *_: Any, **__: Any) -> None:
        if isinstance(weight, torch.Tensor) and weight.dim() == 2:
            self._vocabularies.add(weight.shape[0])

    def _is_vocabulary(self, columns: int, width: int) -> bool:
        return columns >= _FEWEST and (columns in self._vocabularies or columns > _MORE_THAN_EACH * width)

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        hidden = input
        plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in (hidden, weight) + ((bias,) if bias is not None else ()))
        if not plain or weight.dim() != 2 or hidden.dim() < 2 or hidden.dtype not in _TYPES:
            return F.linear(hidden, weight, bias)
        columns, width = weight.shape
        if not self._is_vocabulary(columns, width) or hidden.shape[-1] != width:
            return F.linear(hidden, weight, bias)
        projection = _Projection(hidden, weight, bias)
        if projection.hidden.dtype != projection.weight.dtype:
            return F.linear(hidden, weight, bias)  # which refuses it
        return LazyLogits(projection, torch.Size((*hidden.shape[:-1], columns)), projection.hidden.dtype, self.tile)


_TYPES = (torch.float32, torch.bfloat16, torch.float16)
