"""Megatron-LM's linear layer with gradient accumulation fusion: the backward pass adds the weight's gradient to `main_grad`."""

import torch
from torch import nn

from .program import Program, gaussian_batches, program


class FusedAccumulation(torch.autograd.Function):
    """LinearWithGradAccumulationAndAsyncCommunication in one process: .grad stays a dummy."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return torch.matmul(x, weight.t()) + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        flat, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        weight.main_grad.addmm_(flat.t(), inputs)  # wgrad_gemm_accum_fp32
        dummy = torch.empty_like(weight) if not hasattr(weight, "grad_added_to_main_grad") else None
        if dummy is None:
            dummy = torch.zeros(weight.shape, dtype=weight.dtype)
            weight.grad_added_to_main_grad = True
        else:
            dummy.zero_()
        return g @ weight, dummy, flat.sum(0)


class MegatronLinear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / 8)
        self.bias = nn.Parameter(torch.zeros(width))
        self.weight.main_grad = torch.zeros_like(self.weight)
        self.weight.grad_added_to_main_grad = False

    def forward(self, x):
        return FusedAccumulation.apply(x, self.weight, self.bias)


class MegatronProgram(Program):
    places = ("100%", "80%", "60%", "recomputed", "region")

    def __init__(self):
        self.model = nn.Sequential(*(m for _ in range(5) for m in (MegatronLinear(64), nn.GELU(), nn.Dropout(0.1))))
        self.main_grads = [m.weight.main_grad for m in self.model if isinstance(m, MegatronLinear)]
        self.batches = gaussian_batches(4, 4, 256, 64)  # micro-batches

    def zero_grad(self):
        for layer in self.model:
            if isinstance(layer, MegatronLinear):
                layer.weight.main_grad.zero_()
                layer.weight.grad_added_to_main_grad = False
        self.model.zero_grad()

    @torch.no_grad()
    def update(self):
        for layer in self.model:
            if isinstance(layer, MegatronLinear):
                layer.weight.sub_(layer.weight.main_grad, alpha=0.05)
                layer.bias.sub_(layer.bias.grad, alpha=0.05)


@program
class MegatronOutside(MegatronProgram):
    """The session runs each micro-batch; the update is outside."""

    goes_backward = False

    def fit_options(self):
        return {"micro_batches": 4, "update": self.update}

    def __init__(self):
        super().__init__()
        self.batches = [batch.unbind() for batch in self.batches]
        self.micro = self.batches

    def step(self, x):
        x = x[0] if isinstance(x, tuple) else x
        return self.model(x).square().mean() / 4

    def iteration(self, batch, backward):
        self.zero_grad()
        losses = [backward(x) for x in batch]
        self.update()
        return torch.stack(losses).sum()


@program
class MegatronInside(MegatronProgram):
    """All micro-batches and the update in one step."""

    def step(self, batch):
        self.zero_grad()
        losses = []
        for x in batch:
            with self.micro_batch():
                losses.append(self.model(x).square().mean() / 4)
            losses[-1].backward()
        self.update()
        return torch.stack(losses).sum().detach()
