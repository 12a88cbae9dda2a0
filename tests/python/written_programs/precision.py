"""Mixed precision: GradScaler with autocast, master weights by hand, steps that are skipped for Inf and NaN."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class MixedProgram(Program):
    count = 5

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4, lambda: nn.LayerNorm(64)), nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(self.count, 256, 64)]


@program
class ScaledAutocast(MixedProgram):
    """bfloat16 autocast; one batch overflows, so that the scaler skips its update and backs off."""

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        self.batches[2] = (self.batches[2][0] * float("inf"), self.batches[2][1])

    def step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


@program
class AutocastAccumulation(MixedProgram):
    """Two forward passes share autocast's cache of casts; one backward pass of their sum."""

    def step(self, batch):
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(self.model(x[:128]), y[:128])
            target = self.model(x[128:] * 0.9).softmax(1).detach()
            loss = loss + F.kl_div(self.model(x[128:]).log_softmax(1), target, reduction="batchmean")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class MasterWeights(MixedProgram):
    """The model is in bfloat16; fp32 weights are the optimizer's, copied back in the step."""

    def __init__(self):
        super().__init__()
        self.model.bfloat16()
        self.masters = [p.detach().float().requires_grad_() for p in self.model.parameters()]
        self.optimizer = torch.optim.Adam(self.masters, 1e-3)

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0].bfloat16()).float(), batch[1])
        (loss * 64).backward()
        for master, p in zip(self.masters, self.model.parameters(), strict=True):
            master.grad = p.grad.float() / 64
            p.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.model.parameters(), strict=True):
                p.copy_(master)
        return loss


class SkippingProgram(MixedProgram):
    """A batch with a NaN has no backward pass and no update. The gradients of the step before it stay."""

    def __init__(self):
        super().__init__()
        self.batches[2] = (self.batches[2][0] * float("nan"), self.batches[2][1])
        self.model.skipped = 0

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@program
class SkippedForNaN(SkippingProgram):
    """An exception is raised and caught in the step."""

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        try:
            if not math.isfinite(loss.item()):
                raise FloatingPointError("loss is not finite")
            self.update(loss)
        except FloatingPointError:
            self.model.skipped += 1
        return loss.detach()


@program
class SkippedForNaNWithALoss(SkippingProgram):
    """The same with a return, of the loss as it is."""

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        if not torch.isfinite(loss):
            self.model.skipped += 1
            return loss
        self.update(loss)
        return loss


@program
class SkippedForNaNWithNothing(SkippingProgram):
    """The same with an empty return."""

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        if torch.isnan(loss):
            self.model.skipped += 1
            return None
        self.update(loss)
        return loss


@program
class SkippedByGradients(MixedProgram):
    """The update is skipped, and gradients are dropped, where their norm is not finite."""

    def __init__(self):
        super().__init__()
        self.batches[1] = (self.batches[1][0] * 1e38, self.batches[1][1])
        self.model.skipped = 0

    def step(self, batch):
        loss = F.cross_entropy(self.model[:-1](batch[0]).pow(3).mm(self.model[-1].weight.t()), batch[1])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        else:
            self.model.skipped += 1
        self.optimizer.zero_grad()
        return loss.detach()


@program
class EarlyExit(MixedProgram):
    """An easy batch leaves after the first layers by a loss.item(); a hard one goes on with a second loss."""

    count = 8

    def __init__(self):
        super().__init__()
        self.exit = nn.Linear(64, 8)
        self.optimizer.add_param_group({"params": list(self.exit.parameters())})
        self.model.exits = 0

    def fit_options(self):
        return {"optimizer": self.optimizer}

    def step(self, batch):
        h = self.model[:2](batch[0])
        loss = F.cross_entropy(self.exit(h), batch[1])
        if loss.item() > 2.2:
            loss = loss + F.cross_entropy(self.model[2:](h), batch[1])
        else:
            self.model.exits += 1
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class StraightThrough(MixedProgram):
    """Quantization-aware training: rounded weights with straight-through gradients, ranges observed in buffers."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(*(m for _ in range(4) for m in (Quantized(64), nn.ReLU())), nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        scaled = x / scale
        ctx.save_for_backward(scaled.abs() <= 127)
        return scaled.round_().clamp_(-128, 127).mul_(scale)

    @staticmethod
    def backward(ctx, g):
        inside, = ctx.saved_tensors
        return g * inside, None


class Quantized(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("range", torch.tensor(0.0))

    def forward(self, x):
        with torch.no_grad():
            seen = x.abs().max()
            self.range = torch.where(self.range == 0, seen, 0.9 * self.range + 0.1 * seen)
        x = Rounded.apply(x, self.range / 127)
        w = self.inner.weight
        w = w + (torch.fake_quantize_per_tensor_affine(w, float(w.detach().abs().max()) / 127, 0, -128, 127) - w).detach()
        return F.linear(x, w, self.inner.bias)
