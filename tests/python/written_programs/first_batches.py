"""Layers that take their initial values from the first batch."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class ActNorm(nn.Module):
    """Glow's: the first batch decides scale and bias, which a buffer remembers."""

    def __init__(self, width):
        super().__init__()
        self.bias, self.log_scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x):
        if not self.initialized:
            with torch.no_grad():
                self.bias.data.copy_(-x.mean(0))
                self.log_scale.data.copy_(-(x.std(0) + 1e-6).log())
                self.initialized.fill_(True)
        return (x + self.bias) * self.log_scale.exp(), self.log_scale.sum()


class Coupling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width // 2, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        kept, changed = x.chunk(2, dim=1)
        shift, scale = self.net(kept).chunk(2, dim=1)
        scale = torch.sigmoid(scale + 2)
        return torch.cat([(changed + shift) * scale, kept], dim=1), scale.log().sum(1)


@program
class Flow(Program):
    """A normalizing flow with ActNorm."""

    def __init__(self):
        self.model = nn.ModuleList(m for _ in range(4) for m in (ActNorm(64), Coupling(64)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(4, 256, 64)

    def blocks(self):
        return list(self.model)

    def step(self, x):
        volume = 0
        for layer in self.model:
            x, more = layer(x)
            volume = volume + more
        loss = (0.5 * x.square().sum(1) - volume).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        return loss


class Codebook(nn.Module):
    """VQ-VAE-2's: codes are averages of what was assigned to them, and start as rows of the first batch."""

    def __init__(self, codes, width, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("embedding", torch.zeros(codes, width))
        self.register_buffer("sizes", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, width))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            rows = torch.randperm(len(x))[:len(self.embedding)]
            self.embedding.data.copy_(x.detach()[rows])
            self.sums.data.copy_(self.embedding)
            self.sizes.fill_(1)
            self.ready = True
        distances = torch.cdist(x.detach(), self.embedding)
        indices = distances.argmin(1)
        quantized = F.embedding(indices, self.embedding)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(indices, len(self.embedding)).type(x.dtype)
                self.sizes.data.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums.data.mul_(self.decay).add_(hot.t() @ x.detach(), alpha=1 - self.decay)
                total = self.sizes.sum()
                smooth = (self.sizes + 1e-5) / (total + len(self.sizes) * 1e-5) * total
                self.embedding.data.copy_(self.sums / smooth.unsqueeze(1))
                dead = (self.sizes < 0.2).nonzero().flatten()
                if len(dead):
                    self.embedding.data[dead] = x.detach()[torch.randint(0, len(x), (len(dead),))]
        commitment = F.mse_loss(x, quantized.detach())
        return x + (quantized - x).detach(), commitment


@program
class VQVAE(Program):
    def __init__(self):
        self.model = nn.Sequential(*layers(64, 3), Codebook(128, 64), *layers(64, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(5, 512, 64)

    def step(self, x):
        h = self.model[:3](x)
        quantized, commitment = self.model[3](h)
        loss = F.mse_loss(self.model[4:](quantized), x) + 0.25 * commitment
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss


class InitializedNorm(nn.Module):
    """Weight normalization with data-dependent initialization (Salimans and Kingma)."""

    def __init__(self, width):
        super().__init__()
        self.v = nn.Parameter(torch.randn(width, width) * 0.05)
        self.g, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.is_initialized = False

    def forward(self, x):
        direction = self.v / self.v.norm(dim=1, keepdim=True)
        if not self.is_initialized:
            self.is_initialized = True
            with torch.no_grad():
                t = x @ direction.t()
                scale = 1 / (t.std(0) + 1e-8)
                self.g.copy_(scale)
                self.b.copy_(-t.mean(0) * scale)
        return F.linear(x, direction * self.g.unsqueeze(1), self.b)


@program
class DataDependentWeightNorm(Program):
    def __init__(self):
        self.model = nn.Sequential(*(m for _ in range(5) for m in (InitializedNorm(64), nn.ELU())))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(4, 512, 64)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = F.smooth_l1_loss(self.model(x), x)
        loss.backward()
        self.optimizer.step()
        return loss


@program
class LazyModules(Program):
    """Lazy layers get their shapes in the first forward pass, which is the one that fit records."""

    error = "LazyLinear would get their shapes in the recorded step"
    places = ("100%",)
    goes_backward = False

    def __init__(self):
        self.model = nn.Sequential(*(m for _ in range(4) for m in (nn.LazyLinear(64), nn.LazyBatchNorm1d(), nn.ReLU())))
        self.batches = gaussian_batches(4, 256, 32)
        self.optimizer = None

    def step(self, x):
        return self.model(x).square().mean()

    def iteration(self, x, backward):
        loss = backward(x)
        self.optimizer = self.optimizer or torch.optim.SGD(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss
