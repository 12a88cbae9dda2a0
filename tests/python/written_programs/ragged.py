"""BERT on sentences of many lengths: padded to the longest of each batch, or packed with cumulative lengths."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, program

TOKENS, WIDTH, HEADS = 200, 64, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask=None, lengths=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attended = self.packed(q, k, v, lengths) if lengths is not None else self.padded(q, k, v, mask)
        x = self.norm(x + self.out(attended))
        return self.norm2(x + self.mlp(x))

    @staticmethod
    def padded(q, k, v, mask):
        b, t, _ = q.shape
        q, k, v = (h.view(b, t, HEADS, -1).transpose(1, 2) for h in (q, k, v))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return h.transpose(1, 2).reshape(b, t, WIDTH)

    @staticmethod
    def packed(q, k, v, lengths):
        """For each sentence by itself, as a kernel for variable lengths does."""
        parts = []
        for one in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            q1, k1, v1 = (h.view(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for h in one)
            parts.append(F.scaled_dot_product_attention(q1, k1, v1).transpose(0, 1).reshape(-1, WIDTH))
        return torch.cat(parts)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(TOKENS, WIDTH, padding_idx=0), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens, positions, **shapes):
        x = self.embedding(tokens) + self.position(positions)
        for layer in self.layers:
            x = layer(x, **shapes)
        return self.head(x)


class RaggedProgram(Program):
    count = 14

    def __init__(self):
        self.model = Bert()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda i: min(1, (i + 1) / 5))
        longest = [40, 33, 40, 28, 33, 40, 52, 28, 40, 33, 47, 40, 33, 60]
        self.batches = [
            [torch.randint(1, TOKENS, (int(n),)) for n in [most, *torch.randint(5, most, (7,)).tolist()]]
            for most in longest[:self.count]
        ]

    def blocks(self):
        return list(self.model.layers)

    def sample(self):
        return max(self.batches, key=lambda sentences: max(map(len, sentences)))

    def loss_of(self, sentences):
        raise NotImplementedError

    def step(self, sentences):
        loss = self.loss_of(sentences)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss


@program
class PaddedBert(RaggedProgram):
    def loss_of(self, sentences):
        tokens = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
        mask = tokens != 0
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits = self.model(tokens, positions, mask=mask)
        return F.cross_entropy(logits[mask], tokens[mask])


@program
class PackedBert(RaggedProgram):
    count = 12

    def sample(self):
        return max(self.batches, key=lambda sentences: sum(map(len, sentences[:4])))

    places = ("100%", "60%")

    def loss_of(self, sentences):
        lengths = [len(s) for s in sentences[:4]]
        tokens = torch.cat(sentences[:4])
        cumulative = F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
        starts = torch.repeat_interleave(cumulative[:-1], torch.tensor(lengths))
        logits = self.model(tokens, torch.arange(len(tokens)) - starts, lengths=lengths)
        return F.cross_entropy(logits, tokens)
