"""A step that comes later, that no plan brings under the budget, and that evictions carry."""

import torch
from torch import nn

import snug


def test_evictions_hold_the_budget_and_the_session_says_so():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 1))
    small, large = torch.randn(256, 256), torch.randn(4096, 256)

    def step(b):
        return model(b).square().mean()

    step(large).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    budget = snug.plan(step, large).floor - 300 * 1024
    with snug.fit(step, small, budget) as session:
        for _ in range(3):
            model.zero_grad()
            session.backward(large)
            session._core.finish_searches()
            assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected))
            assert session.last_step.evictions > 0
        # The first was an unknown one, the second was recorded.
        assert not session.last_step.followed_plan
        assert session.last_step.divergence == "no plan of this step fits the budget"
        assert session.plan.budget == budget < session.plan.predicted_peak == session.plan.unplanned_peak
        assert "no plan fits: evictions hold the budget" in str(session.plan)
        model.zero_grad()
        session.backward(small)
        assert session.last_step.followed_plan
