"""Direct preference optimization with low-rank adapters, which are off for the reference."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, program

TOKENS, WIDTH = 256, 64


class Adapted(nn.Module):
    def __init__(self, inner, rank=4):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / 8)
        self.b = nn.Parameter(torch.randn(inner.out_features, rank) / 8)
        self.dropout = nn.Dropout(0.1)
        self.enabled = True

    def forward(self, x):
        y = self.inner(x)
        return y + 2 * (self.dropout(x) @ self.a.t()) @ self.b.t() if self.enabled else y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Adapted(nn.Linear(WIDTH, 3 * WIDTH)), Adapted(nn.Linear(WIDTH, WIDTH))
        self.mlp = nn.Sequential(Adapted(nn.Linear(WIDTH, 4 * WIDTH)), nn.SiLU(), Adapted(nn.Linear(4 * WIDTH, WIDTH)))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.out(h)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.embedding.requires_grad_(False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    @contextlib.contextmanager
    def disable_adapters(self):
        adapted = [m for m in self.modules() if isinstance(m, Adapted)]
        for m in adapted:
            m.enabled = False
        try:
            yield
        finally:
            for m in adapted:
                m.enabled = True


def log_probabilities(model, tokens, mask):
    logits = model(tokens)[:, :-1].log_softmax(-1)
    return (logits.gather(-1, tokens[:, 1:, None]).squeeze(-1) * mask[:, 1:]).sum(-1)


class PreferenceProgram(Program):
    beta = 0.1

    def __init__(self):
        self.model = Model()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, 1e-3)
        self.batches = [
            (torch.randint(0, TOKENS, (6, 48)), torch.randint(0, TOKENS, (6, 48)), torch.rand(6, 48).gt(0.2).float())
            for _ in range(4)
        ]

    def blocks(self):
        return list(self.model.blocks)

    def finish(self, chosen, rejected, reference):
        margins = self.beta * ((chosen - reference[0]) - (rejected - reference[1]))
        loss = -F.logsigmoid(margins).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


@program
class DPO(PreferenceProgram):
    def step(self, batch):
        chosen, rejected, mask = batch
        with torch.no_grad(), self.model.disable_adapters():
            reference = [log_probabilities(self.model, tokens, mask) for tokens in (chosen, rejected)]
        return self.finish(*(log_probabilities(self.model, tokens, mask) for tokens in (chosen, rejected)), reference)


@program
class DPOReferenceLast(PreferenceProgram):
    """As TRL: chosen and rejected concatenated, the reference after the policy."""

    def step(self, batch):
        chosen, rejected, mask = batch
        both, masks = torch.cat([chosen, rejected]), torch.cat([mask, mask])
        policy = log_probabilities(self.model, both, masks).chunk(2)
        with torch.no_grad(), self.model.disable_adapters():
            reference = log_probabilities(self.model, both, masks).chunk(2)
        return self.finish(*policy, reference)


@program
class ORPO(PreferenceProgram):
    """Two micro-batches: one backward pass for the likelihood and one for the odds ratio of the same step."""

    def step(self, batch):
        chosen, rejected, mask = batch
        self.optimizer.zero_grad()
        with self.micro_batch():
            likelihood = -log_probabilities(self.model, chosen, mask).mean() / 48
        likelihood.backward()
        with self.micro_batch():
            odds = log_probabilities(self.model, chosen, mask) - log_probabilities(self.model, rejected, mask)
            ratio = -F.logsigmoid(odds / 48).mean()
        ratio.backward()
        self.optimizer.step()
        return (likelihood + ratio).detach()
