"""What reads tensors that are more than geometry over memory runs once; and scalers that are there and off."""

import torch
from torch import nn

import snug


def test_a_sparse_matrix_that_the_step_writes():
    torch.manual_seed(7)
    x, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)

    def step(b):
        adjacency = torch.eye(64).mul(3).to_sparse()
        y = (torch.sparse.mm(adjacency, b).sin() @ weight).cos()
        for _ in range(3):
            y = (y @ weight).sin()
        adjacency.mul_(2)
        return y.square().mean()

    step(x).backward()
    expected, weight.grad = weight.grad, None
    with snug.fit(step, x, snug.plan(step, x).floor + (64 << 10)) as session:
        session.backward(x)
        assert session.last_step.replayed_ops > 0
    assert torch.equal(weight.grad, expected)


def test_a_scaler_that_is_off_and_unscales():
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(b):
        optimizer.zero_grad()
        loss = model(b).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    with snug.fit(step, x, "100%") as session:
        before = model.weight.detach().clone()
        session.backward(x)
        assert session.last_step.followed_plan
        assert not torch.equal(model.weight, before)
