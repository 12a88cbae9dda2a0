"""BERT on sentences of many lengths: padded to the longest of each batch, or packed with cumulative lengths."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, program

TOKENS, HEADS = 200, 4


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask=None, lengths=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attended = self.packed(q, k, v, lengths) if lengths is not None else self.padded(q, k, v, mask)
        x = self.norm(x + self.out(attended))
        return self.norm2(x + self.mlp(x))

    @staticmethod
    def padded(q, k, v, mask):
        b, t, width = q.shape
        q, k, v = (h.view(b, t, HEADS, -1).transpose(1, 2) for h in (q, k, v))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return h.transpose(1, 2).reshape(b, t, width)

    @staticmethod
    def packed(q, k, v, lengths):
        """For each sentence by itself, as a kernel for variable lengths does."""
        parts = []
        for one in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            q1, k1, v1 = (h.view(len(h), HEADS, -1).transpose(0, 1) for h in one)
            parts.append(F.scaled_dot_product_attention(q1, k1, v1).transpose(0, 1).flatten(1))
        return torch.cat(parts)


class Bert(nn.Module):
    def __init__(self, width, longest):
        super().__init__()
        self.embedding, self.position = nn.Embedding(TOKENS, width, padding_idx=0), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens, positions, **shapes):
        x = self.embedding(tokens) + self.position(positions)
        for layer in self.layers:
            x = layer(x, **shapes)
        return self.head(x)


class RaggedProgram(Program):
    count, width, times_as_long = 14, 64, 1

    def __init__(self):
        self.model = Bert(self.width, 64 * self.times_as_long)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda i: min(1, (i + 1) / 5))
        longest = [40, 33, 40, 28, 33, 40, 52, 28, 40, 33, 47, 40, 33, 60]
        self.batches = [
            [torch.randint(1, TOKENS, (int(n),)) for n in [most, *torch.randint(5, most, (7,)).tolist()]]
            for most in (self.times_as_long * most for most in longest[:self.count])
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
