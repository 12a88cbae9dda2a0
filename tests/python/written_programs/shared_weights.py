"""Weights that are not plain parameters: tied, parametrized, sparse gradients, subclasses of tensors, low rank, masks."""

import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch.nn.utils import parametrizations, prune

from .program import Program, gaussian_batches, layers, program


class TokenProgram(Program):
    def __init__(self):
        self.model = self.make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        tokens = [torch.randint(0, 96, (9, 64)) for _ in range(5)]
        self.batches = [(t[:-1], t[1:]) for t in tokens]

    def make(self):
        return nn.Sequential(nn.Embedding(96, 64), *layers(64, 3), nn.Linear(64, 96, bias=False))

    def loss_of(self, batch):
        return F.cross_entropy(self.model(batch[0]).flatten(0, 1), batch[1].flatten())

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        return loss


@program
class TiedEmbedding(TokenProgram):
    """Input and output share a weight; the padding row is cleared in the step."""

    def make(self):
        model = super().make()
        model[-1].weight = model[0].weight
        return model

    def step(self, batch):
        loss = super().step(batch)
        with torch.no_grad():
            self.model[0].weight[0].zero_()
        return loss


@program
class SparseEmbedding(TokenProgram):
    """Sparse gradients with SparseAdam beside Adam for the rest."""

    def __init__(self):
        super().__init__()
        self.sparse = torch.optim.SparseAdam(list(self.model[0].parameters()), 2e-3)
        self.optimizer = torch.optim.Adam([p for m in self.model[1:] for p in m.parameters()], 2e-3)

    def make(self):
        return nn.Sequential(nn.Embedding(96, 64, sparse=True), *layers(64, 3), nn.Linear(64, 96))

    def step(self, batch):
        self.optimizer.zero_grad()
        self.sparse.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        self.sparse.step()
        return loss


@program
class BagsOfWords(TokenProgram):
    """EmbeddingBag with offsets and weights of each sample, max_norm that renormalizes the table in the forward pass."""

    def make(self):
        self.bag = nn.EmbeddingBag(96, 64, mode="sum", sparse=False)
        return nn.Sequential(nn.Embedding(96, 64, max_norm=0.9), *layers(64, 3), nn.Linear(64, 96))

    def __init__(self):
        super().__init__()
        self.optimizer.add_param_group({"params": list(self.bag.parameters())})

    def loss_of(self, batch):
        x, y = batch
        offsets = torch.arange(0, x.numel(), 8)
        bags = self.bag(x.flatten(), offsets, per_sample_weights=torch.rand(x.numel()))
        h = self.model[0](x).mean(0) + bags
        return F.cross_entropy(self.model[1:](h), y[0])


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


@program
class Parametrized(TokenProgram):
    """spectral_norm, weight_norm, orthogonal and a parametrization of one's own, with parametrize.cached()."""

    def make(self):
        made = [nn.Linear(64, 64) for _ in range(4)]
        parametrizations.spectral_norm(made[0])
        parametrizations.weight_norm(made[1])
        parametrizations.orthogonal(made[2])
        parametrize.register_parametrization(made[3], "weight", Symmetric())
        return nn.Sequential(nn.Embedding(96, 64), *(m for layer in made for m in (layer, nn.GELU())), nn.Linear(64, 96))

    def loss_of(self, batch):
        with parametrize.cached():
            first = self.model(batch[0])
            second = self.model(batch[0].flip(0))
        return F.cross_entropy((first + second.flip(0)).flatten(0, 1), batch[1].flatten())


@program
class OldNorms(TokenProgram):
    """nn.utils.spectral_norm and weight_norm, by hooks, and pruning masks that become permanent between steps."""

    def make(self):
        made = layers(64, 3)
        nn.utils.spectral_norm(made[0][0])
        nn.utils.weight_norm(made[1][0])
        prune.l1_unstructured(made[2][0], "weight", amount=0.3)
        return nn.Sequential(nn.Embedding(96, 64), *made, nn.Linear(64, 96))

    def iteration(self, batch, backward):
        at = self.model.turn = getattr(self.model, "turn", -1) + 1
        if at == 2:
            prune.random_unstructured(self.model[3][0], "weight", amount=0.2)
        return backward(batch)


class Named(torch.Tensor):
    """A tensor of a class of one's own, which counts its functions; so are all results."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Named.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@program
class SubclassParameters(TokenProgram):
    def make(self):
        model = super().make()
        for layer in model[1:4]:
            layer[0].weight = nn.Parameter(layer[0].weight.detach().as_subclass(Named))
        return model


@program
class LowRankMerged(TokenProgram):
    """Adapters are merged into the frozen weights for every forward pass, and unmerged after backward, in place."""

    def make(self):
        model = super().make()
        self.a = nn.ParameterList(torch.randn(4, 64) / 8 for _ in range(3))
        self.b = nn.ParameterList(torch.zeros(64, 4) for _ in range(3))
        return model

    def __init__(self):
        super().__init__()
        self.optimizer.add_param_group({"params": [*self.a, *self.b]})

    def loss_of(self, batch):
        weights = {f"{i + 1}.0.weight": self.model[i + 1][0].weight + self.b[i] @ self.a[i] for i in range(3)}
        logits = torch.func.functional_call(self.model, weights, (batch[0],))
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


@program
class Hypernetwork(TokenProgram):
    """One network makes the weights of another for each example, applied by bmm and einsum."""

    def make(self):
        return nn.ModuleDict({"embed": nn.Embedding(96, 64), "hyper": nn.Linear(64, 16 * 16), "out": nn.Linear(64, 96)})

    def loss_of(self, batch):
        h = self.model["embed"](batch[0])
        w = self.model["hyper"](h.mean(0)).view(-1, 16, 16)
        h = torch.einsum("tbgi,bij->tbgj", h.unflatten(-1, (4, 16)), w).flatten(2).tanh()
        return F.cross_entropy(self.model["out"](h).flatten(0, 1), batch[1].flatten())
