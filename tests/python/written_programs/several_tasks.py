"""Several losses over one trunk, whose gradients are taken apart: PCGrad, GradNorm, uncertainty weights."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class TaskProgram(Program):
    def __init__(self):
        self.model = nn.Sequential(*layers(64, 3, lambda: nn.Dropout(0.1)))
        self.heads = nn.ModuleList(nn.Linear(64, 8) for _ in range(3))
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.heads.parameters()], 1e-3)
        self.batches = [(x, torch.randint(0, 8, (3, 256))) for x in gaussian_batches(4, 256, 64)]

    def losses(self, batch):
        h = self.model(batch[0])
        return [F.cross_entropy(head(h), y) for head, y in zip(self.heads, batch[1], strict=True)]


class PCGradProgram(TaskProgram):
    def project(self, gradients):
        projected = [[g.clone() for g in each] for each in gradients]
        for one in projected:
            others = list(gradients)
            random.shuffle(others)
            for other in others:
                dot = sum((a * b).sum() for a, b in zip(one, other, strict=True))
                if dot < 0:
                    norm = sum(b.square().sum() for b in other)
                    for a, b in zip(one, other, strict=True):
                        a.sub_(b * (dot / norm))
        return [torch.stack(parts).sum(0) for parts in zip(*projected, strict=True)]


@program
class PCGradByBackward(PCGradProgram):
    """As most implementations: backward(retain_graph=True) for each task, gradients copied and cleared between them."""

    error = "second time"
    places = ("100%", "60%")

    def step(self, batch):
        losses, gradients = self.losses(batch), []
        for loss in losses:
            self.optimizer.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append([p.grad.clone() for p in self.model.parameters()])
        return self.finish(losses, gradients)

    def finish(self, losses, gradients):
        for p, g in zip(self.model.parameters(), self.project(gradients), strict=True):
            p.grad = g
        self.optimizer.step()
        return torch.stack(losses).sum().detach()


@program
class PCGradByGrad(PCGradByBackward):
    """With autograd.grad: no .grad is written, so that no backward() is called at all before the update."""

    error = None
    places = ("100%", "60%")

    def step(self, batch):
        losses = self.losses(batch)
        gradients = [torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True) for loss in losses]
        return self.finish(losses, gradients)


@program
class PCGradThenBackward(PCGradProgram):
    """autograd.grad for the trunk, and one backward() for the heads through the same graph."""

    places = ("100%", "80%", "60%", "recomputed")

    def step(self, batch):
        losses = self.losses(batch)
        gradients = [torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True) for loss in losses]
        self.optimizer.zero_grad()
        total = torch.stack(losses).sum()
        total.backward()
        for p, g in zip(self.model.parameters(), self.project(gradients), strict=True):
            p.grad.copy_(g)
        self.optimizer.step()
        return total


@program
class GradNorm(TaskProgram):
    """Weights of the tasks are trained by the norms of their gradients, with a graph of gradients."""

    may_fail = "second time"

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(3))
        self.of_weights = torch.optim.Adam([self.weights], 0.02)
        self.model.initial = None

    def step(self, batch):
        losses = torch.stack(self.losses(batch))
        if self.model.initial is None:
            self.model.initial = losses.detach()
        shared = self.model[-1][0].weight
        gradients = [torch.autograd.grad(w * l, shared, create_graph=True)[0] for w, l in zip(self.weights, losses)]
        norms = torch.stack([g.norm() for g in gradients])
        with torch.no_grad():
            progress = losses / self.model.initial
            wanted = norms.mean() * (progress / progress.mean()) ** 1.5
        gradient, = torch.autograd.grad((norms - wanted).abs().sum(), self.weights, retain_graph=True)
        total = (self.weights.detach() * losses).sum()
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        self.weights.grad = gradient
        self.of_weights.step()
        with torch.no_grad():
            self.weights.mul_(3 / self.weights.sum())
        return total


@program
class UncertaintyWeights(TaskProgram):
    """Learned log variances, and a loss whose NaNs skip the step."""

    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(3))
        self.optimizer.add_param_group({"params": [self.logs], "lr": 0.05})

    def step(self, batch):
        losses = torch.stack(self.losses(batch))
        total = (losses * (-self.logs).exp() + self.logs).sum()
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return total


@program
class TwoBackwardPassesThroughOneGraph(TaskProgram):
    """retain_graph=True: the main loss, then an auxiliary one through the same trunk."""

    error = "second time"
    places = ("100%",)

    def step(self, batch):
        losses = self.losses(batch)
        self.optimizer.zero_grad()
        losses[0].backward(retain_graph=True)
        (0.3 * losses[1]).backward()
        self.optimizer.step()
        return losses[0].detach()


@program
class BackwardOfSeveralRoots(TaskProgram):
    """torch.autograd.backward of several losses at once, each with a weight."""

    def step(self, batch):
        losses = self.losses(batch)
        self.optimizer.zero_grad()
        torch.autograd.backward(losses, [torch.tensor(w) for w in (1.0, 0.5, 0.25)])
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).sum()
