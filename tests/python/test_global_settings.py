"""Replays run under the settings of the process that the forward pass had: precision of products, oneDNN, determinism."""

import contextlib

import pytest
import torch
from conftest import only_on_the_cpu
from torch import nn

import snug

pytestmark = only_on_the_cpu("products of the CPU")


@contextlib.contextmanager
def precision(name):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {
    "precision": lambda: precision("medium"),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic": deterministic,
}


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("where", ["region", "session"])
def test_of_the_forward_pass_alone(name, where):
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU())])
    x = torch.randn(700, 128)
    model(x).square().mean().backward()  # the first products of a process may have other bits
    changes = [False]

    def forward(batch):
        with SETTINGS[name]() if changes[0] else contextlib.nullcontext():
            return model(batch).square().mean()

    def gradients(run):
        found = []
        for changes[0] in (False, True, True):  # from the second step on, whose replays are not compared
            model.zero_grad()
            run()
            found += [p.grad.clone() for p in model.parameters()]
        changes[0] = False
        return found

    def in_region():
        with snug.Region(snug.Recompute()) as region:
            loss = forward(x)
        loss.backward()
        assert region.replayed_ops > 0

    expected = gradients(lambda: forward(x).backward())
    if where == "region":
        found = gradients(in_region)
    else:
        with snug.fit(forward, x, "75%") as session:
            found = gradients(lambda: session.backward(x))
            assert session.last_step.replayed_ops > 0
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.get_float32_matmul_precision() == "highest" and torch.backends.mkldnn.enabled
    assert not torch.are_deterministic_algorithms_enabled()
