"""Context managers and settings that decorate functions: each call runs in a context of its own."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


def decorated(what: str, function: Function, call: Callable[..., Any]) -> Function:
    """Returns a function that passes its arguments to `call`, with the name and the documentation of `function`.

    A staticmethod or classmethod stays one. A torch.nn.Module gives a function that calls it.

    Args:
        what: The decorator's name, for messages.
        function: The function to decorate.
        call: Is called as call(function, args, kwargs) for each call of the result.

    Raises:
        UsageError: `function` cannot be called, is a class, or is a generator or a coroutine function, whose body runs
            after the call has returned.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(what, function.__func__, call))
    if isinstance(function, type) or not callable(function):
        kind = f"the class {function.__name__}" if isinstance(function, type) else f"of type {type(function).__name__}"
        raise UsageError(f"{what}: it decorates functions, and this is {kind}; decorate a function or a method")
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise UsageError(
            f"{what}: the body of the generator or coroutine {getattr(function, '__qualname__', function)} runs after "
            "its call has returned; decorate the function that computes inside"
        )
    # A module's attributes are its state, which a copy would miss.
    updated = functools.WRAPPER_UPDATES if inspect.isroutine(function) else ()

    @functools.wraps(function, updated=updated)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return call(function, args, kwargs)

    return inner  # type: ignore[return-value]


class CallContext(contextlib.ContextDecorator):
    """A context manager that decorates functions as well. Each call enters a new one, in recursion and threads too."""

    def _recreate_cm(self) -> Any:
        """Returns a new, equal context manager, as contextlib.ContextDecorator asks for. Subclasses override it."""
        raise NotImplementedError

    def __call__(self, function: Function) -> Function:
        """Returns a function whose calls run inside of a new context each.

        Raises:
            UsageError: `function` is a class, a generator or a coroutine function, or cannot be called.
        """

        def call(inside: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with self._recreate_cm():
                return inside(*args, **kwargs)

        return decorated(type(self).__name__, function, call)
