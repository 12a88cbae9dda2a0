"""GANs: two models and two optimizers in one step."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, program


class GANProgram(Program):
    def __init__(self):
        self.generator = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(True), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(True),
            nn.Linear(64, 64), nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Linear(64, 64), nn.LeakyReLU(0.2, True), nn.Dropout(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.2, True),
            nn.Linear(64, 1),
        )
        self.of_generator = torch.optim.Adam(self.generator.parameters(), 1e-3, betas=(0.5, 0.999))
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3, betas=(0.5, 0.999))
        self.batches = gaussian_batches(5, 512, 64)

    def fit_options(self):
        return {"optimizer": [self.of_critic, self.of_generator]}

    places = ("100%", "80%", "60%")


@program
class DCGAN(GANProgram):
    """As PyTorch's example: two backward passes for the critic, one for the generator through the critic."""

    def step(self, real):
        self.of_critic.zero_grad()
        with self.micro_batch():
            on_real = F.binary_cross_entropy_with_logits(self.critic(real), torch.ones(len(real), 1))
        on_real.backward()
        with self.micro_batch():
            fake = self.generator(torch.randn(len(real), 16))
            on_fake = F.binary_cross_entropy_with_logits(self.critic(fake.detach()), torch.zeros(len(real), 1))
        on_fake.backward()
        self.of_critic.step()
        self.of_generator.zero_grad()
        with self.micro_batch():
            fake = self.generator(torch.randn(len(real), 16))
            deceived = F.binary_cross_entropy_with_logits(self.critic(fake), torch.ones(len(real), 1))
        deceived.backward()
        self.of_generator.step()
        return (on_real + on_fake + deceived).detach()


@program
class DCGANWithSharedFakes(GANProgram):
    """As most write it: the critic and the generator share the fakes, whose graph spans two micro-batches."""

    may_fail = "micro-batch|second time"

    def step(self, real):
        with self.micro_batch():
            fake = self.generator(torch.randn(len(real), 16))
            loss = (F.softplus(-self.critic(real)) + F.softplus(self.critic(fake.detach()))).mean()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()
        with self.micro_batch():
            deceived = F.softplus(-self.critic(fake)).mean()
        self.of_generator.zero_grad()
        deceived.backward()
        self.of_generator.step()
        return (loss + deceived).detach()


@program
class GANWithoutMicroBatches(DCGANWithSharedFakes):
    """The generator's pass is recorded when it runs, so that fit's budget is one for the critic's."""

    may_fail = None
    places = ("100%", "recomputed")

    def step(self, real):
        fake = self.generator(torch.randn(len(real), 16))
        loss = (F.softplus(-self.critic(real)) + F.softplus(self.critic(fake.detach()))).mean()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()
        deceived = F.softplus(-self.critic(fake)).mean()
        self.of_generator.zero_grad()
        deceived.backward()
        self.of_generator.step()
        return (loss + deceived).detach()


@program
class WGANWithGradientPenalty(GANProgram):
    """The penalty is a gradient with create_graph=True; the generator is trained in every second step."""

    def __init__(self):
        super().__init__()
        self.critic.turns = 0

    def penalty(self, real, fake):
        alpha = torch.rand(len(real), 1)
        between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        score = self.critic(between)
        gradient = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)[0]
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    def step(self, real):
        self.of_critic.zero_grad()
        with self.micro_batch():
            fake = self.generator(torch.randn(len(real), 16)).detach()
            loss = self.critic(fake).mean() - self.critic(real).mean() + 10 * self.penalty(real, fake)
        loss.backward()
        self.of_critic.step()
        self.critic.turns += 1
        if self.critic.turns % 2 == 0:
            self.of_generator.zero_grad()
            with self.micro_batch():
                deceived = -self.critic(self.generator(torch.randn(len(real), 16))).mean()
            deceived.backward()
            self.of_generator.step()
        return loss.detach()


@program
class WGANWithClipping(GANProgram):
    """Several turns of the critic in one step, its weights clipped after each. Not at lower budgets: fit sees the first turn
    alone, which takes less memory than the generator's, and a budget that it accepts ends in OutOfBudget later."""

    places = ("100%",)

    def step(self, real):
        for p in self.critic.parameters():
            p.requires_grad_(True)
        for part in real.chunk(2):
            self.of_critic.zero_grad()
            with self.micro_batch():
                with torch.no_grad():
                    fake = self.generator(torch.randn(len(part), 16))
                loss = self.critic(fake).mean() - self.critic(part).mean()
            loss.backward()
            self.of_critic.step()
            for p in self.critic.parameters():
                p.data.clamp_(-0.05, 0.05)
        for p in self.critic.parameters():
            p.requires_grad_(False)
        self.of_generator.zero_grad()
        with self.micro_batch():
            deceived = -self.critic(self.generator(torch.randn(len(real), 16))).mean()
        deceived.backward()
        self.of_generator.step()
        return (loss + deceived).detach()


@program
class GANInTwoSessions(GANProgram):
    """One session runs both steps, the second by `step=`."""

    goes_backward = False

    def fit_options(self):
        return {"optimizer": [self.of_critic, self.of_generator]}

    def step(self, real):
        with torch.no_grad():
            fake = self.generator(torch.randn(len(real), 16))
        return F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake)).mean()

    def step_of_generator(self, real):
        return F.softplus(-self.critic(self.generator(torch.randn(len(real), 16)))).mean()

    def iteration(self, real, backward):
        loss = backward(real)
        self.of_critic.step()
        self.of_critic.zero_grad()
        backward(real, step=self.step_of_generator)
        self.of_generator.step()
        self.of_generator.zero_grad()
        self.of_critic.zero_grad()
        return loss
