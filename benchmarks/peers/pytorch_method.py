"""One of PyTorch's own ways to save activation memory, on steps of gpt-12x384: counted bytes and seconds.

Usage: pytorch_method.py ALLOCATOR.so METHOD PRECISION
METHOD: eager, checkpoint(N) (the first N blocks), sequential(N), selective (products and attention kept), compile(B)
(torch.compile with activation_memory_budget = B) or ckptplan(F) (ckptplan's plan to save that fraction). Prints one JSON object, then runs a step for every line of input and
answers with its seconds, and ends with another JSON object. Peaks are above what is there before the step.
"""
import ctypes
import functools
import json
import pathlib
import sys
import time

import torch
from torch.utils import checkpoint as ac

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gpt_12x384 as gpt


class MethodGpt(gpt.Gpt):
    """The model with its blocks run under one of the methods."""

    def __init__(self, method, argument):
        super().__init__()
        self.method, self.argument = method, argument

    def run_blocks(self, x):
        if self.method == "ckptplan":
            return self.container(x)
        if self.method == "sequential":
            return ac.checkpoint_sequential(self.blocks, int(self.argument), x, use_reentrant=False)
        for i, block in enumerate(self.blocks):
            x = self.run(block, i, x)
        return x

    def plan_blocks(self, dtype):
        import ckptplan

        blocks = ckptplan.declare_blocks(self, [(f"block{i}", block) for i, block in enumerate(self.blocks)])
        example = (torch.randn(gpt.BATCH, gpt.SEQUENCE, gpt.WIDTH),)
        profiles = ckptplan.profile_blocks(blocks, example, device="cpu", dtype=dtype)
        plan = ckptplan.plan_checkpoints(profiles, blocks, target_kind="activation_saving_fraction",
                                         target_value=float(self.argument), planner="dynamic_programming")
        self.container = ckptplan.apply_plan(blocks, plan, example, None)

    def run(self, block, i, x):
        if self.method == "checkpoint" and i < int(self.argument):
            return ac.checkpoint(block, x, use_reentrant=False)
        if self.method == "selective":
            aten = torch.ops.aten
            kept = [aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default]
            context = functools.partial(ac.create_selective_checkpoint_contexts, kept)
            return ac.checkpoint(block, x, use_reentrant=False, context_fn=context)
        return block(x)


def main(library, method, precision):
    counter = ctypes.CDLL(library)
    counter.bytes_used.restype = counter.bytes_peak.restype = ctypes.c_int64
    counter.count_allocations()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    name, _, argument = method.rstrip(")").partition("(")
    if name not in ("eager", "checkpoint", "sequential", "selective", "compile", "ckptplan"):
        sys.exit(f"pytorch_method.py: unknown method {method}")
    model = MethodGpt(name, argument)
    run_forward = model
    if name == "ckptplan":
        model.plan_blocks(torch.float32)
    if name == "compile":
        import torch._functorch.config as config

        config.activation_memory_budget = float(argument)
        run_forward = torch.compile(model)
    tokens = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))
    targets = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))
    before = counter.bytes_used()
    loss = None

    def step():
        nonlocal loss
        for p in model.parameters():
            p.grad = None
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = run_forward(tokens, targets)
        loss.backward()
        return time.perf_counter() - started

    step(), step()
    counter.reset_peak()
    step()
    print(json.dumps({"peak_bytes": counter.bytes_peak() - before}), flush=True)
    for _ in sys.stdin:
        print(step(), flush=True)
    print(json.dumps({"peak_bytes": counter.bytes_peak() - before, "loss": loss.item()}), flush=True)


main(sys.argv[1], sys.argv[2], sys.argv[3])
