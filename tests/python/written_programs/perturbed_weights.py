"""Two forward and backward passes with perturbed weights: SAM, adversarial weight perturbation and virtual adversarial
training."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class SAM(torch.optim.Optimizer):
    """As github.com/davda54/sam has it."""

    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]))
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base.step()
        self.zero_grad()


class SAMProgram(Program):
    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4, lambda: nn.Dropout(0.1)), nn.Linear(64, 8))
        self.optimizer = SAM(self.model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
        self.batches = [(x, torch.randint(0, 8, (512,))) for x in gaussian_batches(4, 512, 64)]

    def loss_of(self, batch):
        with self.micro_batch():
            return F.cross_entropy(self.model(batch[0]), batch[1])


@program
class SAMInOneStep(SAMProgram):
    """Both passes in one step, each a micro-batch."""

    def step(self, batch):
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.first_step()
        self.loss_of(batch).backward()
        self.optimizer.second_step()
        return loss


@program
class SAMWithoutMicroBatches(SAMInOneStep):
    places = ("100%",)

    def loss_of(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1])


@program
class SAMInTwoSteps(SAMProgram):
    """One session runs both passes."""

    goes_backward = False

    def fit_options(self):
        return {"optimizer": self.optimizer.base}

    def step(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def iteration(self, batch, backward):
        loss = backward(batch)
        self.optimizer.first_step()
        backward(batch)
        self.optimizer.second_step()
        return loss


@program
class VirtualAdversarialTraining(Program):
    """The direction of the perturbation is a gradient by autograd.grad inside of the forward pass."""

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4), nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(4, 256, 64)]

    def step(self, batch):
        x, y = batch
        with torch.no_grad():
            target = self.model(x).softmax(1)
        d = F.normalize(torch.rand_like(x) - 0.5, dim=1)
        for _ in range(2):
            d.requires_grad_()
            distance = F.kl_div(self.model(x + 10 * d).log_softmax(1), target, reduction="batchmean")
            d = F.normalize(torch.autograd.grad(distance, d)[0], dim=1).detach()
        smooth = F.kl_div(self.model(x + d).log_softmax(1), target, reduction="batchmean")
        loss = F.cross_entropy(self.model(x), y) + smooth
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class AdversarialExamples(Program):
    """PGD: inputs are found by autograd.grad in eval mode, then trained on."""

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4, lambda: nn.BatchNorm1d(64)), nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(4, 256, 64)]

    def attacked(self, x, y):
        self.model.eval()
        found = x + torch.empty_like(x).uniform_(-0.1, 0.1)
        for _ in range(3):
            found = found.detach().requires_grad_()
            gradient, = torch.autograd.grad(F.cross_entropy(self.model(found), y), [found])
            found = torch.min(torch.max(found + 0.02 * gradient.sign(), x - 0.1), x + 0.1)
        self.model.train()
        return found.detach()

    def step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.model(self.attacked(x, y)), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class FreeAdversarialTraining(Program):
    """The backward pass gives the gradient of the perturbation as well, which is updated in place outside of the model."""

    def __init__(self):
        self.model = nn.Sequential(*layers(64, 4), nn.Linear(64, 8))
        self.noise = torch.zeros(256, 64, requires_grad=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(4, 256, 64)]

    def step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.model(x + self.noise), y)
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            self.noise += 0.01 * self.noise.grad.sign()
            self.noise.clamp_(-0.1, 0.1)
            self.noise.grad.zero_()
        self.optimizer.step()
        return loss
