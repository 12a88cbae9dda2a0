"""NeRF: ray batches with hierarchical sampling, where a coarse net decides what a fine one sees."""

import torch
from torch import nn

from .program import Program, program


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 + 3 * 8, 48), nn.ReLU(inplace=True), nn.Linear(48, 48), nn.ReLU(inplace=True))
        self.density, self.color = nn.Linear(48, 1), nn.Sequential(nn.Linear(48 + 3, 24), nn.ReLU(inplace=True), nn.Linear(24, 3))

    def forward(self, points, directions):
        scaled = [points * 2 ** i for i in range(4)]
        h = self.net(torch.cat([points, *(f(s) for s in scaled for f in (torch.sin, torch.cos))], -1))
        return torch.sigmoid(self.color(torch.cat([h, directions], -1))), self.density(h).squeeze(-1)


def rendered(colors, density, z):
    gaps = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e2)], 1)
    alpha = 1 - torch.exp(-torch.relu(density + torch.randn_like(density) * 0.1) * gaps)
    passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weights = alpha * passed
    return (weights[..., None] * colors).sum(1), weights


def sampled_by(weights, edges, count):
    density = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cumulative = torch.cat([torch.zeros_like(density[:, :1]), density.cumsum(-1)], -1)
    u = torch.rand(len(weights), count)
    above = torch.searchsorted(cumulative.contiguous(), u, right=True)
    below = (above - 1).clamp(min=0)
    above = above.clamp(max=cumulative.shape[-1] - 1)
    c0, c1 = cumulative.gather(1, below), cumulative.gather(1, above)
    e0, e1 = edges.gather(1, below.clamp(max=edges.shape[1] - 1)), edges.gather(1, above.clamp(max=edges.shape[1] - 1))
    width = torch.where(c1 - c0 < 1e-5, torch.ones_like(c0), c1 - c0)
    return e0 + (u - c0) / width * (e1 - e0)


@program
class NeRF(Program):
    places = ("100%", "60%", "recomputed")

    def __init__(self):
        self.coarse, self.fine = Field(), Field()
        self.optimizer = torch.optim.Adam([*self.coarse.parameters(), *self.fine.parameters()], 5e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        images = torch.rand(2, 24, 24, 3)
        self.coarse.register_buffer("images", images)
        self.batches = [torch.randint(0, 2 * 24 * 24, (48,)) for _ in range(4)]

    def blocks(self):
        return [self.coarse.net, self.fine.net]

    def colors_at(self, field, origins, directions, z):
        points = origins[:, None] + directions[:, None] * z[..., None]
        return rendered(*field(points, directions[:, None].expand_as(points)), z)

    def step(self, chosen):
        wanted = self.coarse.images.view(-1, 3)[chosen]
        angles = chosen.float()[:, None] * torch.tensor([0.01, 0.02, 0.03])
        origins = torch.cos(angles)
        directions = nn.functional.normalize(-origins + 0.1 * torch.sin(angles), dim=1)
        z = torch.linspace(2, 6, 16).expand(len(chosen), 16)
        z = z + torch.rand_like(z) * 0.25
        rough, weights = self.colors_at(self.coarse, origins, directions, z)
        finer = sampled_by(weights[:, 1:-1].detach(), 0.5 * (z[:, 1:] + z[:, :-1]), 16).detach()
        z = torch.sort(torch.cat([z, finer], 1), dim=1).values
        sharp, _ = self.colors_at(self.fine, origins, directions, z)
        loss = (rough - wanted).square().mean() + (sharp - wanted).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss
