"""Steps as people write them: backward, clipping, scaler, optimizer, schedule and averages where they stand."""

import copy
import gc

import pytest
import torch
from conftest import DEVICE, only_on_the_cpu, reset_peak
from small_step import batches, bits, net, same
from torch import nn

import snug


class Loop:
    """Everything that people put into a step, and its state."""

    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=5)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.shadow = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.norms = []

    def step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.norms.append(nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        for name, p in self.model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p.detach()
        return loss

    def everything(self):
        tensors = [*self.model.state_dict().items(), *self.average.state_dict().items(), *self.shadow.items()]
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors += [(f"{i}.{name}", value) for name, value in state.items()]
        tensors += [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        numbers = [self.scaler.state_dict(), self.schedule.state_dict(), self.optimizer.state_dict()["param_groups"]]
        return bits(tensors), copy.deepcopy(numbers), torch.get_rng_state()


def test_trains_bitwise_as_plain_pytorch_does():
    x, y = batches(20)
    plain, planned = Loop(), Loop()
    torch.manual_seed(3)
    losses = [plain.step((x[i * 512:(i + 1) * 512], y[i * 512:(i + 1) * 512])).item() for i in range(20)]
    assert losses[-1] < losses[0]  # it trains
    expected = plain.everything()

    torch.manual_seed(3)
    with snug.fit(planned.step, (x[:512], y[:512]), budget="80%") as session:
        replayed, found = 0, []
        for i in range(20):
            found.append(session.backward((x[i * 512:(i + 1) * 512], y[i * 512:(i + 1) * 512])).item())
            assert session.last_step.followed_plan, session.last_step
            assert session.last_step.known == 1 and session.last_step.evictions == 0
            assert snug.memory_stats()["mapped_peak"] <= session.plan.budget or i == 0
            reset_peak()
            replayed += session.last_step.replayed_ops
    assert replayed >= 20
    assert found == losses
    assert planned.norms[-20:] == plain.norms
    tensors, numbers, random = planned.everything()
    same(tensors, expected[0])
    assert numbers == expected[1]
    assert torch.equal(random, expected[2])


@pytest.mark.parametrize("frozen", [False, True])
def test_recording_leaves_no_trace_of_the_update(frozen):
    loop = Loop()
    x, y = batches(3)
    loop.step((x[:512], y[:512]))  # there is state, there are gradients
    before = loop.everything()
    if frozen:
        gc.freeze()  # out of sight of the garbage collector
    try:
        snug.fit(loop.step, (x[:512], y[:512]), budget="70%").close()
    finally:
        gc.unfreeze()
    tensors, numbers, random = loop.everything()
    same(tensors, before[0])
    assert numbers == before[1] and torch.equal(random, before[2])
    loop.step((x[512:1024], y[512:1024]))  # its scaler has no half a step in its books


def test_the_program_of_the_first_hour():
    w, y = nn.Linear(16, 4), torch.randn(8, 4)
    o = torch.optim.SGD(w.parameters(), lr=0.1)

    def step(b):
        o.zero_grad()
        loss = (w(b) - y).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    b = torch.randn(8, 16)
    with snug.fit(step, b, budget="100%") as session:
        losses = [session.backward(b).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


def test_slices_of_one_tensor_are_one_step():
    model = net()
    x, y = batches(50, size=128)
    with snug.fit(lambda i: nn.functional.cross_entropy(model(x[i * 128:(i + 1) * 128]), y[i * 128:(i + 1) * 128]), 0,
                  budget="90%") as session:
        for i in range(50):
            session.backward(i)
            model.zero_grad()
            report = session.last_step
            assert report.followed_plan and report.known == 1 and not report.planned_anew and report.replayed_ops > 0


def test_what_differs_is_named():
    model = net()
    x, y = batches(1)
    with snug.fit(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), (x, y), budget="70%") as session:
        session.backward((x[:100], y[:100]))
        assert "[512, 64]" in session.last_step.divergence and "[100, 64]" in session.last_step.divergence


def test_a_second_backward_says_what_to_write():
    model, (x, y) = net(), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def accumulates(batch):
        for part in x.chunk(2):
            model(part).square().mean().backward()

    with pytest.raises(snug.UsageError, match="second time.*micro-batch"):
        snug.fit(accumulates, (x, y), budget="100%")

    def adversarial(batch):
        model(x).square().mean().backward()
        optimizer.step()
        model(x).mean().backward()

    before = [p.clone() for p in model.parameters()]
    session = snug.fit(adversarial, (x, y), budget="100%")  # as far as the first update
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    with session:  # behind an update it is another pass of the step, with a plan of its own
        session.backward((x, y))
        assert session.last_step.known == 2


def test_generators_of_ones_own():
    def make():
        model, generator = net(), torch.Generator().manual_seed(9)

        def step(batch):
            x, y = batch
            keep = torch.bernoulli(torch.full_like(x, 0.8), generator=generator)
            return nn.functional.cross_entropy(model(x * keep), y)

        return model, generator, step

    x, y = batches(1)
    (plain, _, plain_step), (model, generator, step) = make(), make()
    torch.manual_seed(4)
    for _ in range(3):
        plain_step((x, y)).backward()
    before = generator.get_state()
    with snug.fit(step, (x, y), budget="70%") as session:
        assert torch.equal(generator.get_state(), before)
        torch.manual_seed(4)
        for _ in range(3):
            session.backward((x, y))
        assert session.last_step.replayed_ops > 0
    same(bits((n, p.grad) for n, p in model.named_parameters()), bits((n, p.grad) for n, p in plain.named_parameters()))
    after = generator.get_state()
    snug.verify(step, (x, y), model, "70%")
    assert torch.equal(generator.get_state(), after)


def test_generators_that_an_update_is_handed():
    model, (x, y), generator = net(), batches(1), torch.Generator(DEVICE).manual_seed(9)

    class Noisy(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.normal(0.0, 1e-3, p.shape, generator=generator, device=p.device))
            return super().step(closure)

    optimizer = Noisy(model.parameters(), lr=0.1)

    def loss_of(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def steps(batch):
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        return loss

    def by_hand(batch):
        loss = loss_of(batch)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.normal(0.0, 1e-3, p.shape, generator=generator))
        return loss

    before, weights = generator.get_state(), bits(model.state_dict().items())
    for run in (
        lambda: snug.fit(steps, (x, y), budget="100%").close(),
        lambda: snug.fit(loss_of, (x, y), budget="100%", optimizer=optimizer).close(),
        lambda: snug.fit(loss_of, (x, y), budget="100%", update=optimizer.step).close(),
        lambda: snug.fit(by_hand, (x, y), budget="100%").close(),
        lambda: snug.verify(by_hand, (x, y), model, "100%"),
    ):
        run()
        assert torch.equal(generator.get_state(), before)
        same(bits(model.state_dict().items()), weights)


def test_a_refusal_is_not_lost_where_it_is_caught():
    model, (x, y) = net(), batches(1)
    fails = []

    def step(batch):
        for _ in range(2):  # tries again
            try:
                loss = nn.functional.cross_entropy(model(x), y)
                if fails:
                    loss.register_hook(fails.pop())
                loss.backward()
                break
            except (RuntimeError, snug.Error):
                model.zero_grad()
        return loss

    with snug.fit(step, (x, y), budget="100%") as session:
        session.backward((x, y))

        def fail(gradient):
            raise RuntimeError("not enough memory, say")

        fails.append(fail)
        with pytest.raises(snug.UsageError, match="second time"):
            session.backward((x, y))
        model.zero_grad()
        session.backward((x, y))
        assert session.last_step.followed_plan and model[0].weight.grad is not None


def test_updates_by_hand():
    plain, planned = net(), net()
    x, y = batches(4)

    def step_of(model, assigns):
        def step(batch):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    if assigns:
                        p.data = p.data - 0.1 * p.grad
                    else:
                        p -= 0.1 * p.grad
                    p.grad = None
            return loss.item()
        return step

    for assigns in (False, True):
        parts = [(x[i * 512:(i + 1) * 512], y[i * 512:(i + 1) * 512]) for i in range(4)]
        torch.manual_seed(4)
        for part in parts:
            step_of(plain, assigns)(part)
        torch.manual_seed(4)
        step = step_of(planned, assigns)
        with snug.fit(step, parts[0], budget="70%") as session:
            for part in parts:
                session.backward(part)
                assert session.last_step.followed_plan
        same(bits(planned.state_dict().items()), bits(plain.state_dict().items()))


def test_other_data_during_the_forward_pass():
    """As BinaryConnect has it: recording puts back what was there before the step, not what stood there in it."""
    model, (x, y) = net(), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = bits(model.state_dict().items())

    def step(b):
        weights = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data.sign()
        nn.functional.cross_entropy(model(b[0]), b[1]).backward()
        for p, weight in zip(model.parameters(), weights, strict=True):
            p.data = weight
        optimizer.step()
        optimizer.zero_grad()

    snug.fit(step, (x, y), budget="100%").close()
    same(bits(model.state_dict().items()), before)


def test_ways_to_go_backward():
    from torch.autograd import backward as bound_here
    from torch.autograd.graph import get_gradient_edge

    w, b = torch.randn(3, requires_grad=True), torch.randn(3)
    ways = {
        "the function": lambda loss: torch.autograd.backward(loss),
        "bound early": bound_here,
        "an edge": lambda loss: torch.autograd.backward(get_gradient_edge(loss)),
        "two losses": lambda loss: torch.autograd.backward([loss, loss * 2]),
        "inputs": lambda loss: loss.backward(inputs=[w]),
        "a gradient": lambda loss: loss.backward(torch.tensor(3.0), retain_graph=True),
    }
    for name, way in ways.items():
        def step(batch, way=way):
            loss = (w * batch).sin().sum()
            way(loss)
            return loss.detach()

        w.grad = None
        step(b)
        expected = w.grad
        w.grad = None
        with snug.fit(step, b, budget="1MiB") as session:
            assert w.grad is None, name
            session.backward(b)
        assert torch.equal(w.grad, expected), name


@only_on_the_cpu("sparse tensors")
def test_a_sparse_leaf():
    w = torch.eye(4).to_sparse().requires_grad_()
    x = torch.randn(4, 4)
    snug.fit(lambda b: torch.sparse.mm(w, b).square().sum(), x, budget="1MiB").close()


def test_a_mode_that_is_left_behind():
    model, (x, y) = net(), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(b):
        loss = nn.functional.cross_entropy(model(b[0]), b[1])
        loss.backward()
        torch.set_grad_enabled(False)
        optimizer.step()
        torch.set_grad_enabled(True)

    snug.fit(step, (x, y), budget="100%").close()
    assert torch.is_grad_enabled()


def test_verify_takes_a_step_that_updates():
    loop = Loop()
    x, y = batches(1)
    before = loop.everything()
    assert len(snug.verify(loop.step, (x, y), loop.model, "80%")) == (20 if DEVICE == "cpu" else 22)  # and generators of two devices
    tensors, numbers, _ = loop.everything()
    same(tensors, before[0])
    assert numbers == before[1]


def test_a_write_through_data_after_the_loss_is_an_error():
    model, (x, y) = net(), batches(1)

    def step(b):
        loss = nn.functional.cross_entropy(model(b[0]), b[1])
        model[3].weight.data.mul_(2)  # no version tells of it
        return loss

    for budget in ("100%", "70%"):
        with pytest.raises(snug.Error, match="modified in place.*`.data`"):
            with snug.fit(step, (x, y), budget=budget) as session:
                session.backward((x, y))


def test_verify_shows_what_data_that_was_exchanged_does():
    """Plain PyTorch's saved parameter means the new contents, a replayed operator the recorded ones."""
    model, (x, y) = net(), batches(1)

    def step(b):
        weights = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data * 1.5
        loss = nn.functional.cross_entropy(model(b[0]), b[1])
        for p, weight in zip(model.parameters(), weights, strict=True):
            p.data = weight
        return loss

    with pytest.raises(snug.Mismatch, match="gradient of"):
        snug.verify(step, (x, y), model, "70%")
