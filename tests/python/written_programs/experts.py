"""Mixtures of experts, whose shapes depend on the data."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, program


class Experts(nn.Module):
    """As in Mixtral: for each expert the tokens that chose it, added by index_add_."""

    def __init__(self, width, experts, top=2):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(experts)
        )
        self.top = top
        self.register_buffer("load", torch.zeros(experts))
        self.balance = None

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        self.load += hot.sum((1, 2)).detach()
        self.balance = len(self.experts) * (hot.float().mean((1, 2)) * probabilities.mean(0)).sum()
        out = torch.zeros_like(x)
        for index in hot.sum((1, 2)).nonzero().flatten().tolist():
            slot, token = torch.where(hot[index])
            out.index_add_(0, token, self.experts[index](x[token]) * weights[token, slot, None])
        return x + out


class CapacityExperts(Experts):
    """As in Switch: one expert for each token, at most `capacity` tokens for each expert; the others pass by."""

    def __init__(self, width, experts, capacity):
        super().__init__(width, experts, top=1)
        self.capacity = capacity
        self.dropped = 0

    def forward(self, x):
        logits = self.gate(x)
        if self.training:
            logits = logits + torch.empty_like(logits).uniform_(-0.1, 0.1)
        probability, chosen = logits.softmax(-1).max(-1)
        out, counts = x.clone(), []
        for index, expert in enumerate(self.experts):
            tokens = (chosen == index).nonzero(as_tuple=True)[0]
            counts.append(len(tokens))
            if len(tokens) > self.capacity:
                self.dropped += len(tokens) - self.capacity
                tokens = tokens[torch.randperm(len(tokens))[:self.capacity]]
            if len(tokens) == 0:
                continue
            out[tokens] = probability[tokens, None] * expert(x[tokens])
        self.load.copy_(0.9 * self.load + 0.1 * torch.tensor(counts, dtype=torch.float32))
        self.balance = logits.logsumexp(-1).square().mean()
        return out


class MoEProgram(Program):
    width, tokens = 64, 256

    def make(self):
        raise NotImplementedError

    def __init__(self):
        width, tokens = self.width, self.tokens
        layers = [self.make() for _ in range(2)]
        self.model = nn.Sequential(nn.Linear(64, width), *layers, nn.LayerNorm(width), nn.Linear(width, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        inputs = gaussian_batches(14, tokens, 64)
        self.batches = [(x * (1 + i % 3), torch.randint(0, 8, (tokens,))) for i, x in enumerate(inputs)]

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss = loss + 0.01 * sum(m.balance for m in self.model if isinstance(m, Experts))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


@program
class MixtralExperts(MoEProgram):
    def make(self):
        return Experts(self.width, 4)


@program
class SwitchExperts(MoEProgram):
    def make(self):
        return CapacityExperts(self.width, 4, 5 * self.tokens // 16)
