"""Networks trained on their own derivatives: a physics-informed network, gradient penalties, score matching, Hamiltonians."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, program


def tower(inputs, outputs, width=48):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs))


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class PhysicsProgram(Program):
    inputs, outputs = 2, 1

    def __init__(self):
        self.model = tower(self.inputs, self.outputs)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = [torch.rand(512, 2) for _ in range(4)]

    def loss_of(self, x):
        raise NotImplementedError

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.loss_of(x)
        loss.backward()
        self.optimizer.step()
        return loss


@program
class BurgersEquation(PhysicsProgram):
    """Second derivatives of the output by the inputs, and boundary terms."""

    def loss_of(self, x):
        points, t = (x[:, i:i + 1].clone().requires_grad_() for i in range(2))
        u = self.model(torch.cat([points, t], 1))
        u_t, u_x = derivative(u, t), derivative(u, points)
        residual = u_t + u * u_x - 0.01 * derivative(u_x, points)
        edge = torch.stack([torch.ones(64), torch.rand(64)], 1)
        return residual.square().mean() + self.model(edge).square().mean()


@program
class DenoisingScore(PhysicsProgram):
    """An energy whose gradient is the score; Hutchinson's trace by a product with noise."""

    def loss_of(self, x):
        x = x.detach().requires_grad_()
        score = -derivative(self.model(x).sum(), x)
        v = torch.randn_like(x)
        product = torch.autograd.grad((score * v).sum(), x, create_graph=True)[0]
        return ((product * v).sum(1) + 0.5 * score.square().sum(1)).mean()


@program
class Hamiltonian(PhysicsProgram):
    """With torch.func: the gradient of the energy for each row by vmap, differentiated by backward()."""

    broken = "plans do not count what autograd saves inside of torch.func.grad: the predicted peak is too low"
    broken_in = ("100%", "80%", "60%")

    def __init__(self):
        super().__init__()
        self.batches = [torch.rand(4096, 2) for _ in range(4)]

    def loss_of(self, x):
        parameters = dict(self.model.named_parameters())

        def energy(row):
            return torch.func.functional_call(self.model, parameters, (row,)).squeeze()

        gradient = torch.func.vmap(torch.func.grad(energy))(x)
        return F.mse_loss(torch.stack([gradient[:, 1], -gradient[:, 0]], 1), x.flip(1))


@program
class JacobianPenalty(PhysicsProgram):
    """torch.autograd.functional.jvp and vjp in a loss."""

    outputs = 2

    def loss_of(self, x):
        y, product = torch.autograd.functional.jvp(self.model, x, torch.randn_like(x), create_graph=True)
        _, other = torch.autograd.functional.vjp(self.model, x, torch.randn_like(y), create_graph=True)
        return F.mse_loss(y, x) + 0.1 * product.square().mean() + 0.1 * other.square().mean()


@program
class ForwardMode(PhysicsProgram):
    """A directional derivative by forward-mode AD, and backward() through it."""

    outputs = 2
    may_fail = "forward"

    def loss_of(self, x):
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            y = self.model(forward_ad.make_dual(x, torch.randn_like(x)))
            primal, tangent = forward_ad.unpack_dual(y)
            return F.mse_loss(primal, x) + 0.1 * tangent.square().mean()
