"""Graphs, spectra, fixed points and images: scatter_reduce, complex FFTs, equilibria with hooks, in-place residual networks."""

import torch
import torch.nn.functional as F
from torch import autograd, nn

from .program import Program, gaussian_batches, program


class GraphLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.gate, self.update = nn.Linear(2 * width, width), nn.Linear(width, 1), nn.Linear(2 * width, width)

    def forward(self, x, edges):
        source, target = edges
        messages = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        scores = self.gate(messages).squeeze(1)
        top = torch.full((len(x),), -1e9).scatter_reduce(0, target, scores, "amax", include_self=True)
        weights = (scores - top[target]).exp()
        total = torch.zeros(len(x)).scatter_add(0, target, weights)[target] + 1e-9
        summed = torch.zeros_like(x).index_add(0, target, messages * (weights / total)[:, None])
        largest = torch.zeros_like(x).scatter_reduce(0, target[:, None].expand_as(messages), messages, "amax")
        return x + self.update(torch.cat([summed, largest], 1)).relu()


@program
class GraphNetwork(Program):
    """Batches of graphs with other numbers of edges; readout by segment means."""

    def __init__(self):
        self.model = nn.ModuleList(GraphLayer(32) for _ in range(3))
        self.head = nn.Linear(32, 3)
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.head.parameters()], 2e-3)
        self.batches = []
        for edges in (900, 800, 900, 850, 800, 900):
            owners = torch.randint(0, 16, (256,)).sort().values
            self.batches.append((torch.randn(256, 32), torch.randint(0, 256, (2, edges)), owners, torch.randint(0, 3, (16,))))

    def blocks(self):
        return list(self.model)

    def step(self, batch):
        x, edges, owners, y = batch
        kept = torch.rand(edges.shape[1]) > 0.1  # DropEdge
        edges = edges[:, kept]
        for layer in self.model:
            x = layer(x, edges)
        pooled = torch.zeros(16, 32).scatter_reduce(0, owners[:, None].expand_as(x), x, "mean", include_self=False)
        loss = F.cross_entropy(self.head(pooled), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


class SpectralLayer(nn.Module):
    """Of a Fourier neural operator."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :self.modes] = torch.einsum("bim,iom->bom", spectrum[:, :, :self.modes], self.weight)
        return F.gelu(torch.fft.irfft(out, n=x.shape[-1]) + self.skip(x))


@program
class FourierOperator(Program):
    def __init__(self):
        self.model = nn.Sequential(nn.Conv1d(2, 16, 1), *(SpectralLayer(16, 8) for _ in range(3)), nn.Conv1d(16, 1, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        self.batches = [(x, x[:, :1].cumsum(-1) / 8) for x in gaussian_batches(4, 16, 2, 64)]

    def step(self, batch):
        found = self.model(batch[0])
        loss = F.mse_loss(found, batch[1]) + 0.1 * F.l1_loss(torch.fft.rfft(found).abs(), torch.fft.rfft(batch[1]).abs())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


class Equilibrium(nn.Module):
    """As the tutorial on deep equilibrium models: a fixed point without gradients, and a hook that solves backward."""

    def __init__(self, width):
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh())
        self.iterations = []

    def solve(self, f, start):
        z = start
        for i in range(30):
            following = f(z)
            if (following - z).norm() < 1e-4 * z.norm().clamp(min=1e-6):
                break
            z = following
        self.iterations.append(i)
        return following

    def forward(self, x):
        with torch.no_grad():
            z = self.solve(lambda z: self.cell(torch.cat([z, x], 1)), torch.zeros_like(x))
        z = self.cell(torch.cat([z, x], 1))
        z0 = z.clone().detach().requires_grad_()
        f0 = self.cell(torch.cat([z0, x], 1))
        if z.requires_grad:
            z.register_hook(lambda g: self.solve(lambda y: autograd.grad(f0, z0, y, retain_graph=True)[0] + g, g))
        return z


@program
class DeepEquilibrium(Program):
    places = ("100%", "80%", "60%")

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(32, 48), Equilibrium(48), nn.Linear(48, 8))
        with torch.no_grad():
            self.model[1].cell[0].weight.mul_(0.3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(4, 256, 32)]

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


class Residual(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if a != b else None

    def forward(self, x):
        kept = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.short is not None:
            kept = self.short(x)
        out += kept
        return self.relu(out)


@program
class ResNetInPlace(Program):
    """In-place ReLU and additions, channels_last, hooks that store activations for a perceptual loss."""

    def __init__(self):
        blocks = [nn.Conv2d(3, 8, 3, 1, 1), Residual(8, 8), Residual(8, 16, 2), Residual(16, 16)]
        self.model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        self.model.to(memory_format=torch.channels_last)
        self.model.seen = {}
        for i in (1, 2):
            self.model[i].register_forward_hook(lambda module, inputs, output, i=i: self.model.seen.__setitem__(i, output))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        images = [x.to(memory_format=torch.channels_last) for x in gaussian_batches(4, 16, 3, 16, 16)]
        self.batches = [(x, torch.randint(0, 10, (16,))) for x in images]

    def step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss = loss + 1e-3 * sum(h.square().mean() for h in self.model.seen.values())
        self.model.seen.clear()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class StoredActivations(Program):
    """Hooks keep activations and their gradients over the end of the step, with retain_grad."""

    def __init__(self):
        self.model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 4))
        self.model.stored = []
        for layer in self.model[1::2]:
            layer.register_forward_hook(self.store)
        self.model.statistics = []
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(4, 256, 64)

    def store(self, module, inputs, output):
        output.retain_grad()
        self.model.stored.append(output)

    def step(self, x):
        self.model.stored.clear()
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.model.statistics.append([(h.abs().mean().item(), h.grad.norm().item()) for h in self.model.stored])
        self.optimizer.step()
        return loss
