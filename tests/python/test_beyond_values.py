"""What reads tensors that are more than geometry over memory runs once."""

import torch
from conftest import only_on_the_cpu

import snug


@only_on_the_cpu("sparse tensors")
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
