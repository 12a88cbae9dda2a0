"""Eleven architectures at 60 and 40 % of what their step takes beyond its static memory: every bit is the same, and the
cap holds."""

import pytest
import torch

import snug
from architectures import NAMES, make


# The others are built of the same operators as these.
OFTEN = [("llama", False), ("resnet", False), ("unet", True)]


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
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
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
            snug._core.reset_peak("cpu")
            session.backward(batch)
            assert snug.memory_stats()["mapped_peak"] <= budget
        for p in model.parameters():
            p.grad = None
        assert len(compared) > 10
