"""Meta-learning: an inner loop of gradient steps that the outer loss is differentiated through, and first-order kinds."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from .program import Program, program


class MetaProgram(Program):
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.batches = [[self.task(), self.task()] for _ in range(4)]

    @staticmethod
    def task():
        return torch.randn(64, 16), torch.randn(64, 4), torch.randn(64, 16), torch.randn(64, 4)


@program
class MAML(MetaProgram):
    """Second order: two inner steps for each of two tasks."""

    def step(self, tasks):
        losses = []
        for x, y, x2, y2 in tasks:
            fast = dict(self.model.named_parameters())
            for _ in range(2):
                inner = F.mse_loss(functional_call(self.model, fast, (x,)), y)
                gradients = torch.autograd.grad(inner, fast.values(), create_graph=True)
                fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), gradients)}
            losses.append(F.mse_loss(functional_call(self.model, fast, (x2,)), y2))
        loss = torch.stack(losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class FirstOrderMAML(MetaProgram):
    """The inner loop trains a deep copy by an optimizer of its own, whose gradients go to the model's parameters."""

    may_fail = "second time"
    places = ("100%", "60%")

    def step(self, tasks):
        self.optimizer.zero_grad()
        total = []
        for x, y, x2, y2 in tasks:
            learner = copy.deepcopy(self.model)
            inner = torch.optim.SGD(learner.parameters(), 0.1)
            for _ in range(2):
                inner.zero_grad()
                with self.micro_batch():
                    loss = F.mse_loss(learner(x), y)
                loss.backward()
                inner.step()
            inner.zero_grad()
            with self.micro_batch():
                loss = F.mse_loss(learner(x2), y2)
            loss.backward()
            for p, q in zip(self.model.parameters(), learner.parameters(), strict=True):
                p.grad = q.grad.clone() if p.grad is None else p.grad + q.grad
            total.append(loss.detach())
        self.optimizer.step()
        return torch.stack(total).mean()


@program
class Reptile(MetaProgram):
    """The session trains the inner loop; the outer update is by hand, from saved weights."""

    goes_backward = False

    def __init__(self):
        super().__init__()
        self.inner = torch.optim.SGD(self.model.parameters(), 0.1)

    def fit_options(self):
        return {"optimizer": self.inner}

    def sample(self):
        return self.batches[0][0]

    def step(self, task):
        return F.mse_loss(self.model(task[0]), task[1])

    def iteration(self, tasks, backward):
        before, losses = {name: p.detach().clone() for name, p in self.model.state_dict().items()}, []
        for task in tasks:
            losses.append(backward(task))
            self.inner.step()
            self.inner.zero_grad()
        self.model.load_state_dict({name: before[name] + 0.5 * (p - before[name]) for name, p in self.model.state_dict().items()})
        return torch.stack(losses).mean()


@program
class LearnedDataWeights(MetaProgram):
    """Learning to reweight examples: a virtual step decides the weights of the real one."""

    def step(self, tasks):
        (x, y, x2, y2), _ = tasks
        weights = torch.zeros(len(x), requires_grad=True)
        parameters = dict(self.model.named_parameters())
        inner = (F.mse_loss(self.model(x), y, reduction="none").mean(1) * weights).sum()
        gradients = torch.autograd.grad(inner, parameters.values(), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients)}
        outer = F.mse_loss(functional_call(self.model, fast, (x2,)), y2)
        found = torch.autograd.grad(outer, weights)[0].neg().clamp(min=0)
        found = found / found.sum().clamp(min=1e-8)
        loss = (F.mse_loss(self.model(x), y, reduction="none").mean(1) * found.detach()).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss
