"""Averages of weights, schedules, learning rates by hand, weights that are loaded and frozen between steps."""

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from .program import Program, gaussian_batches, layers, program


class ClassifierProgram(Program):
    count = 6

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4, lambda: nn.BatchNorm1d(64), lambda: nn.Dropout(0.1)), nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(self.count, 256, 64)]

    def loss_of(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        return loss


class DropPath(nn.Module):
    def __init__(self, inner, chance):
        super().__init__()
        self.inner, self.chance = inner, chance

    def forward(self, x):
        if not self.training:
            return x + self.inner(x)
        kept = x.new_empty(len(x), 1).bernoulli_(1 - self.chance)
        return x + self.inner(x) * kept.div_(1 - self.chance)


@program
class StochasticDepthAndSWA(ClassifierProgram):
    """The average begins after two steps; its batch norms are updated over all batches between steps."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(*(DropPath(inner, 0.1 * i) for i, inner in enumerate(self.model[:-1])), self.model[-1])
        self.average = AveragedModel(self.model)
        self.moving = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.schedule = SWALR(self.optimizer, swa_lr=0.02, anneal_epochs=3)
        self.done = 0

    def iteration(self, batch, backward):
        loss = backward(batch)
        self.done += 1
        self.moving.update_parameters(self.model)
        if self.done > 2:
            self.average.update_parameters(self.model)
            self.schedule.step()
            update_bn([b[0] for b in self.batches[:2]], self.average)
        return loss


@program
class FreezingLayers(ClassifierProgram):
    """Gradual unfreezing between steps, then freezing by requires_grad and by eval()."""

    def iteration(self, batch, backward):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        for i, layer in enumerate(self.model):
            layer.requires_grad_(i >= 4 - at or at > 3)
        self.model[0].train(at != 4)
        return backward(batch)

    def fit_options(self):
        return {"optimizer": self.optimizer}


@program
class FreezingInsideOfTheStep(ClassifierProgram):
    """requires_grad is toggled in the step, as of a discriminator that is only looked through."""

    def step(self, batch):
        for p in self.model[:2].parameters():
            p.requires_grad_(False)
        loss = self.loss_of(batch)
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model[:2].parameters():
            p.requires_grad_(True)
        self.optimizer.step()
        return loss


@program
class LearningRatesByHand(ClassifierProgram):
    """Warm-up by hand, layer-wise rates, weight decay that changes, gradients by add_param_group."""

    def iteration(self, batch, backward):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1, (at + 1) / 3)
            group["weight_decay"] = 1e-4 * at
            group["momentum"] = 0.8 + 0.02 * at
        return backward(batch)


@program
class LoadingAStateInTheMiddle(ClassifierProgram):
    """A snapshot after the second step is loaded after the fourth: weights by assign and by copy, and the optimizer."""

    def iteration(self, batch, backward):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        if at == 2:
            self.file = io.BytesIO()
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.file)
        if at == 4:
            self.file.seek(0)
            saved = torch.load(self.file)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.file = None
        return backward(batch)


@program
class BestWeightsAreKept(ClassifierProgram):
    """The step keeps a deep copy of the best weights, and goes back to them, with less speed, where the loss rises."""

    def __init__(self):
        super().__init__()
        self.model.best, self.model.least = None, float("inf")

    def step(self, batch):
        loss = super().step(batch)
        if loss.item() < self.model.least:
            self.model.least, self.model.best = loss.item(), copy.deepcopy(self.model.state_dict())
        else:
            self.model.load_state_dict(self.model.best)
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5
        return loss


@program
class Lookahead(ClassifierProgram):
    """Slow weights in the optimizer's state, by a wrapper that has its own step; loop style."""

    goes_backward = False

    def __init__(self):
        super().__init__()
        self.slow = [p.detach().clone() for p in self.model.parameters()]
        self.taken = 0

    def fit_options(self):
        return {"optimizer": self.optimizer}

    def step(self, batch):
        return self.loss_of(batch)

    def iteration(self, batch, backward):
        loss = backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1
        if self.taken % 2 == 0:
            for s, p in zip(self.slow, self.model.parameters(), strict=True):
                s.add_(p.data - s, alpha=0.5)
                p.data.copy_(s)
        return loss
