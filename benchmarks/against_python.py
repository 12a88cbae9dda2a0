"""An unplanned step of gpt-12x384 in PyTorch eager and in snug's C++ model, in turns.

Usage: against_python.py EAGER_STEP [steps]. Prints one JSON object per precision: the median of the ratio
snug / PyTorch, pair by pair, and its quartiles.
"""
import json
import subprocess
import sys
import time

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
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))


def compare(eager_step, precision, steps):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Gpt()
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    targets = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    ours = subprocess.Popen([eager_step, precision], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def python_step():
        model.zero_grad()
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(tokens, targets)
        loss.backward()
        return time.perf_counter() - started

    def snug_step():
        ours.stdin.write("\n")
        ours.stdin.flush()
        return float(ours.stdout.readline().split()[0])

    for _ in range(2):
        python_step(), snug_step()
    pairs = []
    for _ in range(steps):
        pairs.append((python_step(), snug_step()))
        time.sleep(0.05)
    ours.stdin.close()
    ours.wait()
    ratios = sorted(s / p for p, s in pairs)
    print(json.dumps({
        "model": "gpt-12x384", "precision": precision, "pairs": steps,
        "ratio_median": round(ratios[steps // 2], 4),
        "ratio_quartiles": [round(ratios[steps // 4], 4), round(ratios[steps * 3 // 4], 4)],
        "python_seconds_median": round(sorted(p for p, _ in pairs)[steps // 2], 4),
        "snug_seconds_median": round(sorted(s for _, s in pairs)[steps // 2], 4),
    }), flush=True)


if __name__ == "__main__":
    for chosen in ("fp32", "bf16"):
        compare(sys.argv[1], chosen, int(sys.argv[2]) if len(sys.argv) > 2 else 11)
