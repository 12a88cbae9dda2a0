"""One of PyTorch's own ways to save activation memory, on one step of gpt-12x384: seconds and counted bytes.

Usage: pytorch_method.py ALLOCATOR.so METHOD PRECISION STEPS
METHOD: eager, checkpoint(N) (the first N blocks), sequential(N), selective (products and attention kept) or compile(B)
(torch.compile with activation_memory_budget = B). Prints one JSON object. Peaks are above what is there before the step.
"""
import ctypes
import functools
import json
import pathlib
import statistics
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
        if self.method == "sequential":
            return ac.checkpoint_sequential(self.blocks, int(self.argument), x, use_reentrant=False)
        for i, block in enumerate(self.blocks):
            x = self.run(block, i, x)
        return x

    def run(self, block, i, x):
        if self.method == "checkpoint" and i < int(self.argument):
            return ac.checkpoint(block, x, use_reentrant=False)
        if self.method == "selective":
            aten = torch.ops.aten
            kept = [aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default]
            context = functools.partial(ac.create_selective_checkpoint_contexts, kept)
            return ac.checkpoint(block, x, use_reentrant=False, context_fn=context)
        return block(x)


def main(library, method, precision, steps):
    counter = ctypes.CDLL(library)
    counter.bytes_used.restype = counter.bytes_peak.restype = ctypes.c_int64
    counter.count_allocations()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    name, _, argument = method.rstrip(")").partition("(")
    if name not in ("eager", "checkpoint", "sequential", "selective", "compile"):
        sys.exit(f"pytorch_method.py: unknown method {method}")
    model = MethodGpt(name, argument)
    step = model
    if name == "compile":
        import torch._functorch.config as config

        config.activation_memory_budget = float(argument)
        step = torch.compile(model)
    tokens = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))
    targets = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))
    before = counter.bytes_used()
    seconds, loss = [], None
    for i in range(2 + steps):
        for p in model.parameters():
            p.grad = None
        if i == 2:
            counter.reset_peak()
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = step(tokens, targets)
        loss.backward()
        if i >= 2:
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"method": method, "precision": precision, "peak_bytes": counter.bytes_peak() - before,
                      "seconds": seconds, "seconds_median": statistics.median(seconds), "loss": loss.item()}))


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
