"""Recurrent networks: truncated backpropagation with a carried state, packed sequences, CTC."""

import torch
import torch.nn.functional as F
from torch import nn

from .program import Program, gaussian_batches, program


class Carried(nn.Module):
    """An LSTM whose state stays on the module from batch to batch."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(64, 48), nn.LSTM(48, 48, 2, dropout=0.1), nn.Linear(48, 64)
        self.hidden = None

    def forward(self, tokens):
        if self.hidden is not None:
            self.hidden = tuple(h.detach() for h in self.hidden)
        y, self.hidden = self.lstm(self.embedding(tokens), self.hidden)
        return self.head(y)


@program
class TruncatedBackpropagation(Program):
    places = ("100%", "80%", "60%")

    def __init__(self):
        self.model = Carried()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), 1e-2)
        tokens = torch.randint(0, 64, (6 * 20 + 1, 32))
        self.batches = [(tokens[i:i + 20], tokens[i + 1:i + 21]) for i in range(0, 120, 20)]

    def step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()
        return loss


class Cells(nn.Module):
    """A GRU by cells, whose state is a buffer that is written in place."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(32, 64), nn.Linear(64, 32)
        self.register_buffer("hidden", torch.zeros(64, 64), persistent=False)

    def forward(self, x):
        h, outputs = self.hidden, []
        for one in x:
            h = self.cell(one, h)
            outputs.append(self.head(h))
        self.hidden = h.detach()
        return torch.stack(outputs)


@program
class StatefulCells(Program):
    """The state is reset in place by a mask where an episode has ended."""

    def __init__(self):
        self.model = Cells()
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), 1e-3)
        self.batches = [(x, torch.rand(64) < 0.2) for x in gaussian_batches(5, 8, 64, 32)]

    def blocks(self):
        return [self.model.cell]

    def step(self, batch):
        x, ended = batch
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x[:-1]), x[1:])
        loss.backward()
        self.optimizer.step()
        self.model.hidden[ended] = 0
        return loss


@program
class PackedSequences(Program):
    """A bidirectional GRU over packed sequences, whose lengths vary."""

    places = ("100%", "80%", "60%")

    def __init__(self):
        self.model = nn.ModuleDict({"rnn": nn.GRU(32, 32, bidirectional=True, batch_first=True), "head": nn.Linear(64, 5)})
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        lengths = [sorted(torch.randint(3, 24, (32,)).tolist(), reverse=i % 2 == 0) for i in range(6)]
        self.batches = [([torch.randn(n, 32) for n in each], torch.randint(0, 5, (32,))) for each in [[24] * 32, *lengths]]

    def step(self, batch):
        sequences, y = batch
        packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        output, lengths = nn.utils.rnn.pad_packed_sequence(self.model["rnn"](packed)[0], batch_first=True)
        pooled = output.sum(1) / lengths[:, None]
        loss = F.cross_entropy(self.model["head"](pooled), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class CTC(Program):
    def __init__(self):
        first, second = nn.Conv1d(16, 64, 3, padding=1), nn.Conv1d(64, 64, 3, padding=1)
        self.model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv1d(64, 20, 1))
        self.optimizer = torch.optim.NAdam(self.model.parameters(), 2e-3)
        self.batches = []
        for x in gaussian_batches(5, 16, 16, 50):
            lengths = torch.randint(3, 12, (16,))
            self.batches.append((x, torch.randint(1, 20, (int(lengths.sum()),)), lengths, torch.randint(30, 51, (16,))))

    def step(self, batch):
        x, labels, label_lengths, lengths = batch
        log = self.model(x).permute(2, 0, 1).log_softmax(-1)
        loss = F.ctc_loss(log, labels, lengths, label_lengths, zero_infinity=True)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@program
class TeacherForcing(Program):
    """A decoder that is fed its own samples or the truth by the toss of a coin at each position."""

    def __init__(self):
        self.model = nn.ModuleDict({"embed": nn.Embedding(40, 48), "cell": nn.LSTMCell(48, 48), "head": nn.Linear(48, 40)})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, amsgrad=True)
        self.batches = [torch.randint(0, 40, (12, 64)) for _ in range(4)]

    def blocks(self):
        return [self.model["cell"]]

    def step(self, tokens):
        token, state, losses = tokens[0], None, []
        for wanted in tokens[1:]:
            state = self.model["cell"](self.model["embed"](token), state)
            logits = self.model["head"](state[0])
            losses.append(F.cross_entropy(logits, wanted))
            forced = torch.rand(()).item() < 0.5
            token = wanted if forced else torch.multinomial(logits.detach().softmax(1), 1).squeeze(1)
        loss = torch.stack(losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss
