"""Batches as dataclasses, named tuples and dictionaries, slices of one large tensor, loaders and trainers."""

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .program import Program, gaussian_batches, layers, program


@dataclasses.dataclass
class Record:
    inputs: torch.Tensor
    targets: torch.Tensor
    weight: float = 1.0
    cached: torch.Tensor | None = None


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: dict


class ClassifierProgram(Program):
    depth = 4

    def __init__(self):
        self.model = nn.Sequential(*layers(64, self.depth, lambda: nn.Dropout(0.1)), nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.randint(0, 8, (256,))) for x in gaussian_batches(5, 256, 64)]

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self, batch):
        return self.update(F.cross_entropy(self.model(batch[0]), batch[1]))


@program
class PoppedLabels(ClassifierProgram):
    """Batches are dictionaries, of which the step takes the labels out, as transformers' Trainer does for label smoothing."""

    def __init__(self):
        super().__init__()
        self.batches = [{"inputs": x, "labels": y} for x, y in self.batches]

    def iteration(self, batch, backward):
        return backward(dict(batch))

    def step(self, batch):
        labels = batch.pop("labels")
        return self.update(F.cross_entropy(self.model(**{"input": batch["inputs"]}), labels, label_smoothing=0.1))


@program
class Dataclasses(ClassifierProgram):
    """The step writes a cache to the batch."""

    def __init__(self):
        super().__init__()
        self.batches = [Record(x, y, 1 + i) for i, (x, y) in enumerate(self.batches[:3])]

    def step(self, batch):
        if batch.cached is None:
            with torch.no_grad():
                batch.cached = self.model[0](batch.inputs)
        loss = F.cross_entropy(self.model(batch.inputs), batch.targets) * batch.weight
        return self.update(loss + F.mse_loss(self.model[0](batch.inputs), batch.cached))


@program
class NestedNamedTuples(ClassifierProgram):
    """A dictionary in a named tuple, from which the step takes what it uses."""

    def __init__(self):
        super().__init__()
        self.batches = [Pair(x, {"labels": y, "mask": torch.rand(256) > 0.2, "name": "a"}) for x, y in self.batches]

    def step(self, batch):
        targets = dict(batch.targets)
        mask = targets.pop("mask")
        return self.update(F.cross_entropy(self.model(batch.inputs)[mask], targets["labels"][mask]))


@program
class SlicesOfOneTensor(ClassifierProgram):
    """Batches are views of one tensor; the step normalizes its own in place."""

    def __init__(self):
        super().__init__()
        self.model.register_buffer("data", torch.randn(6 * 256, 64))
        labels = torch.randint(0, 8, (6 * 256,))
        self.batches = [(self.model.data[i * 256:(i + 1) * 256], labels[i * 256:(i + 1) * 256]) for i in (0, 1, 2, 0, 4)]

    def step(self, batch):
        x, y = batch
        x.sub_(x.mean(0)).div_(x.std(0) + 1e-5)
        return self.update(F.cross_entropy(self.model(x), y))


@program
class NumpyBatches(ClassifierProgram):
    """One NumPy buffer that each batch is read into, as a memory map or a shared array is."""

    may_fail = "filled|version|differ"

    def __init__(self):
        super().__init__()
        self._buffer = np.zeros((256, 64), dtype=np.float32)
        self.batches = [(x.numpy(), y.numpy()) for x, y in self.batches]

    def step(self, batch):
        self._buffer[...] = batch[0]
        x = torch.from_numpy(self._buffer)
        return self.update(F.cross_entropy(self.model(x), torch.as_tensor(batch[1])))


@program
class LoaderInTheStep(ClassifierProgram):
    """The step takes its own batch from a shuffled loader, and begins it again at its end."""

    def __init__(self):
        super().__init__()
        data = TensorDataset(torch.cat([x for x, _ in self.batches]), torch.cat([y for _, y in self.batches]))
        self.loader = DataLoader(data, batch_size=256, shuffle=True)
        self.iterator = None

    def step(self, _):
        try:
            batch = next(self.iterator or iter(()))
        except StopIteration:
            self.iterator = iter(self.loader)
            batch = next(self.iterator)
        return super().step(batch)


@program
class TrainerThatCounts(ClassifierProgram):
    """Warm-up by a counter of the trainer, which the step raises before its forward pass."""

    def __init__(self):
        super().__init__()
        self.steps_taken = 0

    def step(self, batch):
        self.steps_taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, self.steps_taken / 4)
        return super().step(batch)
