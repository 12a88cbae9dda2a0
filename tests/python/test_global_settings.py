"""Replays run under the settings of the process that the forward pass had: precision of products, oneDNN, denormal numbers."""

import contextlib
import threading

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
def backend_precision(name):
    """Products inherit that of their backend."""
    mkldnn = torch.backends.mkldnn
    mkldnn.fp32_precision = name
    try:
        yield
    finally:
        mkldnn.fp32_precision = "ieee"


@contextlib.contextmanager
def flushed():
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


SETTINGS = {
    "precision": lambda: precision("medium"),
    "precision of the backend": lambda: backend_precision("bf16"),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "denormal numbers": flushed,
}


@pytest.fixture
def task():
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU())])
    x = torch.randn(700, 128)
    model(x).square().mean().backward()  # the first products of a process may have other bits
    return model, x


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("where", ["region", "rerun", "session"])
def test_of_the_forward_pass_alone(task, name, where):
    model, x = task
    changes = [False]

    def run(batch):
        if name == "denormal numbers":
            batch = batch * 1e-38
            return (model[0](batch) + batch * 1e-3).square().sum() * 1e30 + (batch * 0.1 * 1e36 * model[0].weight[0]).sum()
        return model(batch).square().mean()

    def forward(batch):
        with SETTINGS[name]() if changes[0] else contextlib.nullcontext():
            return run(batch)

    def gradients(step):
        found = []
        for changes[0] in (False, True, True):  # from the second step on, whose replays are not all compared
            model.zero_grad()
            step()
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        changes[0] = False
        return found

    def in_region():
        with snug.Region(snug.Recompute()) as region:
            loss = forward(x)
        loss.backward()
        assert region.replayed_ops > 0

    def rerun():
        with SETTINGS[name]() if changes[0] else contextlib.nullcontext():
            loss = snug.checkpoint(run, x, mode=snug.Rerun())
        loss.backward()

    expected = gradients(lambda: forward(x).backward())
    count = len(expected) // 3
    if all(map(torch.equal, expected[:count], expected[count : 2 * count])):
        pytest.skip("the setting changes no bits on this processor")
    if where == "session":
        with snug.fit(forward, x, "90%" if name == "denormal numbers" else "75%") as session:
            found = gradients(lambda: session.backward(x))
            assert session.last_step.replayed_ops > 0
    else:
        found = gradients(in_region if where == "region" else rerun)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.get_float32_matmul_precision() == "highest" and torch.backends.mkldnn.enabled
    assert torch.tensor([1e-40]).mul(1).item() > 0


def test_threads_whose_replays_overlap_leave_the_settings_as_they_were(task):
    """Each replay of one goes on while another thread's begins and ends."""
    begun, others_are_over = threading.Barrier(2), threading.Barrier(2)

    @torch.library.custom_op("global_settings::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        if in_backward[0]:
            begun.wait(60)
            others_are_over.wait(60)
        return x * 2

    waits.register_autograd(lambda ctx, g: g * 2)
    _, x = task
    in_backward = bytearray(1)
    losses = []
    for _ in range(2):
        w = torch.randn(128, 128, requires_grad=True)
        with torch.backends.mkldnn.flags(enabled=False), snug.Region(snug.Recompute(), verify_replay=False):
            losses.append(waits(x @ w).sin().sum())
    in_backward[0] = 1
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.mkldnn.enabled
