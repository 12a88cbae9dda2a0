"""Around the step: seeds, checkpoints of torch, accumulation of gradients, mining of triplets."""

import random

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from .batches_of_records import ClassifierProgram
from .program import program


@program
class SeedsOfTheirOwn(ClassifierProgram):
    """Each step seeds all generators by its number, and forks them for an evaluation in its middle."""

    def step(self, batch):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        torch.manual_seed(100 + at)
        random.seed(at)
        np.random.seed(at)
        noisy = batch[0] + 0.1 * torch.randn_like(batch[0]) * random.random() + float(np.random.rand())
        logits = self.model(noisy)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(3)
            self.model.eval()
            self.model.score = self.model(torch.randn(64, 64)).mean().item()
            self.model.train()
        return self.update(F.cross_entropy(logits, batch[1]))


@program
class CheckpointsInTheStep(ClassifierProgram):
    """torch.utils.checkpoint of both kinds, one around the other, and save_on_cpu."""

    def step(self, batch):
        checkpoint = torch.utils.checkpoint.checkpoint
        h = self.model[0](batch[0])
        h = checkpoint(self.model[1], h, use_reentrant=False)
        h = checkpoint(lambda z: checkpoint(self.model[2], torch.tanh(z), use_reentrant=False), h, use_reentrant=False)
        with torch.autograd.graph.save_on_cpu():
            h = self.model[3](h)
        return self.update(F.cross_entropy(self.model[4](h), batch[1]))


@program
class ReentrantCheckpoints(ClassifierProgram):
    def step(self, batch):
        h = self.model[0](batch[0])
        h = torch.utils.checkpoint.checkpoint_sequential(self.model[1:4], 2, h, use_reentrant=True)
        return self.update(F.cross_entropy(self.model[4](h), batch[1]))


@program
class AccumulationInTheLoop(ClassifierProgram):
    """Gradients of two batches, an update after every second, a remainder at the end."""

    goes_backward = False

    def __init__(self):
        super().__init__()
        self.model.turn = 0

    def fit_options(self):
        return {"optimizer": self.optimizer, "micro_batches": 2}

    def step(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1]) / 2

    def iteration(self, batch, backward):
        loss = backward(batch)
        self.model.turn += 1
        if self.model.turn % 2 == 0 or self.model.turn == len(self.batches):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


@program
class AccumulationInTheStep(ClassifierProgram):
    """The step updates in every second call alone; a counter is a buffer of the model."""

    def __init__(self):
        super().__init__()
        self.model.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def fit_options(self):
        return {"micro_batches": 2, "optimizer": self.optimizer}

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1]) / 2
        loss.backward()
        self.model.calls += 1
        if self.model.calls % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


@program
class TripletsWithMining(ClassifierProgram):
    """One network for anchors, positives and negatives; the hardest negatives are found in each batch."""

    def step(self, batch):
        x, y = batch
        h = F.normalize(self.model[:4](x), dim=1)
        other = F.normalize(self.model[:4](x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            distances = torch.cdist(h, h)
            distances[y[:, None] == y[None]] = float("inf")
            hardest = distances.argmin(1)
        loss = F.triplet_margin_loss(h, other, h[hardest], margin=0.3)
        similar = h @ other.t() / 0.1
        return self.update(loss + F.cross_entropy(similar, torch.arange(len(x))))
