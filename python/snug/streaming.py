"""Weights, and what optimizers keep of them, that are larger than the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from . import _core
from .devices import device_named
from .errors import UsageError
from .sizes import Size, bytes_of


class StreamedTensors:
    """Tensors whose contents live on the host or on a disk, and are in a window of the device's memory while operators use
    them. What runs is bit for bit what would run without. Give it to fit, as `streamed`, in place of host_budget and
    disk_budget: the plan says how large the window is, and values go to the same places.

        streamed = snug.StreamedTensors(model.parameters(), host_budget="64GiB")
        session = snug.fit(step, batch, "8GiB", optimizer=optimizer, streamed=streamed)

    tensors: parameters, buffers, whatever operators use; those of less than min_bytes stay. Gradients of parameters leave
    where they have been accumulated, and what is made by `zeros_like` of one of them, as optimizers make their moments,
    is streamed as well. host_budget: memory of the host outside of all budgets; disk_budget: room in a file without a
    name in the folder that TMPDIR names; both: what the host has no room for goes to the disk; none: of an accelerator all goes
    to the host, of the CPU to the disk. device: where they are used; by default where they are.

    Their addresses are none while nobody uses them: data_ptr(), torch.save, NumPy, printing and the like need a clone() of
    the tensor, or bring_back() first; NumPy does not say so. Make it, use it and let go of it in one thread, and use the
    tensors there. Clip with foreach=False: operators over all gradients at once need all of them in the budget, and so do
    GradScaler and optimizers with foreach=True.
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
        """Their contents leave the device's memory."""
        if isinstance(tensors, (torch.Tensor, torch.nn.Module, Mapping)) or not isinstance(tensors, Iterable):
            raise UsageError(f"streamed: it is a {type(tensors).__name__}; give a list of tensors, as model.parameters()")
        given = list(tensors)
        for tensor in given:
            if not isinstance(tensor, torch.Tensor):
                raise UsageError(f"streamed: a {type(tensor).__name__} is among them; give a list of tensors, as model.parameters()")
        self._core.add(given)

    def bring_back(self) -> None:
        """All are in the device's memory again, and none of them is streamed. There must be room: close the session first,
        whose limit holds for the whole process."""
        self._core.bring_back()

    @property
    def bytes(self) -> int:
        """Of all that is streamed."""
        return self._core.bytes

    @property
    def window(self) -> int:
        """Bytes of the device's memory that the last fit gave them; 0 before."""
        return self._core.window

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes that have come to the window, and gone from it, so far."""
        return self._core.copied_in, self._core.copied_out

    def __repr__(self) -> str:
        return f"StreamedTensors({self.bytes} bytes, a window of {self.window})"
