"""Plans that move what autograd saves to the host's memory, or to a disk."""
import pytest
import torch

import snug


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(256, 256), torch.nn.GELU()] * 8)


def step_of(model):
    return lambda batch: model(batch).square().mean()


@pytest.mark.parametrize("budget", ["host_budget", "disk_budget"])
def test_a_plan_that_may_move_has_the_bits_of_the_plain_step(budget):
    model, x = net(), torch.randn(4096, 256)
    step = step_of(model)
    step(x).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with snug.fit(step, x, "50%", **{budget: "1GiB"}) as session:
        for _ in range(3):
            model.zero_grad()
            session.backward(x)
            assert session.last_step.followed_plan and session.last_step.evictions == 0, session.last_step
        assert session.last_step.moved_bytes > 0 or session.last_step.replayed_ops > 0
        assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters()))
    model.zero_grad()
    assert "gradient of 0.weight" in snug.verify(step, x, model, "50%", **{budget: 1 << 30})


def test_a_disk_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    model, x = net(), torch.randn(1024, 256)
    with pytest.raises(snug.Error, match="/no/such/folder"):
        snug.fit(step_of(model), x, "60%", disk_budget="1GiB")


def test_without_a_budget_for_the_host_nothing_is_moved():
    model, x = net(), torch.randn(1024, 256)
    with snug.fit(step_of(model), x, "60%") as session:
        session.backward(x)
        assert session.last_step.moved_bytes == 0


def test_a_share_is_no_budget_for_the_host():
    model, x = net(), torch.randn(64, 256)
    with pytest.raises(snug.UsageError, match="host_budget takes bytes"):
        snug.fit(step_of(model), x, "60%", host_budget="50%")
    with pytest.raises(snug.UsageError, match="disk_budget takes bytes"):
        snug.fit(step_of(model), x, "60%", disk_budget="50%")
