"""A small network, its batches and an optimizer of one's own, for tests of steps and optimizers."""

import torch
from torch import nn


def net(width=64, depth=6):
    torch.manual_seed(0)
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.BatchNorm1d(width), nn.Linear(width, 4))


def batches(count, size=512, width=64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * size, width, generator=generator)
    y = torch.randint(0, 4, (count * size,), generator=generator)
    return x, y


def bits(tensors):
    return [(name, tensor.dtype, tensor.detach().clone()) for name, tensor in tensors]


def same(one, other):
    assert len(one) == len(other)
    for (name, dtype, a), (other_name, other_dtype, b) in zip(one, other, strict=True):
        assert name == other_name and dtype == other_dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7)), name


class Lion:
    """An optimizer with the interface of torch.optim's, and nothing else of it."""

    def __init__(self, parameters, lr=1e-3):
        self.param_groups = [{"params": list(parameters), "lr": lr}]
        self.state = {}

    def zero_grad(self):
        for p in self.param_groups[0]["params"]:
            p.grad = None

    def state_dict(self):
        return {"state": self.state, "param_groups": [{"lr": g["lr"]} for g in self.param_groups]}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state.setdefault(p, {}).setdefault("m", torch.zeros_like(p))
                p.add_(torch.sign(momentum.mul(0.9).add(p.grad, alpha=0.1)), alpha=-group["lr"])
                momentum.mul_(0.99).add_(p.grad, alpha=0.01)
