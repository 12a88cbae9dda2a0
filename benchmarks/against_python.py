"""An unplanned step of gpt-12x384 in PyTorch eager and in snug's C++ model, in turns.

Usage: against_python.py GPT_STEP [steps]. Prints one JSON object per precision: the median of the ratio
snug / PyTorch, pair by pair, and its quartiles.
"""
import json
import subprocess
import sys
import time

import torch

from gpt_12x384 import BATCH, SEQUENCE, VOCABULARY, Gpt


def compare(gpt_step, precision, steps):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Gpt()
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    targets = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
    ours = subprocess.Popen([gpt_step, precision], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ours.stdout.readline()

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
        return float(ours.stdout.readline())

    for _ in range(2):
        python_step(), snug_step()
    pairs = []
    for _ in range(steps):
        pairs.append((python_step(), snug_step()))
        time.sleep(0.05)
    ours.communicate()
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
