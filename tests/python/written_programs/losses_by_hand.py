"""Cross entropy as Liger-Kernel has it: a kernel overwrites the logits by their gradient, which is saved for backward. NumPy
stands in for Triton."""

import numpy as np
import torch
from torch import nn

import snug

from .program import Program, gaussian_batches, layers, program

VOCABULARY = 512


def cross_entropy_kernel(logits: torch.Tensor, target: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Overwrites the logits by the gradient of the mean loss over `rows` rows and returns the loss."""
    raw, labels, rows = logits.detach().numpy(), target.numpy(), rows or len(logits)
    at = np.arange(len(raw))
    top = raw.max(axis=1, keepdims=True)
    shifted = np.exp(raw - top)
    total = shifted.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) + top[:, 0] - raw[at, labels]).sum(dtype=np.float32) / rows
    raw[...] = shifted / total
    raw[at, labels] -= 1
    raw /= np.float32(rows)
    return torch.tensor(loss, dtype=torch.float32)


def scaled_by_kernel(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Liger multiplies in place unless the factor is 1."""
    if not torch.equal(factor, torch.ones_like(factor)):
        gradient.numpy()[...] *= factor.item()
    return gradient


class Undeclared(torch.autograd.Function):
    """As Liger's: nothing says that the kernel writes."""

    @staticmethod
    def forward(ctx, logits, target):
        loss = cross_entropy_kernel(logits, target)
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx, g):
        (gradient,) = ctx.saved_tensors
        return scaled_by_kernel(gradient, g), None


class Announced(Undeclared):
    """Raises the version counter after each write."""

    @staticmethod
    def forward(ctx, logits, target):
        loss = cross_entropy_kernel(logits, target)
        torch.autograd.graph.increment_version(logits)
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx, g):
        (gradient,) = ctx.saved_tensors
        gradient = scaled_by_kernel(gradient, g)
        torch.autograd.graph.increment_version(gradient)
        return gradient, None


@torch.library.custom_op("written_programs::cross_entropy", mutates_args=())
def cross_entropy_operator(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy_kernel(logits, target)


snug.declare_operator(cross_entropy_operator, writes=[0])


@torch.library.custom_op("written_programs::cross_entropy_", mutates_args=("logits",))
def cross_entropy_with_schema(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy_kernel(logits, target)


class Declared(Undeclared):
    @staticmethod
    def forward(ctx, logits, target):
        logits = logits.detach()
        loss = cross_entropy_operator(logits, target)
        ctx.save_for_backward(logits)
        return loss


class WithSchema(Undeclared):
    @staticmethod
    def forward(ctx, logits, target):
        logits = logits.detach()
        loss = cross_entropy_with_schema(logits, target)
        ctx.save_for_backward(logits)
        return loss


class FusedLinear(torch.autograd.Function):
    """Liger's fused linear cross entropy: logits in chunks, gradients of input and weight made in forward."""

    @staticmethod
    def forward(ctx, x, weight, target):
        gradient, weight_gradient = torch.zeros_like(x), torch.zeros_like(weight)
        loss = torch.zeros(())
        for begin in range(0, len(x), 64):
            chunk = x[begin:begin + 64].detach()
            logits = chunk @ weight.t()
            loss += cross_entropy_kernel(logits, target[begin:begin + 64], len(x))
            torch.autograd.graph.increment_version(logits)
            gradient[begin:begin + 64] = logits @ weight
            torch.addmm(weight_gradient, logits.t(), chunk, out=weight_gradient)
        ctx.save_for_backward(gradient.detach(), weight_gradient.detach())
        return loss

    @staticmethod
    def backward(ctx, g):
        gradient, weight_gradient = ctx.saved_tensors
        return gradient * g, weight_gradient * g, None


class LigerProgram(Program):
    places = ("100%", "80%", "60%", "recomputed", "region")
    loss_scale = 1.0

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4), nn.Linear(64, VOCABULARY))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = [(x, torch.randint(0, VOCABULARY, (512,))) for x in gaussian_batches(4, 512, 64)]

    def loss_of(self, x, y):
        raise NotImplementedError

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(*batch) * self.loss_scale
        loss.backward()
        self.optimizer.step()
        return loss

    def blocks(self):
        return [self.model]


@program
class LigerUndeclared(LigerProgram):
    may_fail = "verify_replay|increment_version|mark_dirty"

    def loss_of(self, x, y):
        return Undeclared.apply(self.model(x), y)


@program
class LigerUndeclaredScaled(LigerUndeclared):
    """The backward pass writes to what it has saved as well."""

    loss_scale = 0.5


@program
class LigerAnnounced(LigerProgram):
    def loss_of(self, x, y):
        return Announced.apply(self.model(x), y)


@program
class LigerAnnouncedScaled(LigerAnnounced):
    loss_scale = 0.5


@program
class LigerDeclared(LigerProgram):
    def loss_of(self, x, y):
        return Declared.apply(self.model(x), y)


@program
class LigerWithSchema(LigerProgram):
    loss_scale = 0.5

    def loss_of(self, x, y):
        return WithSchema.apply(self.model(x), y)


@program
class LigerFusedLinear(LigerProgram):
    loss_scale = 0.5

    def loss_of(self, x, y):
        return FusedLinear.apply(self.model[:-1](x), self.model[-1].weight, y)

    def blocks(self):
        return list(self.model[:-1])
