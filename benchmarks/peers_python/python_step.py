"""A step of one of the models of peers.py under a cap, for every line of standard input; python_step.py MODEL CAP_BYTES STRATEGY.

Says the floor first, then the seconds of every step, and at the end its peak above what is there before a step. Which snug it
runs is decided by PYTHONPATH.
"""
import gc
import json
import sys
import time

import torch

import snug
from peers import make


def say(what):
    print(json.dumps(what), flush=True)


def main():
    name, cap, strategy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    model, batch = make(name)

    def forward(b):
        return model(**b).loss

    static = snug.memory_stats()["allocated"]
    session = snug.fit(forward, batch, static + cap, strategy=strategy)
    say({"floor_bytes": session.plan.floor - static})
    peak, loss = 0, 0.0
    for _ in sys.stdin:
        for p in model.parameters():
            p.grad = None
        gc.collect()
        torch.manual_seed(1)
        with snug.Monitor(interval=3600) as monitor:
            started = time.perf_counter()
            loss = session.backward(batch)
            seconds = time.perf_counter() - started
        peak = max(peak, monitor.peak - monitor.before)
        say(seconds)
    say({"peak_bytes": peak, "loss": float(loss)})


main()
