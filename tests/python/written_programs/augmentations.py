"""Steps that draw from `random` and NumPy: crops, mixup, cutout, layers that are left out."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, layers, program


class ImageProgram(Program):
    def __init__(self):
        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

        self.model = nn.Sequential(
            block(3, 8), block(8, 8), nn.MaxPool2d(2), block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9, nesterov=True)
        self.batches = [(x, torch.randint(0, 10, (24,))) for x in gaussian_batches(4, 24, 3, 20, 20)]

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class RandomCrops(ImageProgram):
    """One crop for each image, flips by chance, and cutout by NumPy."""

    def augmented(self, x):
        crops = []
        for image in x:
            top, left = random.randint(0, 4), random.randint(0, 4)
            crop = image[:, top:top + 16, left:left + 16].clone()
            if random.random() < 0.5:
                crop = crop.flip(-1)
            cy, cx = np.random.randint(16, size=2)
            crop[:, max(0, cy - 2):cy + 2, max(0, cx - 2):cx + 2] = 0
            crops.append(crop)
        return torch.stack(crops)

    def step(self, batch):
        return self.update(F.cross_entropy(self.model(self.augmented(batch[0])), batch[1]))


@program
class Mixup(ImageProgram):
    """Mixup or CutMix by a coin of NumPy; the shapes stay, the operators do not."""

    def step(self, batch):
        x, y = batch
        share, order = np.random.beta(0.4, 0.4), torch.from_numpy(np.random.permutation(len(x)))
        if np.random.rand() < 0.5:
            mixed = share * x + (1 - share) * x[order]
        else:
            side = int(20 * np.sqrt(1 - share))
            top, left = np.random.randint(0, 21 - side, size=2)
            mixed = x.clone()
            mixed[:, :, top:top + side, left:left + side] = x[order, :, top:top + side, left:left + side]
            share = 1 - side * side / 400
        logits = self.model(mixed)
        return self.update(share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order]))


class Dropped(nn.Module):
    """LayerDrop with a generator of NumPy that the module holds, and stochastic depth by Python's."""

    def __init__(self, depth):
        super().__init__()
        self.inner = nn.ModuleList(layers(64, depth, lambda: nn.Dropout(0.1)))
        self.random = np.random.default_rng(4)
        self.skipped = 0

    def forward(self, x):
        for layer in self.inner:
            if self.random.random() < 0.3:
                self.skipped += 1
                continue
            x = x + layer(x) if random.random() > 0.2 else x
        return x


@program
class LayerDrop(Program):
    """Ten steps with other layers in each."""

    def __init__(self):
        self.model = nn.Sequential(Dropped(4), nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(10, 256, 64)]

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


@program
class RandomResolutions(ImageProgram):
    """Multi-scale training: the largest size first, then one of three in each step."""

    def __init__(self):
        super().__init__()
        self.model.steps = 0
        self.batches = [(x, torch.randint(0, 10, (24,))) for x in gaussian_batches(8, 24, 3, 20, 20)]

    def step(self, batch):
        size = random.choice([12, 16, 20]) if self.model.steps else 20
        self.model.steps += 1
        x = F.interpolate(batch[0], size=(size, size), mode="bilinear", align_corners=False)
        return self.update(F.cross_entropy(self.model(x), batch[1], label_smoothing=0.1))


@program
class MaskedLanguageModel(Program):
    """BERT's masking by torch.bernoulli in place, on a copy and on the labels; the masked positions decide shapes."""

    def __init__(self):
        self.model = nn.Sequential(nn.Embedding(128, 64), *layers(64, 3, lambda: nn.LayerNorm(64)), nn.Linear(64, 128))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.batches = [torch.randint(4, 128, (16, 32)) for _ in range(8)]

    def step(self, tokens):
        inputs, labels = tokens.clone(), tokens.clone()
        chosen = torch.bernoulli(torch.full(labels.shape, 0.15)).bool()
        labels[~chosen] = -100
        masked = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & chosen
        inputs[masked] = 3
        other = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & chosen & ~masked
        inputs[other] = torch.randint(128, labels.shape)[other]
        hidden = self.model[:-1](inputs)
        loss = F.cross_entropy(self.model[-1](hidden[chosen]), tokens[chosen])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss
