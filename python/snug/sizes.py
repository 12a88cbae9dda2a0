"""Sizes in bytes, as numbers or as text: "8GiB"."""

from __future__ import annotations

from . import _core

Size = int | str


def parse_bytes(size: Size) -> int:
    """Returns the bytes of a size.

    Args:
        size: A number of bytes, or a text: "8GiB", "512 MiB", "1.5GB".

    Returns:
        The bytes.

    Raises:
        UsageError: The text cannot be parsed, or the size is of another type.

    Example:
        >>> snug.parse_bytes("1GiB")
        1073741824
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        from .errors import UsageError, shown

        raise UsageError(f'size: {shown(size)} is a {type(size).__name__}; write bytes as a number or as text: "8GiB"')
    if isinstance(size, str):
        return _core.parse_bytes(size)
    if not -(1 << 62) < size < 1 << 62:
        from .errors import UsageError

        raise UsageError(f"size: {size} bytes is more than any machine has")
    return size


def bytes_of(what: str, size: Size) -> int:
    """parse_bytes of what has that name in errors."""
    from .errors import UsageError, reason_of

    try:
        return parse_bytes(size)
    except UsageError as error:
        raise UsageError(f"{what}: {reason_of(error)}") from None


def format_bytes(size: int) -> str:
    """Returns a size as text, in binary units.

    Args:
        size: Bytes.

    Returns:
        The number with one decimal, and its unit.

    Example:
        >>> snug.format_bytes(8 << 30)
        '8.0 GiB'
    """
    return _core.format_bytes(size)
