"""Comparing a program with plain PyTorch, bit by bit."""
import torch

import snug


def bits(tensors):
    return [None if t is None else t.detach().numpy().tobytes() for t in tensors]


def plain_and(run, parameters, around):
    """Gradients and the state of the generator after run() in plain PyTorch, and after around(run)."""
    results = []
    for how in (lambda f: f().backward(), around):
        for p in parameters:
            p.grad = None
        torch.manual_seed(7)
        how(run)
        results.append((bits([p.grad for p in parameters]), bits([torch.get_rng_state()])))
    return results


def in_region(run, action=None):
    with snug.Region(action or snug.Recompute()) as region:
        loss = run()
    loss.backward()
    assert region.replayed_ops > 0
    return region


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)
