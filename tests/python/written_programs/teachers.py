"""Students with a teacher that is an average of them: mean teacher, BYOL and MoCo, with the average updated in the step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class TeacherProgram(Program):
    places = ("100%", "80%", "60%", "recomputed")
    momentum = 0.9

    def __init__(self):
        self.student = nn.Sequential(*layers(64, 4, lambda: nn.BatchNorm1d(64)), nn.Linear(64, 32))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, 32))
        self.optimizer = torch.optim.SGD([*self.student.parameters(), *self.predictor.parameters()], 0.05, momentum=0.9)
        self.batches = [(x, x + 0.1 * torch.randn_like(x)) for x in gaussian_batches(4, 512, 64)]

    def blocks(self):
        return list(self.student)

    @torch.no_grad()
    def update_teacher(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.mul_(self.momentum).add_(s, alpha=1 - self.momentum)
        for t, s in zip(self.teacher.buffers(), self.student.buffers(), strict=True):
            t.copy_(s)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class MeanTeacherBefore(TeacherProgram):
    def step(self, batch):
        self.update_teacher()
        with torch.no_grad():
            target = self.teacher(batch[1])
        return self.update(F.mse_loss(self.student(batch[0]), target))


@program
class MeanTeacherAfter(TeacherProgram):
    """The average is updated after the optimizer, through a state_dict as many do."""

    def step(self, batch):
        student = self.student(batch[0])
        with torch.no_grad():
            target = self.teacher(batch[1])
        loss = self.update(F.mse_loss(student, target) + F.cross_entropy(student, target.softmax(1)))
        averages = self.teacher.state_dict()
        for name, value in self.student.state_dict().items():
            if value.is_floating_point():
                averages[name].lerp_(value, 1 - self.momentum)
        return loss


@program
class MeanTeacherBetween(TeacherProgram):
    """The average is updated after the student's forward pass and before backward."""

    def step(self, batch):
        student = self.student(batch[0])
        self.update_teacher()
        with torch.no_grad():
            target = self.teacher(batch[1])
        return self.update(F.mse_loss(student, target))


@program
class MeanTeacherByData(TeacherProgram):
    """As the mean teacher of 2017: through .data, with the weight of the step."""

    def __init__(self):
        super().__init__()
        self.student.steps = 0

    def step(self, batch):
        loss = self.update(F.mse_loss(self.student(batch[0]), self.teacher(batch[1]).detach()))
        self.student.steps += 1
        alpha = min(1 - 1 / (self.student.steps + 1), 0.99)
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            t.data.mul_(alpha).add_(s.data, alpha=1 - alpha)
        return loss


@program
class BYOL(TeacherProgram):
    def loss_of(self, online, target):
        return 2 - 2 * F.cosine_similarity(self.predictor(self.student(online)), target, dim=1)

    def step(self, batch):
        one, other = batch
        with torch.inference_mode():
            targets = self.teacher(one), self.teacher(other)
        targets = [t.clone() for t in targets]
        loss = self.update((self.loss_of(one, targets[1]) + self.loss_of(other, targets[0])).mean())
        self.update_teacher()
        return loss


@program
class MoCo(TeacherProgram):
    """Momentum contrast: a queue of keys in buffers, which the step fills."""

    def __init__(self):
        super().__init__()
        self.memory = nn.Module()
        self.memory.register_buffer("queue", F.normalize(torch.randn(32, 2048), dim=0))
        self.memory.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        begin = int(self.memory.pointer)
        self.memory.queue[:, begin:begin + len(keys)] = keys.T
        self.memory.pointer[0] = (begin + len(keys)) % self.memory.queue.shape[1]

    def step(self, batch):
        queries = F.normalize(self.student(batch[0]), dim=1)
        with torch.no_grad():
            self.update_teacher()
            order = torch.randperm(len(batch[1]))
            keys = F.normalize(self.teacher(batch[1][order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", [queries, keys]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [queries, self.memory.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        self.enqueue(keys)
        return self.update(loss)
