"""The network that each case is a layer of, and what is expected of a case."""
import collections
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import gelu

ROWS, WIDTH = 1536, 64

CALLS: collections.Counter[str] = collections.Counter()  # of kernels, by the operator's name
STATE: dict[str, Any] = {}  # what operators keep outside of their arguments
CACHE: dict[str, Any] = {}  # the same, where its contents do not matter
LIBRARY = torch.library.Library("own", "FRAGMENT")


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program and what snug must make of it. By default each bit is equal in every place.

    error: a pattern of the error that is raised where the operator is replayed; None: the bits are equal.
    counts: the operator whose kernel CALLS counts. replays: how often a region that recomputes everything replays it, in
    each layer; None where the region may keep instead what a buffer or parameter holds after the write.
    replayed_when_mm_is_kept: whether a region that keeps products still replays it.
    repeats: whether a second backward pass over a kept graph is right in plain PyTorch.
    undone: whether fit can put back everything that the step writes.
    keeps: whether a region that keeps everything replays nothing.
    broken: what snug gets wrong, in the places of broken_in. Where a plan decides whether that shows, it is not run.
    """

    name: str
    layer: Callable[["Network", torch.Tensor, int], torch.Tensor]
    error: str | None = None
    counts: str | None = None
    replays: int | None = 1
    replayed_when_mm_is_kept: bool = True
    repeats: bool = True
    undone: bool = True
    keeps: bool = True
    broken: str = ""
    broken_in: tuple[str, ...] = ("recompute", "twice", "selective", "all recomputed")
    autocast: bool = True
    step: Callable[["Network", torch.Tensor], torch.Tensor] | None = None


CASES: list[Case] = []


def case(name: str, **expected: Any) -> Callable[[Any], Any]:
    def add(layer: Any) -> Any:
        CASES.append(Case(name, layer, **expected))
        return layer

    return add


class Network:
    """Products, each with what the case puts after it, GELU and tanh. Has all that a layer may use."""

    def __init__(self, case: Case, autocast: bool, layers: int) -> None:
        self.case, self.autocast, self.layers = case, autocast, layers
        self.plain = False  # whether a layer leaves out what is snug's
        random_ = torch.Generator().manual_seed(3)
        self.weights = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=random_) / 6) for _ in range(layers)]
        for w in self.weights:
            w.main_grad = torch.zeros_like(w)
        self.scales = [torch.nn.Parameter(torch.rand(WIDTH, generator=random_) + 0.5) for _ in range(layers)]
        self.buffers = [torch.zeros(WIDTH) for _ in range(layers)]
        self.history = torch.zeros(layers, WIDTH)
        self.generator = torch.Generator()
        self.batches = [torch.randn(ROWS, WIDTH, generator=random_) for _ in range(2)]
        self._start = [t.detach().clone() for t in self.parameters]
        self.restore()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [*self.weights, *self.scales]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back to where it was, the state of operators and of random generators with it."""
        for p, start in zip(self.parameters, self._start, strict=True):
            p.copy_(start)
            p.grad = None
        for b in [*self.buffers, self.history, *(w.main_grad for w in self.weights)]:
            b.zero_()
        self.generator.manual_seed(11)
        CALLS.clear()
        STATE.clear()
        CACHE.clear()
        STATE.update(counter=0, amax=torch.zeros(self.layers), layers=self.layers)
        STATE["generator"] = torch.Generator().manual_seed(5)
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)

    @torch.no_grad()
    def update(self) -> None:
        for p in self.parameters:
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)
                p.grad = None

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            if self.case.step is not None:
                return self.case.step(self, batch)
            return self.chain(batch).float().square().mean()

    def chain(self, h: torch.Tensor) -> torch.Tensor:
        for i, w in enumerate(self.weights):
            h = torch.tanh(gelu(self.case.layer(self, h @ w, i)))
        return h

    def state(self) -> dict[str, Any]:
        """What a step may change of the network and of what operators keep; not the gradients."""
        kept = {k: bits(v.get_state() if isinstance(v, torch.Generator) else v) for k, v in STATE.items()}
        return {
            "parameters": [bits(p) for p in self.parameters],
            "main_grads": [bits(w.main_grad) for w in self.weights],
            "buffers": [bits(b) for b in [*self.buffers, self.history]],
            "the generator of PyTorch": bits(torch.get_rng_state()),
            "a generator of the program": bits(self.generator.get_state()),
            "the generators of Python and NumPy": (random.getstate(), np.random.get_state()[1].tobytes()),
            "the state of operators": kept,
        }

    def gradients(self) -> list[bytes | None]:
        return [bits(p.grad) for p in self.parameters]


def bits(value: Any) -> Any:
    """A hash of the bytes of a tensor, or what is none as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return hashlib.sha1(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()).digest()


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor as NumPy sees it: what is written there, PyTorch does not notice."""
    tensor = tensor.detach()
    return (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()
