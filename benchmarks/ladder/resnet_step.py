"""Whole training steps of a ResNet, one for every line of standard input: resnet_step.py COMPUTE [in_backward] [BUDGET].

Without a budget steps are plain, and so is an optimizer in the backward pass: by torch's own hooks. Says the floor first,
where there is a plan, then the seconds of every step, and at the end the peak of all that is counted.
"""
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import snug


def say(what):
    print(json.dumps(what), flush=True)


def main():
    import transformers as t

    compute, *rest = sys.argv[1:]
    in_backward = "in_backward" in rest
    budget = next((word for word in rest if word != "in_backward"), None)
    torch.manual_seed(0)
    model = t.ResNetForImageClassification(t.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512],
                                                          depths=[2, 2, 2, 2], layer_type="basic", num_labels=100)).train()
    batch = {"pixel_values": torch.randn(16, 3, 128, 128), "labels": torch.randint(0, 100, (16,))}

    def forward(b):
        with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bf16"):
            return model(**b).loss

    parameters = list(model.parameters())
    if in_backward and budget is None:
        each = {p: torch.optim.AdamW([p], 1e-3) for p in parameters}

        def update(p):
            each[p].step()
            p.grad = None

        for p in parameters:
            p.register_post_accumulate_grad_hook(update)
        optimizer = None
    else:
        optimizer = torch.optim.AdamW(parameters, 1e-3)
    session = None
    if budget is not None:
        session = snug.fit(forward, batch, budget, optimizer=optimizer, in_backward=in_backward)
    say({"floor_bytes": session.plan.floor if session else None})
    # AdamW's state is there from the second step on.
    loss, peak = 0.0, 0
    for _ in sys.stdin:
        with snug.Monitor(interval=None) as monitor:
            started = time.perf_counter()
            if session is not None:
                loss = session.backward(batch)
            else:
                loss = forward(batch)
                loss.backward()
                loss = loss.detach()
            if optimizer is not None and not in_backward:
                optimizer.step()
                optimizer.zero_grad()
            seconds = time.perf_counter() - started
        peak = max(peak, monitor.peak)
        say(seconds)
    say({"peak_bytes": peak, "loss": float(loss)})


main()
