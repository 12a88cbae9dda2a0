"""Memory that PyTorch shares with others, who write it and raise no version."""

import numpy as np
import pytest
import torch
from conftest import only_on_the_cpu
from torch import nn

import snug


def make(seed=0):
    torch.manual_seed(seed)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 1)), torch.randn(512, 256)


@only_on_the_cpu("NumPy's memory")
@pytest.mark.parametrize("shared", ["from_numpy", "numpy"])
def test_what_is_filled_anew_before_backward_is_refused(shared):
    model, x = make()
    if shared == "from_numpy":
        memory = np.zeros((512, 256), np.float32)
        noise = torch.from_numpy(memory)
    else:
        noise = torch.zeros(512, 256)
        memory = noise.numpy()
    refills = False

    def step(b):
        memory[:] = 1.0
        h = model[:2](b) * noise.sin()
        if refills:
            memory[:] = 2.0
        return model[2:](h).square().mean()

    step(x).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with snug.fit(step, x, "85%") as session:
        session.backward(x)
        assert session.last_step.replayed_ops > 0
        assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected))
        refills = True
        with pytest.raises(snug.Error, match="something that PyTorch does not see, as NumPy does"):
            session.backward(x)


@only_on_the_cpu("NumPy's memory")
def test_a_buffer_that_is_filled_between_steps_is_a_batch():
    model, x = make()
    memory = x.numpy().copy()
    batch = torch.from_numpy(memory)

    def step(b):
        return model((b * 2).sin()).square().mean()

    expected = {}
    for value in (0.5, 0.25):
        step(x * value).backward()
        expected[value] = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
    with snug.fit(step, batch, "85%") as session:
        for value, gradients in expected.items():
            memory[:] = x.numpy() * value
            model.zero_grad()
            session.backward(batch)
            assert session.last_step.followed_plan and session.last_step.replayed_ops > 0
            assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), gradients))
