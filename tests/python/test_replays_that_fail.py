"""Replays that cannot be made end in an error, and not the process."""

import subprocess
import sys

import pytest

FREED_MEMORY = """
class Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.copy, ctx.x = x.detach().clone(), x.detach()
        y = x * 3
        x.untyped_storage().resize_(0)
        return y

    @staticmethod
    def backward(ctx, g):
        ctx.x.untyped_storage().resize_(ctx.copy.nbytes)
        ctx.x.copy_(ctx.copy)
        return g * 3

with snug.Region(snug.Selective(keep=["aten::mm"]), verify_replay=True):
    loss = torch.tanh(Freed.apply(x @ w)).sum()
"""

REMOVED_OPERATOR = """
library = torch.library.Library("removed", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
with snug.Region(snug.Recompute()):
    loss = ((x @ w) * torch.ops.removed.twice((x @ w).detach())).sum()
library._destroy()
"""


@pytest.mark.parametrize(
    "program, said",
    [(FREED_MEMORY, "the gradient is there"), (REMOVED_OPERATOR, "removed::twice")],
    ids=["of freed memory", "of a removed operator"],
)
def test_a_replay_does_not_end_the_process(program, said):
    begin = """
import torch, snug
torch.set_num_threads(1)
x, w = torch.randn(1024, 64), torch.randn(64, 64, requires_grad=True)
"""
    end = """
try:
    loss.backward()
    print("the gradient is there", bool(w.grad.any()))
except snug.Error as error:
    print(error)
"""
    child = subprocess.run([sys.executable, "-c", begin + program + end], capture_output=True, text=True)
    assert child.returncode == 0 and said in child.stdout, child.stdout + child.stderr
