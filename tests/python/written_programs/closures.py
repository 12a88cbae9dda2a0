"""Optimizers that call a closure, and other ways to step: LBFGS, hooks of parameters, optimizers by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class RegressionProgram(Program):
    def __init__(self):
        self.model = nn.Sequential(*layers(64, 3), nn.Linear(64, 4))
        self.batches = [(x, torch.randn(256, 4)) for x in gaussian_batches(4, 256, 64)]

    def loss_of(self, batch):
        return F.mse_loss(self.model(batch[0]), batch[1])


@program
class LBFGSOverASession(RegressionProgram):
    """The closure calls the session."""

    goes_backward = False

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.LBFGS(
            self.model.parameters(), lr=0.5, max_iter=5, history_size=4, line_search_fn="strong_wolfe"
        )

    def fit_options(self):
        return {"optimizer": self.optimizer}

    def step(self, batch):
        return self.loss_of(batch)

    def iteration(self, batch, backward):
        def closure():
            self.optimizer.zero_grad()
            return backward(batch)

        return self.optimizer.step(closure)


@program
class LBFGSInOneStep(RegressionProgram):
    """The step calls LBFGS, whose closure is a micro-batch."""

    may_fail = "second time"

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.5, max_iter=4, history_size=4)

    def step(self, batch):
        def closure():
            self.optimizer.zero_grad()
            with self.micro_batch():
                loss = self.loss_of(batch)
            loss.backward()
            return loss

        return self.optimizer.step(closure).detach()


@program
class SGDWithAClosure(RegressionProgram):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.ASGD(self.model.parameters(), lr=0.05)

    def step(self, batch):
        def closure():
            self.optimizer.zero_grad()
            loss = self.loss_of(batch)
            loss.backward()
            return loss

        return self.optimizer.step(closure)


@program
class GradientHooks(RegressionProgram):
    """Hooks scale and count gradients; a hook after accumulation clips each one."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.Rprop(self.model.parameters(), 0.01)
        self.model.register_buffer("norms", torch.zeros(8))
        for i, p in enumerate(self.model.parameters()):
            p.register_hook(lambda g, i=i: self.scaled(g, i))
            p.register_post_accumulate_grad_hook(self.clipped)

    @staticmethod
    def clipped(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    def scaled(self, gradient, index):
        self.model.norms[index] += gradient.norm()
        return gradient * (1 + 0.1 * index)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        return loss


@program
class GradientNoise(RegressionProgram):
    """Differentially private: gradients of each example by torch.func, clipped and noisy, written to .grad by hand."""

    may_fail = "backward"

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def step(self, batch):
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}

        def loss_of_one(parameters, x, y):
            return F.mse_loss(torch.func.functional_call(self.model, parameters, (x[None],)), y[None])

        loss = self.loss_of(batch)
        loss.backward()
        each = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(parameters, batch[0][:32], batch[1][:32])
        for name, p in self.model.named_parameters():
            norms = each[name].flatten(1).norm(dim=1)
            clipped = each[name] * (1 / norms.clamp(min=1)).view(-1, *[1] * p.dim())
            p.grad = clipped.mean(0) + 0.01 * torch.randn_like(p)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss
