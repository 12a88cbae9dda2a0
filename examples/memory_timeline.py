# %% [markdown]
# # What a step keeps, and what a budget costs
#
# Two pictures for any model: the memory of one step over time, without a plan and with one, and the curve of what every
# budget would take. Run it as a script, or cell by cell in an editor that knows `# %%`.
#
#     pip install . matplotlib      (in a checkout; the snug on PyPI is another project)
#     python examples/memory_timeline.py

# %%
import sys

import matplotlib

if __name__ == "__main__" and not hasattr(sys, "ps1"):
    matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import snug

MIB = 1 << 20

# %% [markdown]
# Any model will do: snug needs a function from a batch to its loss.

# %%
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
                      nn.Linear(256, 1000))
batch = torch.randint(0, 1000, (8, 256))


def step(tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


# %% [markdown]
# One step plain, watched as it runs (the first one of all pays for setting things up); then the plan for 60 % of its memory,
# and a step under it.

# %%
step(batch).backward()
model.zero_grad()
with snug.Monitor(interval=0.0005) as plain:
    step(batch).backward()
model.zero_grad()

session = snug.fit(step, batch, budget="60%")
print(session.plan)
with snug.Monitor(interval=0.0005) as planned:
    session.backward(batch)
print(snug.verify(step, batch, model, session=session)[:3], "... are the same to the bit")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
for monitor, name, color in ((plain, "plain", "#888888"), (planned, "60 %", "#1f77b4")):
    seconds, sizes = zip(*monitor.timeline)
    left.plot(seconds, [size / MIB for size in sizes], label=f"{name}: peak {snug.format_bytes(monitor.peak)}", color=color)
left.axhline(session.plan.budget / MIB, color="#d62728", linewidth=1, linestyle="--", label="budget")
left.set_xlabel("seconds")
left.set_ylabel("MiB")
left.set_title("memory of one step")
left.legend()

budgets, seconds = zip(*session.plan.curve(24))
right.plot([b / MIB for b in budgets], seconds, marker="o", markersize=3, color="#1f77b4")
right.set_xlabel("budget, MiB")
right.set_ylabel("predicted step, s")
right.set_title("what a budget costs")
session.close()

# %%
name = sys.argv[1] if len(sys.argv) > 1 else "memory_timeline.svg"
figure.savefig(name)
print("written:", name)
