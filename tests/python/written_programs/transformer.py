"""Transformers as their authors write them: PyTorch's own modules, caches, nested tensors, chunks of a loss, routing by depth."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, program

WIDTH, TOKENS = 48, 96


class TokenProgram(Program):
    places = ("100%", "80%", "60%", "recomputed")

    def __init__(self):
        self.model = self.make()
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.95), fused=True)
        self.batches = [torch.randint(0, TOKENS, (8, 33)) for _ in range(4)]

    def make(self):
        raise NotImplementedError

    def step(self, tokens):
        loss = self.loss_of(tokens[:, :-1], tokens[:, 1:])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


@program
class PyTorchsTransformer(TokenProgram):
    """nn.TransformerEncoder with a causal mask and a padding mask."""

    def make(self):
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, 0.1, batch_first=True, norm_first=True, activation="gelu")
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.ModuleDict({"embed": nn.Embedding(TOKENS, WIDTH), "encoder": encoder, "head": nn.Linear(WIDTH, TOKENS)})

    def blocks(self):
        return list(self.model["encoder"].layers)

    def loss_of(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        padding = F.pad(x[:, 1:] == 0, (1, 0)).float()
        h = self.model["encoder"](self.model["embed"](x), mask=mask, src_key_padding_mask=padding, is_causal=True)
        return F.cross_entropy(self.model["head"](h).transpose(1, 2), y)


class WithCache(nn.Module):
    """Transformer-XL: the keys of the last batch stay in a buffer that is written in place."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(4, 64))
        self.register_buffer("memory", torch.zeros(8, 32, WIDTH))

    def forward(self, x):
        q = self.qkv(x)[..., :WIDTH]
        k, v = self.qkv(torch.cat([self.memory.clone(), x], 1))[..., WIDTH:].chunk(2, -1)
        q, k, v = (h.unflatten(-1, (4, -1)).transpose(1, 2) for h in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH / 4) + self.bias[:, None]
        hidden = torch.ones(32, 64, dtype=torch.bool).triu_(33)
        scores.masked_fill_(hidden, float("-inf"))
        with torch.no_grad():
            self.memory.copy_(x)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@program
class TransformerXL(TokenProgram):
    def make(self):
        return nn.Sequential(nn.Embedding(TOKENS, WIDTH), WithCache(), WithCache(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))

    def loss_of(self, x, y):
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())


@program
class LossInChunks(TokenProgram):
    """The loss of a few rows at a time, whose gradient with respect to the hidden states is found at once and handed on."""

    may_fail = "second time"

    def make(self):
        return nn.Sequential(nn.Embedding(TOKENS, WIDTH), WithCache(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))

    def step(self, tokens):
        self.optimizer.zero_grad()
        h = self.model[:-1](tokens[:, :-1]).flatten(0, 1)
        detached = h.detach().requires_grad_()
        losses, gradients = [], []
        for rows, y in zip(detached.split(64), tokens[:, 1:].flatten().split(64), strict=True):
            loss = F.cross_entropy(self.model[-1](rows), y, reduction="sum") / h.shape[0]
            gradients.append(torch.autograd.grad(loss, [detached, *self.model[-1].parameters()]))
            losses.append(loss.detach())
        for p, g in zip(self.model[-1].parameters(), list(zip(*gradients, strict=True))[1:], strict=True):
            p.grad = torch.stack(g).sum(0)
        h.backward(torch.stack([g[0] for g in gradients]).sum(0))
        self.optimizer.step()
        return torch.stack(losses).sum()


class DepthRouted(nn.Module):
    """Mixture of depths: a router picks the rows that go through the block, which are put back in place."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 1)
        self.block = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        scores = self.router(x).squeeze(-1)
        top = scores.topk(12, dim=1).indices.sort(dim=1).values[..., None].expand(-1, -1, WIDTH)
        rows = x.gather(1, top)
        out = x.clone()
        out.scatter_add_(1, top, self.block(rows) * scores.gather(1, top[..., 0]).sigmoid()[..., None])
        return out


@program
class MixtureOfDepths(TokenProgram):
    def make(self):
        return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *(DepthRouted() for _ in range(3)), nn.Linear(WIDTH, TOKENS))

    def loss_of(self, x, y):
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())


@program
class JaggedTensors(TokenProgram):
    """Nested tensors of the jagged layout through attention."""

    may_fail = "nested|jagged|layout"
    places = ("100%", "60%")

    def make(self):
        qkv = nn.Linear(WIDTH, 3 * WIDTH)
        return nn.ModuleDict({"embed": nn.Embedding(TOKENS, WIDTH), "qkv": qkv, "head": nn.Linear(WIDTH, TOKENS)})

    def loss_of(self, x, y):
        lengths = [5, 9, 17, 32, 3, 8, 30, 12]
        ragged = torch.nested.nested_tensor([row[:n] for row, n in zip(x, lengths)], layout=torch.jagged)
        h = self.model["qkv"](F.embedding(ragged, self.model["embed"].weight))
        q, k, v = (p.contiguous().unflatten(-1, [3, 16]).transpose(1, 2) for p in h.chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return F.cross_entropy(self.model["head"](h).values(), torch.cat([row[:n] for row, n in zip(y, lengths)]))
