"""Eleven architectures at 60 and 40 % of what their step takes beyond its static memory: every bit is the same, and the
cap holds."""

import copy

import pytest
import torch
from conftest import DEVICE, allocated, reset_peak

import snug
from architectures import NAMES, make


# The others are built of the same operators as these.
OFTEN = [("llama", False), ("resnet", False), ("unet", True)]


@pytest.mark.skipif(DEVICE != "hpu", reason="another device has bits of its own")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if (n, False) in OFTEN else pytest.mark.long) for n in NAMES])
def test_a_device_that_the_cpu_plays_has_its_bits(name):
    model, batch = make(name)
    twin = copy.deepcopy(model).cpu()

    def gradients(m, b):
        torch.manual_seed(3)
        out = m(**b)
        getattr(out, "loss", out).backward()
        return [p.grad.cpu() for p in m.parameters() if p.grad is not None]

    there = gradients(model, batch)
    with torch.device("cpu"):
        here = gradients(twin, {key: value.cpu() for key, value in batch.items()})
    assert len(here) == len(there) > 10
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    assert [name for name, a, b in zip(names, here, there) if not torch.equal(a, b)] == []


@pytest.mark.parametrize(
    ("name", "amp"),
    [
        pytest.param(n, a, marks=[] if (n, a) in OFTEN else pytest.mark.long, id=f"{n}-{'autocast' if a else 'fp32'}")
        for n in NAMES
        for a in (False, True)
    ],
)
def test_is_bitwise_the_same(name, amp):
    model, batch = make(name)

    def step(batch):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
            return model(**batch)

    plan = snug.plan(step, batch)
    static = snug.memory_stats()["allocated"]
    added = plan.unplanned_peak - static
    for share in (0.6, 0.4):
        budget = max(static + int(share * added), plan.floor)
        # In percent the recording itself is without a limit.
        with snug.fit(step, batch, budget=f"{min(100, 100 * (budget + 1) / plan.unplanned_peak)}%") as session:
            budget = session.plan.budget
            compared = snug.verify(step, batch, model, session=session)
            assert snug.memory_stats()["limit"] == budget
            # Without bf16 instructions a convolution's scratch can be the peak: then no plan is lower, nor replays.
            lower = session.plan.predicted_peak < plan.unplanned_peak
            assert lower or amp
            assert (session.last_step.replayed_ops > 0) == lower
            for p in model.parameters():
                p.grad = None
            reset_peak()
            session.backward(batch)
            assert snug.memory_stats()["mapped_peak"] <= budget
        for p in model.parameters():
            p.grad = None
        assert len(compared) > 10
