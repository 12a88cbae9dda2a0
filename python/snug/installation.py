"""A check of this installation."""

from __future__ import annotations

import platform

import torch

from . import _core
from ._version import built_for, version
from .errors import UsageError
from .sizes import format_bytes


def _gradients_are_the_same() -> str:
    from .actions import Recompute
    from .regions import Region

    w = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(16, 64)

    def run() -> torch.Tensor:
        return torch.dropout(torch.tanh(x @ w), 0.5, True).square().sum()

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = range(torch.accelerator.device_count()) if accelerator is not None else range(0)
    with torch.random.fork_rng(devices=list(devices), device_type=accelerator.type if accelerator is not None else "cuda"):
        torch.manual_seed(1)
        (plain,) = torch.autograd.grad(run(), w)
        torch.manual_seed(1)
        region = Region(Recompute())
        with region:
            loss = run()
        (replayed,) = torch.autograd.grad(loss, w)
    if region.replayed_ops == 0:
        return "nothing was replayed: autograd's saved tensors do not come by snug's hooks"
    if not torch.equal(plain, replayed):
        return "a replayed gradient differs from the plain one"
    return ""


def doctor() -> bool:
    """Prints the versions and devices of this installation, and compares a replayed gradient with a plain one.

    Returns:
        Whether the check passed and snug counts the memory of every GPU.

    Example:
        >>> snug.doctor()
    """
    fault = _gradients_are_the_same()
    stats = _core.memory_stats("cpu")
    rows = [
        ("snug", f"{version}, built for torch {built_for}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("python", platform.python_version()),
        ("memory counted on the CPU", format_bytes(stats["allocated"])),
        ("limit on the CPU", format_bytes(stats["limit"]) if stats["limit"] else "none"),
    ]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    for i in gpus:
        rows.append((f"device cuda:{i}", f"{torch.cuda.get_device_name(i)}, {format_bytes(torch.cuda.mem_get_info(i)[1])}"))
        try:
            _core.memory_stats(f"cuda:{i}")
        except UsageError as error:
            fault = fault or str(error)
    if not gpus:
        rows.append(("accelerator", "none"))
    rows.append(("replay", fault or "bitwise the same gradients"))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows))
    return not fault
