"""Two models in one process: distillation with two optimizers, and sessions one after another."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


@program
class MutualLearning(Program):
    """Two students teach each other in one backward pass, with an optimizer each and a shared schedule."""

    def __init__(self):
        self.model, self.other = (nn.Sequential(*layers(64, 3, lambda: nn.Dropout(0.1)), nn.Linear(64, 8)) for _ in range(2))
        sgd = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.optimizers = [sgd, torch.optim.AdamW(self.other.parameters(), 1e-3)]
        self.schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in self.optimizers]
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(4, 256, 64)]

    def step(self, batch):
        one, two = self.model(batch[0]), self.other(batch[0])
        loss = F.cross_entropy(one, batch[1]) + F.cross_entropy(two, batch[1])
        loss = loss + F.kl_div(one.log_softmax(1), two.softmax(1).detach(), reduction="batchmean")
        loss = loss + F.kl_div(two.log_softmax(1), one.softmax(1).detach(), reduction="batchmean")
        for o in self.optimizers:
            o.zero_grad()
        loss.backward()
        for o, s in zip(self.optimizers, self.schedules, strict=True):
            o.step()
            s.step()
        return loss


class FeatureReader(nn.Module):
    """Reads features of a frozen teacher by hooks, which are removed and set again in each pass."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher, self.found = teacher, []

    def forward(self, x):
        self.found.clear()
        handles = [layer.register_forward_hook(lambda m, i, o: self.found.append(o)) for layer in self.teacher[:2]]
        try:
            with torch.no_grad():
                return self.teacher(x)
        finally:
            for handle in handles:
                handle.remove()


@program
class FeatureDistillation(Program):
    def __init__(self):
        self.reader = FeatureReader(nn.Sequential(*layers(64, 3), nn.Linear(64, 8)).eval().requires_grad_(False))
        self.model = nn.Sequential(*layers(64, 2), nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(4, 256, 64)

    def step(self, x):
        wanted, h, losses = self.reader(x), x, []
        for layer, feature in zip(self.model[:2], self.reader.found, strict=True):
            h = layer(h)
            losses.append(F.mse_loss(h, feature))
        losses.append(F.kl_div(F.log_softmax(self.model[2](h) / 4, 1), F.softmax(wanted / 4, 1), reduction="batchmean") * 16)
        loss = torch.stack(losses).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class SleepingExperts(Program):
    """Parameters that take part in some steps alone, with an optimizer that is rebuilt between steps."""

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 3))
        self.heads = nn.ModuleList(nn.Linear(64, 8) for _ in range(3))
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.heads.parameters()], 1e-3)
        self.batches = [(x, torch.randint(0, 8, (256,)), i % 3) for i, x in enumerate(gaussian_batches(6, 256, 64))]

    def fit_options(self):
        return {"optimizer": self.optimizer}

    def iteration(self, batch, backward):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        if at == 3:
            state = self.optimizer.state_dict()
            self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.heads.parameters()], 1e-3)
            self.optimizer.load_state_dict(state)
        return backward(batch)

    def step(self, batch):
        x, y, task = batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.heads[task](self.model(x)), y)
        loss.backward()
        self.optimizer.step()
        return loss
