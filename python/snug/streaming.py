"""Weights and optimizer state that are larger than the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from . import _core
from .devices import device_named
from .errors import UsageError
from .sizes import Size, bytes_of


class StreamedTensors:
    """Tensors whose contents live on the host or on a disk, and are copied to a window of the device's memory for use.

    Give it to fit as `streamed`; the plan chooses the size of the window, and moves values to the same place. Results
    keep their bits. Gradients of these parameters are offloaded once they are accumulated, and tensors that
    `zeros_like` makes of one of them, as optimizer state, are streamed too.

    A streamed tensor has no address while no operator uses it. Clone it, or call bring_back(), before data_ptr(),
    torch.save, NumPy (which does not notice) or printing. Make, use and delete the object in one thread. Operators over
    all gradients at once need all of them in the budget: clip with foreach=False, without GradScaler.

    Args:
        tensors: Parameters, buffers and other tensors that operators use.
        host_budget: Bytes on the host, outside of all budgets. With both budgets the disk takes what the host cannot.
            With none of them, tensors of an accelerator go to the host, and those of the CPU to the disk.
        disk_budget: Bytes of an unlinked file in TMPDIR.
        device: The device that uses them; by default their own.
        min_bytes: Tensors with fewer bytes are not streamed.

    Raises:
        UsageError: A size cannot be parsed, or `tensors` is no list of tensors.

    Example:
        >>> streamed = snug.StreamedTensors(model.parameters(), host_budget="64GiB")
        >>> session = snug.fit(step, batch, "8GiB", optimizer=optimizer, streamed=streamed)
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor] = (),
        *,
        host_budget: Size | None = None,
        disk_budget: Size | None = None,
        device: str | torch.device | None = None,
        min_bytes: Size = 64 << 10,
    ) -> None:
        self._core = _core.StreamedTensors(
            None if device is None else device_named(device),
            None if host_budget is None else bytes_of("streamed: host_budget", host_budget),
            None if disk_budget is None else bytes_of("streamed: disk_budget", disk_budget),
            bytes_of("streamed: min_bytes", min_bytes),
        )
        self.add(tensors)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Streams more tensors.

        Args:
            tensors: As of the constructor.

        Raises:
            UsageError: `tensors` is no list of tensors.
        """
        if isinstance(tensors, (torch.Tensor, torch.nn.Module, Mapping)) or not isinstance(tensors, Iterable):
            raise UsageError(f"streamed: it is a {type(tensors).__name__}; give a list of tensors, as model.parameters()")
        given = list(tensors)
        for tensor in given:
            if not isinstance(tensor, torch.Tensor):
                raise UsageError(f"streamed: a {type(tensor).__name__} is among them; give a list of tensors, as model.parameters()")
        self._core.add(given)

    def bring_back(self) -> None:
        """Copies all tensors back to the device's memory and streams none. Close the session first, whose limit holds."""
        self._core.bring_back()

    @property
    def bytes(self) -> int:
        """Bytes of all streamed tensors."""
        return self._core.bytes

    @property
    def window(self) -> int:
        """Bytes of the window that the latest fit chose; 0 before."""
        return self._core.window

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes copied to the window and from it, so far."""
        return self._core.copied_in, self._core.copied_out

    def __repr__(self) -> str:
        return f"StreamedTensors({self.bytes} bytes, a window of {self.window})"
