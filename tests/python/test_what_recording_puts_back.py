"""fit puts back what a step changes in front of its update and undoes behind it, where the recorded step is left."""

import collections

import pytest
import torch
from conftest import only_on_the_cpu
from plain_and import leaf
from torch import nn

import snug

pytestmark = only_on_the_cpu("settings and budgets of the CPU")

Pair = collections.namedtuple("Pair", "first second")


class Warmup:
    """An object of the program that a module holds."""

    def __init__(self):
        self.steps = 0

    def factor(self):
        self.steps += 1
        return self.steps / 10


class Warming(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
        self.warmup = Warmup()

    def forward(self, x):
        return self.layers(x).square().mean() * self.warmup.factor()


class Counts(dict):
    pass


class Property:
    @property
    def calls(self):
        global property_calls
        property_calls += 1
        return property_calls


class Slotted:
    __slots__ = ("steps",)


def counting(by, calls=[0], *, more={}):  # noqa: B006: that is the point
    calls[0] += by
    more["calls"] = calls[0]
    counting.calls = calls[0]
    return calls[0]


property_calls = 0
user_dict = collections.UserDict(steps=0)
counts, pair, of_property, slotted = Counts(steps=0), Pair([0], [0]), Property(), Slotted()


@pytest.fixture
def task():
    torch.manual_seed(0)
    return make()


def losses_with_and_without(make, step_of):
    """Of three steps each, from the same weights: of plain PyTorch, and after fit."""
    found = []
    for fits in (False, True):
        torch.manual_seed(0)
        task = make()
        step = step_of(task)
        if fits:
            with snug.fit(step, task[-1], "100%") as session:
                found.append([session.backward(task[-1]).item() for _ in range(3)])
        else:
            found.append([step(task[-1]).item() for _ in range(3)])
    return found


def make():
    generator, critic = nn.Linear(32, 32), Warming()
    return generator, critic, torch.optim.SGD(generator.parameters(), 0.1), torch.randn(256, 32)


def frozen_around_the_update(task):
    generator, critic, optimizer, _ = task

    def step(x):
        optimizer.zero_grad()
        trained = [p for p in critic.parameters() if p.requires_grad]
        loss = critic(generator(x)) + sum(p.square().sum() for p in trained) / 100
        loss.backward()
        for p in critic.parameters():
            p.requires_grad_(False)
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        optimizer.step()
        for p in critic.parameters():
            p.requires_grad_(True)
        return loss.detach()

    return step


def double(parameter):
    parameter.grad.mul_(2)


def hooked_around_the_update(register):
    def step_of(task):
        generator, critic, optimizer, _ = task

        def step(x):
            optimizer.zero_grad()
            handle = register(generator.weight)
            loss = critic(generator(x))
            loss.backward()
            optimizer.step()
            handle.remove()
            return loss.detach()

        return step

    return step_of


def precise_in_the_backward_pass(task):
    generator, critic, optimizer, _ = task

    def step(x):
        optimizer.zero_grad()
        loss = critic(generator(x))
        torch.set_float32_matmul_precision("medium")
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("highest")
        return loss.detach()

    return step


def precise_by_the_backend(task):
    generator, critic, optimizer, _ = task

    def step(x):
        torch.backends.mkldnn.fp32_precision = "bf16"
        optimizer.zero_grad()
        loss = critic(generator(x))
        loss.backward()
        optimizer.step()
        torch.backends.mkldnn.fp32_precision = "none"
        return loss.detach()

    return step


STEPS = {
    "frozen": frozen_around_the_update,
    "hook": hooked_around_the_update(lambda p: p.register_hook(lambda g: g * 2)),
    "hook after accumulation": hooked_around_the_update(lambda p: p.register_post_accumulate_grad_hook(double)),
    "hook of all modules": hooked_around_the_update(
        lambda p: nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 0.5)
    ),
    "precise": precise_in_the_backward_pass,
    "precise by the backend": precise_by_the_backend,
}


@pytest.mark.parametrize("step_of", STEPS.values(), ids=STEPS)
def test_training_is_as_without_fit(step_of):
    warm_up = leaf(32, 32)
    (warm_up @ warm_up).sum().backward()
    plain, planned = losses_with_and_without(make, step_of)
    assert plain == planned


def test_leaves_are_as_before(task):
    generator, critic, optimizer, x = task
    hook = critic.layers[0].weight.register_hook(lambda g: g)
    alone = leaf(4, 4)

    def step(batch):
        optimizer.zero_grad()
        critic.layers[0].weight.register_hook(lambda g: g * 2)
        alone.register_hook(lambda g: g * 2)
        loss = critic(generator(batch)) + alone.sum()
        loss.backward()
        critic.requires_grad_(False)
        alone.requires_grad_(False)
        optimizer.step()
        return loss

    snug.fit(step, x, "100%").close()
    assert all(p.requires_grad for p in critic.parameters()) and alone.requires_grad
    assert len(critic.layers[0].weight._backward_hooks) == 1 and alone._backward_hooks is None
    hook.remove()
    assert not critic.layers[0].weight._backward_hooks


PARTS = (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.cudnn)


def precision_of(part):
    return part.fp32_precision


def test_settings_are_as_before(task):
    generator, critic, optimizer, x = task

    def step(batch):
        optimizer.zero_grad()
        loss = critic(generator(batch))
        loss.backward()
        torch.set_float32_matmul_precision("medium")
        torch.backends.fp32_precision = "tf32"
        torch.backends.mkldnn.fp32_precision = "bf16"
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.set_flags(False)
        torch.set_flush_denormal(True)
        torch.autocast("cpu").__enter__()
        optimizer.step()
        return loss

    before = [precision_of(part) for part in PARTS]
    snug.fit(step, x, "100%").close()
    assert [precision_of(part) for part in PARTS] == before
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() == "highest" and not torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() == torch.float32 and torch.backends.mkldnn.enabled
    assert torch.tensor([1e-40]).mul(1).item() > 0


def test_objects_of_the_program_are_as_before(task):
    generator, critic, optimizer, x = task
    before = property_calls

    def step(batch):
        global first_assigned
        optimizer.zero_grad()
        first_assigned = 1
        counts["steps"] += 1
        user_dict["steps"] += 1
        counting(1)
        batch.uses = batch.uses + 1
        counts.last = batch
        pair.first[0] += 1
        slotted.steps = 1
        loss = critic(generator(batch)) * (of_property.calls > 0)
        loss.backward()
        optimizer.step()
        return loss

    x.uses = 0
    snug.fit(step, x, "100%").close()
    assert x.uses == 0 and user_dict == {"steps": 0} and counting(0) == 0
    assert critic.warmup.steps == 0 and counts == {"steps": 0} and not hasattr(counts, "last") and pair == ([0], [0])
    assert property_calls == before and "first_assigned" not in globals() and not hasattr(slotted, "steps")


def test_what_a_nonlocal_name_is_first_given_goes(task):
    generator, critic, optimizer, x = task

    def step(batch):
        nonlocal first
        optimizer.zero_grad()
        first = batch
        loss = critic(generator(batch))
        loss.backward()
        optimizer.step()
        return loss

    if task is None:
        first = None
    snug.fit(step, x, "100%").close()
    with pytest.raises(NameError):
        first  # noqa: B018


def test_tensors_whose_memory_the_step_replaces_are_as_before(task):
    """As a momentum encoder has it, which is not trained."""
    generator, critic, optimizer, x = task
    copy = nn.Linear(32, 32).requires_grad_(False)
    copy.register_buffer("mean", torch.zeros(32))
    average, other = torch.zeros(32), torch.zeros(4)
    before = {name: value.clone() for name, value in copy.state_dict().items()}

    def step(batch):
        optimizer.zero_grad()
        copy.weight.data = copy.weight.data * 0.9 + generator.weight.data * 0.1
        copy.mean.data = copy.mean.data + 1
        copy.half()
        copy.float()
        average.set_(torch.ones(32))
        other.resize_(16)
        loss = critic(generator(batch) + copy(batch))
        loss.backward()
        optimizer.step()
        return loss

    snug.plan(step, x)
    snug.fit(step, x, "100%").close()
    after = copy.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())
    assert torch.equal(average, torch.zeros(32)) and other.shape == (4,)


def test_a_state_that_is_detached_behind_the_update_has_no_graph_before_it(task):
    generator, critic, optimizer, x = task
    state = torch.zeros(256, 32)

    def step(batch):
        optimizer.zero_grad()
        state.copy_(torch.tanh(generator(batch) + state))
        loss = critic(state.clone())
        loss.backward()
        optimizer.step()
        state.detach_()
        return loss.detach()

    with snug.fit(step, x, "100%") as session:
        assert state.is_leaf and not state.requires_grad and not state.any()
        session.backward(x)
