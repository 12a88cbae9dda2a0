"""The model of examples/gpt-12x384.toml in PyTorch, for what measures snug against it."""
import torch
from torch import nn
from torch.nn import functional as F

BLOCKS, WIDTH, HEADS, SEQUENCE, BATCH, VOCABULARY = 12, 384, 6, 256, 8, 8192


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, s, w = x.shape
        heads = lambda t: t.view(b, s, HEADS, w // HEADS).transpose(1, 2)
        q, k, v = self.qkv(self.attention_norm(x)).split(w, 2)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        # As snug's model starts: with PyTorch's own, logits are so large that kernels see other numbers.
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = F.linear(self.norm(self.run_blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))

    def run_blocks(self, x):
        return self.blocks(x)
