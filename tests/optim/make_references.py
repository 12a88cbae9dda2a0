"""Writes references.safetensors beside it: make_references.py (needs torch 2.13, safetensors, bitsandbytes 0.50).

Of each optimizer: the weights and, where it is small, the state that torch.optim (bitsandbytes for 8 bits) reaches from
the weights "matrix", "large" and "vector" with the gradients of four steps. Norms and clipped gradients of
torch.nn.utils, learning rates of torch.optim.lr_scheduler, and what torch.amp.GradScaler does in a scenario with
overflows, one number a step.
"""
import math
import pathlib

import bitsandbytes
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
STEPS, RATE = 4, 1e-2


def begin(generator):
    shapes = {"matrix": (12, 20), "tall": (20, 6), "large": (80, 64), "vector": (24,)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    gradients = {f"gradient.{step}.{name}": torch.randn(shape, generator=generator) * 10.0 ** (step - 2)
                 for step in range(STEPS) for name, shape in shapes.items()}
    return weights, gradients


def run(make, weights, gradients, names):
    parameters = {name: torch.nn.Parameter(weights[name].clone()) for name in names}
    optimizer = make(list(parameters.values()))
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = gradients[f"gradient.{step}.{name}"].clone()
        optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}, {n: optimizer.state[p] for n, p in parameters.items()}


def optimizers(weights, gradients):
    found = {}
    kinds = {
        "adamw": (lambda p: torch.optim.AdamW(p, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1), ["matrix", "vector"]),
        "adafactor": (lambda p: torch.optim.Adafactor(p, lr=RATE, weight_decay=0.1, foreach=False),
                      ["matrix", "tall", "vector"]),
        "muon": (lambda p: torch.optim.Muon(p, lr=RATE, weight_decay=0.1, momentum=0.95,
                                            adjust_lr_fn="match_rms_adamw"), ["matrix", "tall"]),
        "sgd": (lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9), ["matrix", "vector"]),
        "adamw_8bit": (lambda p: bitsandbytes.optim.AdamW8bit(p, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1),
                       ["large", "vector"]),
    }
    for kind, (make, names) in kinds.items():
        after, state = run(make, weights, gradients, names)
        for name, weight in after.items():
            found[f"{kind}.{name}"] = weight
        if kind == "adamw_8bit":
            for key in ("state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"):
                found[f"{kind}.large.{key}"] = state["large"][key].contiguous()
    return found


def clipping(gradients):
    found = {}
    for order in (1.0, 2.0, math.inf):
        parameters = [torch.nn.Parameter(torch.zeros_like(g)) for n, g in gradients.items() if n.startswith("gradient.3")]
        for p, g in zip(parameters, [g for n, g in gradients.items() if n.startswith("gradient.3")]):
            p.grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 2.5, norm_type=order)
        found[f"clip.{order}.norm"] = norm.reshape(1)
        found[f"clip.{order}.first"] = parameters[0].grad
    parameter = torch.nn.Parameter(torch.zeros(24))
    parameter.grad = gradients["gradient.3.vector"].clone()
    torch.nn.utils.clip_grad_value_([parameter], 5.0)
    found["clip.value.vector"] = parameter.grad
    return found


def schedules():
    """20 steps, of which 4 warm up, to a peak of 1; the last one at a tenth of it."""
    lr = torch.optim.lr_scheduler
    warm, steps, final = 4, 20, 0.1
    left = steps - 1 - warm
    constant = lambda o: lr.ConstantLR(o, factor=1.0, total_iters=1)
    line_of = lambda length: lambda o: lr.LinearLR(o, start_factor=1.0, end_factor=final, total_iters=length)
    decays = {
        "constant": [(0, constant)],
        "linear": [(0, line_of(left))],
        "cosine": [(0, lambda o: lr.CosineAnnealingLR(o, T_max=left, eta_min=final))],
        "wsd": [(0, constant), (left - 6, line_of(6))],
    }
    found = {}
    for name, parts in decays.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        warmup = lr.LinearLR(optimizer, start_factor=1 / warm, end_factor=1.0, total_iters=warm - 1)
        schedule = lr.SequentialLR(optimizer, [warmup] + [make(optimizer) for _, make in parts],
                                   milestones=[warm + first for first, _ in parts])
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        found[f"schedule.{name}"] = torch.tensor(rates, dtype=torch.float64)
    return found


def scaler():
    """Scale 4, interval 2; gradients of 1 times the scale, infinite in steps 2 and 5; two optimizers, the second of
    which is unscaled by hand, and overflows in step 5."""
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    optimizers = [torch.optim.SGD([w], lr=0.125) for w in weights]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)
    scales, trackers, firsts, seconds = [], [], [], []
    for step in range(8):
        for w in weights:
            w.grad = None
        scaler.scale(weights[0].sum() + weights[1].sum()).backward()
        if step == 2:
            weights[0].grad[1] = math.inf
        if step == 5:
            weights[1].grad[0] = math.nan
        scaler.unscale_(optimizers[1])
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(float(scaler.state_dict()["_growth_tracker"]))
        firsts.append(weights[0][0].item())
        seconds.append(weights[1][0].item())
    return {f"scaler.{name}": torch.tensor(values, dtype=torch.float64)
            for name, values in {"scale": scales, "tracker": trackers, "first": firsts, "second": seconds}.items()}


def main():
    weights, gradients = begin(torch.Generator().manual_seed(0))
    found = {**weights, **gradients, **optimizers(weights, gradients), **clipping(gradients), **schedules(), **scaler()}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, HERE / "references.safetensors")


main()
