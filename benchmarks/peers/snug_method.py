"""The unchanged model of gpt_12x384.py in Python under a cap, with its loss tiled, for every line of standard input.

Usage: snug_method.py PRECISION CAP_BYTES. The cap is above what is there before the step. Prints one JSON object, answers
every line of input with the seconds of a step, and ends with another JSON object. The package comes from PYTHONPATH.
"""
import json
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gpt_12x384 as gpt
import snug


def main(precision, cap):
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = gpt.Gpt()
    tokens = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))
    targets = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.SEQUENCE))

    def forward(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            return model(*batch)

    forward((tokens, targets)).backward()  # what PyTorch loads on first use is no part of the recorded seconds
    model.zero_grad()
    before = snug.memory_stats()["allocated"]
    session = snug.fit(forward, (tokens, targets), before + cap, allow=["tiled_loss"])
    print(json.dumps({"floor_bytes": session.plan.floor - before, "predicted_peak_bytes": session.plan.predicted_peak - before}),
          flush=True)
    peak, loss = 0, 0.0
    for _ in sys.stdin:
        model.zero_grad()
        with snug.Monitor(interval=3600) as monitor:
            started = time.perf_counter()
            loss = session.backward((tokens, targets))
            seconds = time.perf_counter() - started
        peak = max(peak, monitor.peak - monitor.before)
        print(seconds, flush=True)
    print(json.dumps({"peak_bytes": peak, "loss": float(loss)}), flush=True)


main(sys.argv[1], int(sys.argv[2]))
