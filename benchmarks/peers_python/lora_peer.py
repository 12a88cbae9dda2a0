"""LoRA on SmolLM2-135M by transformers and PEFT, a step for every line of standard input.

Usage: lora_peer.py ALLOCATOR.so plain|checkpoint LENGTH bf16|fp32
Rank 16 on all linear layers, weights in bf16 and adapters in fp32 under autocast, or all in fp32, AdamW; one sequence of LENGTH tokens.
Prints one JSON object, answers every line with the seconds of a whole step, and ends with another. The peak is of all
that PyTorch has allocated, weights too.
"""
import ctypes
import json
import os
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch


def main(library, method, length, compute):
    counter = ctypes.CDLL(library)
    counter.bytes_peak.restype = ctypes.c_int64
    counter.count_allocations()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    from smollm2 import with_lora

    model = with_lora(torch.bfloat16 if compute == "bf16" else torch.float32).train()
    if method == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif method != "plain":
        sys.exit(f"lora_peer.py: no method {method}")
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.0)
    tokens = torch.randint(0, 49152, (1, length))
    loss = None

    def step():
        nonlocal loss
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute == "bf16"):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    print(json.dumps({}), flush=True)
    step()
    counter.reset_peak()
    for _ in sys.stdin:
        print(step(), flush=True)
    print(json.dumps({"peak_bytes": counter.bytes_peak(), "loss": loss.item()}), flush=True)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
