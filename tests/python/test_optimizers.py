"""What `optimizer=` promises: the state that any optimizer will make is in the plan, and fit leaves no trace of it."""

import copy

import pytest
import torch
from conftest import DEVICE, only_on_the_cpu
from small_step import Lion, batches, bits, net, same
from torch import nn

import snug

KIB = 1 << 10

OPTIMIZERS = {
    name: getattr(torch.optim, name)
    for name in (
        "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    )
}
VARIANTS = [(name, {}) for name in OPTIMIZERS]
VARIANTS += [(name, {"foreach": True}) for name in OPTIMIZERS if name not in ("Adafactor",)]
VARIANTS += [(name, {"fused": True}) for name in ("Adam", "AdamW", "SGD", "Adagrad")]
VARIANTS += [("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("RMSprop", {"centered": True, "momentum": 0.9})]


def _a_budget_that_was_accepted_holds(make, inside, steps=10):
    torch.manual_seed(5)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.GELU())))
    optimizer = make(model)
    x = torch.randn(256, 256)

    def loss_of(b):
        return model(b).square().mean()

    def step(b):
        optimizer.zero_grad()
        loss = loss_of(b)
        loss.backward()
        optimizer.step()
        return loss

    known = {} if inside else {"optimizer": optimizer}
    function = step if inside else loss_of
    before = bits(model.state_dict().items())
    state = copy.deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    floor = snug.plan(function, x, **known).floor
    with snug.fit(function, x, budget=floor + 64 * KIB, **known) as session:
        same(bits(model.state_dict().items()), before)
        assert str(optimizer.state_dict()) == str(state)
        assert torch.equal(torch.get_rng_state(), random)
        assert all(p.grad is None for p in model.parameters())
        assert type(optimizer) is type(make(model)) and not hasattr(optimizer, "grad_scale")
        for _ in range(steps):
            if inside:
                session.backward(x)
            else:
                session.backward(x)
                optimizer.step()
                optimizer.zero_grad()
            assert session.last_step.followed_plan


def ways():
    """Each optimizer steps inside of the step or behind it, in turn; make test-long has both."""
    for i, (name, options) in enumerate(VARIANTS):
        for inside in (False, True):
            often = (options or name in ("AdamW", "SGD")) and inside == (i % 2 == 1)
            marks = [] if often else [pytest.mark.long]
            where = "inside" if inside else "optimizer="
            yield pytest.param(name, options, inside, id=f"{name}-{'-'.join(options) or 'plain'}-{where}", marks=marks)


@pytest.mark.parametrize(("name", "options", "inside"), list(ways()))
def test_a_budget_that_fit_accepts_holds_with_every_optimizer(name, options, inside):
    _a_budget_that_was_accepted_holds(lambda m: OPTIMIZERS[name](m.parameters(), lr=1e-3, **options), inside)


# Its iterations in bf16 take long on processors without it.
@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.long)], ids=["optimizer=", "inside"])
def test_muon(inside):
    _a_budget_that_was_accepted_holds(
        lambda m: torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=1e-3), inside, steps=2
    )


@only_on_the_cpu("sparse tensors")
def test_sparse_adam():
    table = nn.Embedding(4096, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    ids = torch.randint(0, 4096, (512,))
    before = table.weight.detach().clone()
    with snug.fit(lambda i: table(i).square().mean(), ids, budget="100%", optimizer=optimizer) as session:
        assert torch.equal(table.weight, before) and not optimizer.state
        for _ in range(10):
            session.backward(ids)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_calls_the_session(search):
    torch.manual_seed(6)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU())))
    twin = copy.deepcopy(model)
    x = torch.randn(256, 64)

    def make(m):
        return torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4, history_size=5, line_search_fn=search)

    optimizer, plain = make(model), make(twin)

    def closure():
        plain.zero_grad()
        loss = twin(x).square().mean()
        loss.backward()
        return loss

    for _ in range(10):
        plain.step(closure)
    floor = snug.plan(lambda b: model(b).square().mean(), x, optimizer=optimizer).floor
    with snug.fit(lambda b: model(b).square().mean(), x, budget=floor + 64 * KIB, optimizer=optimizer) as session:
        assert not optimizer.state

        def planned():
            optimizer.zero_grad()
            return session.backward(x)

        for _ in range(10):
            optimizer.step(planned)
    same(bits(model.state_dict().items()), bits(twin.state_dict().items()))


@pytest.mark.parametrize("iterations", [1, 4])
def test_lbfgs_inside_of_the_step(iterations):
    x, y = batches(1)

    def trained(planned):
        torch.manual_seed(5)
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=iterations)

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        def step(_):
            return optimizer.step(closure)

        if planned:
            with snug.fit(step, (x, y), budget="100%") as session:
                for _ in range(3):
                    session.backward((x, y))
        else:
            for _ in range(3):
                step((x, y))
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def test_an_optimizer_of_ones_own():
    _a_budget_that_was_accepted_holds(lambda m: Lion(m.parameters()), inside=False)
    with pytest.raises(snug.UsageError, match="int, without the step"):
        snug.fit(lambda b: b, torch.ones(1), budget="100%", optimizer=3)
    with pytest.raises(snug.UsageError, match="the update is a int"):
        snug.fit(lambda b: b, torch.ones(1), budget="100%", update=3)


def test_without_the_optimizer_a_budget_is_refused_later():
    """What `optimizer` is for."""
    torch.manual_seed(5)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.GELU())))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(256, 256)

    def step(b):
        return model(b).square().mean()

    without, floor = snug.plan(step, x).floor, snug.plan(step, x, optimizer=optimizer).floor
    state = 2 * sum(p.numel() * 4 for p in model.parameters())
    assert floor >= without + state
    with pytest.raises(snug.DoesNotFit) as caught:
        snug.fit(step, x, budget=floor - 64 * KIB, optimizer=optimizer)
    assert caught.value.static_by_tag["optimizer"] >= state
    assert not optimizer.state and all(p.grad is None for p in model.parameters())


def test_an_update_by_hand_may_step_the_optimizer():
    class Mine(torch.optim.Adam):
        """Whose step calls another one that hooks look at."""

        def step(self, closure=None):
            return super().step(closure)

    model, (x, y) = net(), batches(1)
    torch.optim.Adam([torch.zeros(1)])
    optimizer = Mine(model.parameters())

    def step(b):
        loss = nn.functional.cross_entropy(model(b[0]), b[1])
        loss.backward()
        optimizer.step()
        return loss

    before = bits(model.state_dict().items())
    floors = [
        snug.plan(step, (x, y), optimizer=optimizer).floor,
        snug.plan(step, (x, y)).floor,
    ]
    assert floors[0] == floors[1]
    snug.fit(step, (x, y), budget="100%", update=lambda: None).close()
    same(bits(model.state_dict().items()), before)
    assert not optimizer.state


def test_books_of_an_optimizer_stay_as_they_are():
    class Counting(Lion):
        @torch.no_grad()
        def step(self):
            super().step()
            for p in self.param_groups[0]["params"]:
                self.state[p]["book"]["n"] += 1

    model, (x, _) = net(), batches(1)
    optimizer = Counting(model.parameters())
    for p in model.parameters():
        optimizer.state[p] = {"m": torch.zeros_like(p), "book": {"n": 1}}
    snug.fit(lambda b: model(b).square().mean(), x, budget="100%", optimizer=optimizer).close()
    assert all(state["book"]["n"] == 1 and not state["m"].any() for state in optimizer.state.values())


def test_a_scaler_that_is_off_and_unscales():
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, enabled=False)

    def step(b):
        optimizer.zero_grad()
        loss = model(b).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    with snug.fit(step, x, "100%") as session:
        before = model.weight.detach().clone()
        session.backward(x)
        assert session.last_step.followed_plan
        assert not torch.equal(model.weight, before)
