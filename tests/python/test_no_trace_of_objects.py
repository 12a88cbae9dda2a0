"""What objects that a step refers to hold is as before fit: contents, attributes, slots, iterators, names of modules."""

import array
import collections
import contextvars
import gc
import itertools
import sys
import threading
import types
import weakref

import pytest
import torch
from conftest import only_on_the_cpu
from recorded import fit, loss_of, weight  # noqa: F401: a fixture

import snug

pytestmark = only_on_the_cpu("budgets of the CPU")


class History(collections.UserDict):
    def __init__(self):
        super().__init__()
        self.count = 0


class Hidden:
    __slots__ = ("__steps",)

    def __init__(self):
        self.__steps = 0

    def count(self):
        self.__steps += 1
        return self.__steps


class Frozen:
    """Whose attributes are only written past its own __setattr__."""

    __slots__ = ("steps",)

    def __init__(self):
        object.__setattr__(self, "steps", 0)

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def count(self):
        object.__setattr__(self, "steps", self.steps + 1)


def test_attributes_and_slots_of_all_objects(weight):
    history, hidden, frozen = History(), Hidden(), Frozen()
    layers = collections.ChainMap({"steps": 0})
    kept = []
    keep = kept.append

    def step(x):
        history.count += 1
        history["x"] = x
        hidden.count()
        frozen.count()
        layers["steps"] += 1
        keep(x)
        return loss_of(weight, x)

    fit(step)
    assert history.count == 0 and dict(history) == {} and hidden.count() == 1 and frozen.steps == 0
    assert layers["steps"] == 0 and kept == []


def test_names_of_a_module_of_the_program(weight, monkeypatch, tmp_path):
    (tmp_path / "of_the_program.py").write_text("steps = 0\ncalls = 0\ndef track():\n    global calls\n    calls += 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import of_the_program

    def step(x):
        of_the_program.steps += 1
        of_the_program.track()
        of_the_program.latest = x
        return loss_of(weight, x)

    fit(step)
    assert (of_the_program.steps, of_the_program.calls) == (0, 0) and not hasattr(of_the_program, "latest")
    del sys.modules["of_the_program"]


def test_an_iterator_stays_the_same_one(weight):
    for iterator in (iter([1, 2, 3]), iter((1, 2, 3)), itertools.count(1), iter({1: 0, 2: 0}.items())):
        holder = types.SimpleNamespace(iterator=iterator)

        def step(x):
            return loss_of(weight, x) * (holder is not None)

        fit(step)
        assert holder.iterator is iterator


def test_an_iterator_that_the_step_advances_goes_back(weight):
    iterator = iter(list(range(1, 9)))
    holder = types.SimpleNamespace(iterator=iterator, numbers=itertools.count(1))

    def step(x):
        return loss_of(weight, x) * next(holder.iterator) * next(holder.numbers)

    fit(step)
    assert holder.iterator is iterator and next(iterator) == 1 and next(holder.numbers) == 1


class Batches:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.at


def test_a_zip_of_the_programs_own_iterator_goes_back(weight):
    pairs, doubled = zip(Batches()), map(lambda n: 2 * n, Batches())

    def step(x):
        return loss_of(weight, x) * next(pairs)[0] * next(doubled)

    fit(step)
    assert next(pairs) == (1,) and next(doubled) == 2


def test_a_state_that_is_a_view_has_no_graph_afterwards(weight):
    state = torch.zeros(2, 64, 8)[0]

    def step(x):
        nonlocal state
        state.copy_((x @ weight).tanh() + state)
        loss = state.sum()
        loss.backward()
        state = state.detach()
        return loss

    before = state
    fit(step)
    assert state is before and state.is_leaf and not state.requires_grad and not state.any()


def test_a_nested_tensor_of_the_program_is_no_obstacle(weight):
    nested = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
    fit(lambda x: loss_of(weight, x))
    assert nested.size(0) == 2


def test_all_else_is_put_back_where_something_cannot_be(weight):

    class Guarded(type):
        def __setattr__(cls, name, value):
            raise AttributeError(name)

    class Settings(metaclass=Guarded):
        steps = 0

    seen = []

    def step(x):
        type.__setattr__(Settings, "steps", 1)
        seen.append(x)
        return loss_of(weight, x)

    with pytest.raises(AttributeError, match="steps"):
        fit(step)
    assert seen == []


class LeastRecentlyUsed(collections.OrderedDict):
    """Every look moves an entry."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def __getitem__(self, key):
        self.looks += 1
        self.move_to_end(key)
        return super().__getitem__(key)


class Once(list):
    """A list that may not be looked through."""

    def __iter__(self):
        raise RuntimeError("looked through")

    def __len__(self):
        raise RuntimeError("counted")


def test_methods_of_containers_are_not_called(weight):
    cache, once = LeastRecentlyUsed(), Once([1.0])
    cache.update(a=1.0, b=2.0, c=3.0)

    def step(x):
        once.append(1.0)
        return loss_of(weight, x) * cache["a"]

    fit(step)
    assert list(cache) == ["a", "b", "c"] and cache.looks == 0 and list.__len__(once) == 1


class Layer(torch.nn.Module):
    def forward(self, x):
        return x.tanh()

    def softer(self, x):
        return x.sigmoid()


def test_methods_that_are_replaced(weight):
    layer, forward = Layer(), Layer.forward

    def step(x):
        Layer.forward = Layer.softer
        return layer(x @ weight).sum()

    fit(step)
    assert Layer.forward is forward


def test_arrays_and_weak_dictionaries(weight):
    numpy = pytest.importorskip("numpy")
    counts, numbers, marks = array.array("q", [0, 0]), numpy.zeros((2, 3)), numpy.zeros(4)[::2]
    layer = Layer()
    of_layers = weakref.WeakKeyDictionary({layer: 0})
    local = threading.local()
    local.steps = 0

    def step(x):
        counts[1] += 1
        numbers[0] += 1
        marks[1] += 1
        of_layers[layer] += 1
        local.steps += 1
        return loss_of(weight, x) / of_layers[layer]

    fit(step)
    assert list(counts) == [0, 0] and not numbers.any() and not marks.any()
    assert of_layers[layer] == 0 and local.steps == 0


def test_context_variables(weight):
    steps, latest = contextvars.ContextVar("steps", default=0), contextvars.ContextVar("latest")
    latest.set("none")

    def step(x):
        steps.set(steps.get() + 1)
        latest.set("one")
        return loss_of(weight, x) / steps.get()

    fit(step)
    assert steps.get() == 0 and latest.get() == "none"


def test_a_generator_of_torch_that_is_seeded_again(weight):
    generator = torch.Generator()
    generator.manual_seed(7)
    before = generator.get_state()

    def step(x):
        generator.manual_seed(1)
        return loss_of(weight, x + torch.rand(8, generator=generator))

    fit(step)
    assert torch.equal(generator.get_state(), before)


def test_deep_and_shared_containers_are_looked_through_once(weight):
    shared, deep = (), []
    for _ in range(64):
        shared = (shared, shared)
    for _ in range(3000):
        deep = [deep]

    def step(x):
        assert shared and deep
        return loss_of(weight, x)

    fit(step)


def from_a_loader(loader):
    batches = iter(loader)
    while True:
        yield next(batches)


def from_a_list(batches):
    yield from batches


def in_a_loop(batches):
    while True:
        for batch in batches:
            yield batch


@pytest.mark.parametrize(
    "generator",
    [
        lambda items: from_a_loader(torch.utils.data.DataLoader(items)),
        lambda items: in_a_loop(torch.utils.data.DataLoader(items)),
        lambda items: from_a_loader(items),
        from_a_list,
        in_a_loop,
        lambda items: (item for item in items),
        lambda items: map(torch.neg, in_a_loop(items)),
    ],
)
def test_a_generator_that_has_begun_is_refused_where_the_step_advances_it(weight, generator):
    items = [torch.ones(64, 8)] * 9  # the same object each time
    batches = generator(items)
    next(batches)
    with pytest.raises(snug.UsageError, match="took items from an iterator .(generator|map). that cannot be put back"):
        fit(lambda x: loss_of(weight, next(batches)))
    fit(lambda x: loss_of(weight, x) * (batches is not None))


def test_a_package_of_the_program_with_a_name_of_pythons_own(weight, monkeypatch, tmp_path):
    (tmp_path / "antigravity.py").write_text("steps = 0\ndef count():\n    global steps\n    steps += 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import antigravity

    def step(x):
        antigravity.count()
        return loss_of(weight, x)

    fit(step)
    assert antigravity.steps == 0
    del sys.modules["antigravity"]


class Item:
    pass


def test_weak_containers_of_what_dies_meanwhile(weight):
    held = [Item()]
    items, of_items = weakref.WeakSet(held), weakref.WeakKeyDictionary({held[0]: 1})
    named = weakref.WeakValueDictionary({"first": held[0]})
    held_elsewhere = iter([held.pop()])  # which is no container that is restored
    queue = types.MappingProxyType({"next": held_elsewhere})

    def step(x):
        for item in queue["next"]:
            del item
        return loss_of(weight, x) + len(items) + len(of_items) + len(named)

    fit(step)
    gc.collect()
    assert (len(items), len(of_items), len(named)) == (0, 0, 0)


def test_an_iterator_that_a_generator_elsewhere_goes_through(weight):
    items = iter([1, 2, 3, 4, 5, 6])

    def tens():
        for item in items:
            yield item * 10

    generator = tens()
    assert next(generator) == 10

    def step(x):
        assert generator.gi_frame is not None
        return loss_of(weight, x) * next(items)

    fit(step)
    assert next(items) == 2 and next(generator) == 30
