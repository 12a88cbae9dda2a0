"""What recording a step writes is put back, beside what test_session and test_steps see of it."""

import functools
import itertools
import random

import numpy
import pytest
import torch
from plain_and import bits
from torch import nn

import snug


def test_recording_puts_back_what_is_replaced_unread():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))  # F.normalize(..., out=self._u)
            self.register_buffer("last", torch.zeros(512, 64))

        def forward(self, x):
            h = self.layer(x).tanh()
            self.last.copy_(h.detach())
            return h

    model, x = Remembers(), torch.randn(512, 64)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    snug.fit(lambda b: model(b).square().mean(), x, budget="100%").close()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    model(x)
    assert not any(torch.equal(v, state[k]) for k, v in model.state_dict().items() if k.endswith(("_u", "_v", "last")))


def test_tensors_that_answer_nothing_are_left_alone():
    """A view that was made without gradients, of what an update wrote since, raises when it is asked for anything."""
    model, x = nn.Linear(64, 64), torch.randn(32, 64)
    with torch.no_grad():
        row = model.weight[0]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    snug.fit(lambda b: model(b).sum(), x, "4MiB").close()
    assert row.shape == (64,)


def test_a_second_session_beside_one_with_spectral_norm():
    spectral = nn.utils.spectral_norm
    critic = nn.Sequential(spectral(nn.Conv2d(3, 16, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * 64, 1))
    maker, x = nn.Linear(16, 16), torch.randn(16, 3, 16, 16)
    optimizers = [torch.optim.Adagrad(m.parameters(), 1e-2) for m in (critic, maker)]
    with snug.fit(lambda b: critic(b).square().mean(), x, "60MiB", optimizer=optimizers[0]) as first:
        first.backward(x)
        optimizers[0].step()
        with snug.fit(lambda b: maker(b).square().mean(), torch.randn(8, 16), "60MiB", optimizer=optimizers[1]) as second:
            second.backward(torch.randn(8, 16))
            assert second.last_step.followed_plan


class InitializesItself(nn.Module):
    """Takes its bias from the first batch, as ActNorm does, and keeps books in plain attributes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.bias = nn.Parameter(torch.zeros(32))
        self.ready, self.average, self.history, self.calls = False, None, [], {"forward": 0}
        self.order = itertools.count()
        self.noise, self.own = numpy.random.default_rng(1), random.Random(2)

    def forward(self, x):
        h = self.layer(x)
        if not self.ready:
            with torch.no_grad():
                self.bias.copy_(-h.mean(0))
            self.ready = True
        self.average = h.detach().mean() if self.average is None else 0.9 * self.average + 0.1 * h.detach().mean()
        self.history.append(next(self.order))
        self.calls["forward"] += 1
        scale = random.random() + numpy.random.rand() + self.noise.random() + self.own.random()
        return (h + self.bias) * scale + self.average


def losses_of(run, steps=3):
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    net, x = InitializesItself(), torch.randn(64, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(b):
        optimizer.zero_grad()
        loss = net(b).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = run(step, x, steps, net)
    return [float(loss) for loss in losses], net.history, net.calls, random.random(), numpy.random.rand()


def test_a_step_that_changes_python_state_trains_as_without_a_session():
    def plain(step, x, steps, _):
        return [step(x).detach() for _ in range(steps)]

    def planned(step, x, steps, net):
        with snug.fit(step, x, "100%") as session:
            assert not net.ready and net.average is None and net.history == [] and net.calls == {"forward": 0}
            assert next(net.order) == 0 and not net.bias.any()
            net.order = itertools.count()
            return [session.backward(x) for _ in range(steps)]

    assert losses_of(plain) == losses_of(planned)


def test_verify_proves_such_a_step_and_leaves_it_as_it_was():
    net, x = InitializesItself(), torch.randn(64, 32)
    assert snug.verify(lambda b: net(b).square().mean(), x, net, "100%")
    assert not net.ready and net.average is None and net.history == [] and not net.bias.any()


class CountsItsPasses(torch.optim.SGD):
    """Has two phases, as SAM: the first keeps books in the optimizer's state and groups before any parameter is written."""

    @torch.no_grad()
    def prepare(self):
        for group in self.param_groups:
            group["passes"] = group.get("passes", 0) + 1
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
                self.state[p]["passes"] = self.state[p].get("passes", 0) + 1


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
def test_what_a_step_writes_to_an_optimizer_or_a_schedule_before_the_update_is_put_back():
    def train(run):
        torch.manual_seed(0)
        net, x = nn.Linear(32, 32), torch.randn(64, 32)
        optimizer = CountsItsPasses(net.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

        def step(b):
            schedule.step()
            optimizer.zero_grad()
            loss = net(b).square().mean()
            loss.backward()
            optimizer.prepare()
            optimizer.step()
            return loss

        losses = run(step, x, optimizer, schedule)
        books = [(s["passes"], float(s["old"].sum())) for s in optimizer.state.values()]
        return losses, books, optimizer.param_groups[0]["passes"], schedule.state_dict(), optimizer.param_groups[0]["lr"]

    def planned(step, x, optimizer, schedule):
        with snug.fit(step, x, "100%") as session:
            assert not optimizer.state and "passes" not in optimizer.param_groups[0] and schedule.last_epoch == 0
            return [float(session.backward(x)) for _ in range(3)]

    assert train(lambda step, x, *_: [float(step(x).detach()) for _ in range(3)]) == train(planned)


def test_lazy_modules_are_refused_until_they_have_run():
    net, x = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyBatchNorm1d()), torch.randn(64, 16)
    before = torch.get_rng_state()
    with pytest.raises(snug.UsageError, match="LazyLinear would get their shapes in the recorded step.*run the model on a batch"):
        snug.fit(lambda b: net(b).square().mean(), x, "100%")
    assert torch.equal(torch.get_rng_state(), before) and net[0].has_uninitialized_params()
    assert len(net[0]._forward_pre_hooks) == 1  # its own
    net(x)
    with snug.fit(lambda b: net(b).square().mean(), x, "100%") as session:
        session.backward(x)


class Trainer:
    """Counts its steps, and keeps what it has seen."""

    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.steps, self.seen, self.cache = 0, [], None

    def step(self, batch):
        self.steps += 1
        self.seen.append(batch["x"].shape)
        self.cache = batch.pop("scale")
        return self.model(batch["x"]).sum() * self.cache


def test_the_object_of_a_step_and_its_sample_are_as_before():
    trainer, batch = Trainer(), {"x": torch.randn(2, 4), "scale": 2.0}
    snug.fit(trainer.step, batch, "100%").close()
    assert (trainer.steps, trainer.seen, trainer.cache) == (0, [], None)
    assert list(batch) == ["x", "scale"]


_global_steps = 0


def test_what_a_closure_and_globals_hold_is_as_before():
    model, count, log = torch.nn.Linear(4, 1), 0, {"losses": []}

    def step(x):
        global _global_steps
        nonlocal count
        count += 1
        _global_steps += 1
        loss = model(x).sum()
        log["losses"].append(float(loss))
        return loss

    snug.fit(functools.partial(step), torch.randn(2, 4), "100%").close()
    assert (count, _global_steps, log) == (0, 0, {"losses": []})


def test_a_generator_that_a_step_advances_is_named():
    model = torch.nn.Linear(4, 1)
    batches = (torch.randn(2, 4) for _ in range(10))
    with pytest.raises(snug.UsageError, match=r"items from an iterator .generator.*fit\(step, budget=...\)"):
        snug.fit(lambda _: model(next(batches)).sum(), None, "100%")
    loader = iter(torch.utils.data.DataLoader(torch.randn(10, 4), batch_size=2))
    with pytest.raises(snug.UsageError, match="items from an iterator ._SingleProcessDataLoaderIter"):
        snug.fit(lambda _: model(next(loader)).sum(), None, "100%")


def test_iterators_in_closures_are_as_before():
    model, batches = torch.nn.Linear(4, 1), [torch.full((2, 4), float(i)) for i in range(5)]
    one, numbers = iter(batches), itertools.count()
    snug.fit(lambda _: model(next(one)).sum() * (1 + next(numbers)), None, "100%").close()
    assert next(one) is batches[0] and next(numbers) == 0
    counted = enumerate(batches)
    with pytest.raises(snug.UsageError, match="items from an iterator .enumerate"):
        snug.fit(lambda _: model(next(counted)[1]).sum(), None, "100%")


@pytest.mark.parametrize("given", ["module", "parameters"])
def test_verify_restores_all_that_operators_write(given):
    """As DINO's center, which is no buffer, and the buffers of a model of which verify has the parameters alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 8))
    x, center = torch.randn(500, 64), torch.zeros(8)

    def step(x):
        y = model(x)
        loss = (y - center).square().mean()
        with torch.no_grad():
            center.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return loss

    before = bits([center, *model.buffers()])
    assert "loss" in snug.verify(step, x, model if given == "module" else list(model.parameters()), "100%")
    assert bits([center, *model.buffers()]) == before


def test_verify_restores_gradients_of_parameters_outside_of_the_model():
    net, temperature = nn.Linear(32, 16), nn.Parameter(torch.tensor(1.0))
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.full((3,), 7.0)
    kept = other.grad
    x = torch.randn(64, 32)
    step = lambda x: (net(x) * temperature.exp() * other.mean()).logsumexp(1).mean()
    snug.verify(step, x, net, "100%")
    assert temperature.grad is None and net.weight.grad is None
    assert other.grad is kept and torch.equal(kept, torch.full((3,), 7.0))


def test_verify_takes_sparse_gradients():
    embedding = nn.Embedding(100, 16, sparse=True)
    assert "gradient of weight" in snug.verify(lambda i: embedding(i).tanh().pow(2).mean(), torch.randint(100, (500,)), embedding)


def test_tensors_can_be_swapped_after_a_session():
    """torch.utils.swap_tensors refuses tensors with weak references, which an open session has to its parameters."""
    net, x = nn.Linear(32, 64), torch.randn(64, 32)
    with snug.fit(lambda x: net(x).square().mean(), x, "100%") as session:
        session.backward(x)
    net.zero_grad()
    torch.utils.swap_tensors(net.weight, nn.Parameter(torch.randn(64, 32)))
