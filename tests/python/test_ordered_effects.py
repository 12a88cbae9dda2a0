"""Operators for which torch.library has an ordered effect run once, as in torch.utils.checkpoint of PyTorch 2.15."""

import subprocess
import sys

import pytest
import torch
from plain_and import leaf

import snug

runs = bytearray(1)


def define(name):
    @torch.library.custom_op(f"ordered_effects::{name}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        runs[0] += 1
        return x * 2

    operator.register_autograd(lambda ctx, g: g * 2)
    return operator


plain, sent, declared = define("plain"), define("sent"), define("declared")
for effectful in (sent, declared):
    effectful.register_effect(torch.library.EffectType.ORDERED)
snug.declare_operator(declared, draws=False)  # says nothing of a state


@pytest.mark.parametrize("operator, expected", [(plain, 2), (sent, 1), (declared, 1)], ids=["plain", "sent", "declared"])
def test_a_region_replays_what_has_no_effect(operator, expected):
    x, w = torch.randn(8, 8), leaf(8, 8)
    runs[0] = 0
    with snug.Region(snug.Recompute()):
        loss = operator(x @ w).sin().sum()
    loss.backward()
    assert runs[0] == expected


def test_an_effect_adds_to_what_is_declared():
    @torch.library.custom_op("ordered_effects::writes", mutates_args=())
    def writes(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.numpy()[...] += 1
        return x * 2

    writes.register_autograd(lambda ctx, g: (g * 2, None))
    snug.declare_operator(writes, writes=[1])
    writes.register_effect(torch.library.EffectType.ORDERED)
    x, w = torch.randn(8, 8), leaf(8, 8)

    def program():
        state = torch.ones(8, 8)
        before = (x @ w) * state.clone()
        return ((before * writes((x @ w).sin(), state)).sin() * (state * 1)).sum()

    expected = torch.autograd.grad(program(), w)[0]
    with snug.Region(snug.Recompute()):
        loss = program()
    assert torch.equal(torch.autograd.grad(loss, w)[0], expected)


def test_effects_registered_before_snug_is_imported_are_known():
    program = """
import torch
calls = bytearray(1)
@torch.library.custom_op("early::sent", mutates_args=())
def sent(x: torch.Tensor) -> torch.Tensor:
    calls[0] += 1
    return x * 2
sent.register_autograd(lambda ctx, g: g * 2)
sent.register_effect(torch.library.EffectType.ORDERED)
import snug
x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
with snug.Region(snug.Recompute()):
    loss = sent(x @ w).sin().sum()
loss.backward()
print(calls[0])
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.returncode == 0 and child.stdout.strip() == "1", child.stderr


def test_the_profilers_operators_are_left_alone():
    x, w = torch.randn(8, 8), leaf(8, 8)
    with snug.Region(snug.Recompute()) as region:
        with torch.profiler.record_function("part"):
            loss = (x @ w).sin().sum()
    loss.backward()
    assert region.replayed_ops > 0
