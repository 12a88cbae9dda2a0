"""Generative models that draw noise: diffusion with a torch.Generator and an average, a variational autoencoder, mixtures."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal, kl_divergence

from .program import Program, gaussian_batches, program


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.middle, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(32, 3, 3, padding=1)
        self.register_buffer("frequencies", torch.exp(-math.log(1000) * torch.arange(8) / 8), persistent=False)

    def forward(self, x, t):
        angles = t[:, None].float() * self.frequencies
        emb = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h = F.silu(self.first(x))
        d = F.silu(self.norm(self.down(h)) + emb[:, :, None, None])
        d = F.silu(self.middle(d)) + d
        return self.last(torch.cat([h, self.up(d)], 1))


@program
class Diffusion(Program):
    """DDPM with classifier-free dropping, min-SNR weights, an average of the weights, and noise from a generator."""

    def __init__(self):
        self.model = Denoiser()
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.model.generator = torch.Generator().manual_seed(8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2e-3, total_steps=10)
        self.alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
        self.batches = gaussian_batches(4, 8, 3, 16, 16)

    def blocks(self):
        return [self.model.first, self.model.down, self.model.middle]

    def step(self, x):
        g = self.model.generator
        noise = torch.randn(x.shape, generator=g)
        t = torch.randint(0, 100, (len(x),), generator=g)
        a = self.alphas[t][:, None, None, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        kept = (torch.rand(len(x), 1, 1, 1) > 0.1).float()
        weights = (a / (1 - a)).clamp(max=5)
        loss = (weights * (self.model(noisy * kept, t) - noise).square()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 0.1)
        return loss


@program
class VariationalAutoencoder(Program):
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
        self.optimizer = torch.optim.Adamax([*self.model.parameters(), *self.decoder.parameters()], 2e-3)
        self.batches = [x.sigmoid() for x in gaussian_batches(4, 512, 64)]

    def step(self, x):
        mean, log = self.model(x).chunk(2, dim=1)
        posterior = Normal(mean, (0.5 * log).exp())
        decoded = self.decoder(posterior.rsample())
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        kl = kl_divergence(posterior, prior).sum(1).mean()
        loss = F.binary_cross_entropy(decoded, x, reduction="sum") / len(x) + 0.5 * kl
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class MixtureDensity(Program):
    """A mixture of Gaussians by torch.distributions, and its own argument validation."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5 * 9))
        self.optimizer = torch.optim.RAdam(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.randn(256, 4)) for x in gaussian_batches(4, 256, 32)]

    def step(self, batch):
        logits, mean, scale = self.model(batch[0]).split([5, 20, 20], dim=1)
        parts = Independent(Normal(mean.view(-1, 5, 4), F.softplus(scale).view(-1, 5, 4) + 1e-3), 1)
        loss = -MixtureSameFamily(Categorical(logits=logits), parts).log_prob(batch[1]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class GumbelCodes(Program):
    """Straight-through Gumbel softmax with a falling temperature, and a full covariance by Cholesky."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8 * 8), nn.Unflatten(1, (8, 8)))
        self.decoder = nn.Linear(64, 4 + 16)
        self.model.temperature = 2.0
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.decoder.parameters()], 1e-3)
        self.batches = [(x, torch.randn(128, 4)) for x in gaussian_batches(4, 128, 32)]

    def step(self, batch):
        codes = F.gumbel_softmax(self.model(batch[0]), tau=self.model.temperature, hard=True)
        self.model.temperature = max(0.5, self.model.temperature * 0.9)
        mean, flat = self.decoder(codes.flatten(1)).split([4, 16], dim=1)
        square = flat.view(-1, 4, 4)
        covariance = square @ square.transpose(1, 2) + 0.5 * torch.eye(4)
        loss = -MultivariateNormal(mean, covariance).log_prob(batch[1]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss
