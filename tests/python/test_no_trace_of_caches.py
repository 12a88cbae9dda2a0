"""Caches, and objects that are reached through caches, classes and libraries, are as before fit."""

import ctypes
import enum
import functools
import logging
import multiprocessing
import weakref

import pytest
import torch
from conftest import only_on_the_cpu
from recorded import fit, loss_of, weight  # noqa: F401: a fixture

import snug

pytestmark = only_on_the_cpu("budgets of the CPU")


class Schedule:
    only = None

    def __init__(self):
        self.steps = 0

    def count(self):
        self.steps += 1
        return self.steps

    @classmethod
    def get(cls):
        if cls.only is None:
            cls.only = cls()
        return cls.only


@functools.lru_cache
def features(columns):
    return torch.randn(8, columns)


@functools.cache
def schedule():
    return Schedule()


@functools.lru_cache(maxsize=4)
def mask(rows):
    return torch.rand(rows, 1)


def test_random_numbers_in_an_empty_cache_are_drawn_again(weight):
    features.cache_clear()
    torch.manual_seed(3)
    torch.randn(64, 8)  # the sample
    expected = torch.randn(8, 8)
    torch.manual_seed(3)
    fit(lambda x: loss_of(weight, x @ features(8)))
    assert torch.equal(features(8), expected)


@pytest.mark.parametrize("made_before", [False, True])
def test_the_only_object_of_a_cache(weight, made_before):
    schedule.cache_clear()
    before = schedule() if made_before else None
    fit(lambda x: loss_of(weight, x) / schedule().count())
    assert schedule().steps == 0 and (schedule() is before or not made_before)


def test_entries_that_cannot_be_taken_away_are_named(weight):
    mask.cache_clear()
    mask(2)
    with pytest.raises(snug.UsageError, match=r"changed the entries of the cache of mask\(\)"):
        fit(lambda x: loss_of(weight, x * mask(64)))
    fit(lambda x: loss_of(weight, x * mask(64)))  # it is there now


class Kinds(enum.Enum):
    FIRST = 1

    def count(self):
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


def test_objects_that_classes_hold(weight):
    Schedule.only = Schedule()
    Kinds.FIRST.count()
    fit(lambda x: loss_of(weight, x) / Schedule.get().count() / Kinds.FIRST.count())
    assert Schedule.only.steps == 0 and Kinds.FIRST.calls == 1


def test_sources_of_points_and_bits(weight):
    numpy = pytest.importorskip("numpy")
    sobol, bit_generator = torch.quasirandom.SobolEngine(8), numpy.random.PCG64(3)
    expected = numpy.random.PCG64(3).random_raw(2).tolist()
    fit(lambda x: loss_of(weight, x + sobol.draw(64)) / (1 + bit_generator.random_raw()))
    assert sobol.num_generated == 0 and bit_generator.random_raw(2).tolist() == expected


def test_numbers_of_c(weight):
    number, shared = ctypes.c_long(0), multiprocessing.Value("l", 0)

    def step(x):
        number.value += 1
        with shared.get_lock():
            shared.value += 1
        return loss_of(weight, x) / shared.value

    fit(step)
    assert number.value == 0 and shared.value == 0


def test_what_a_step_replaces_in_a_library_is_freed_while_it_is_recorded(weight):
    holder = logging.getLogger("test_no_trace_of_caches")
    holder.buffer = torch.zeros(64, 8)
    alive = bytearray(1)

    def step(x):
        before = weakref.ref(holder.buffer)
        holder.buffer = x + 0
        alive[0] |= before() is not None
        return loss_of(weight, holder.buffer)

    fit(step)
    assert not alive[0]


@functools.cache
def table(columns):
    return torch.rand(columns)


def test_a_cache_that_is_cleared_and_filled_again(weight):
    table.cache_clear()
    before = table(8)

    def step(x):
        table.cache_clear()
        return loss_of(weight, x * table(8))

    fit(step)
    assert table(8) is before


def test_a_bounded_cache_that_is_cleared_and_filled_again_is_refused(weight):
    mask.cache_clear()
    mask(64)

    def step(x):
        mask.cache_clear()
        return loss_of(weight, x * mask(64))

    with pytest.raises(snug.UsageError, match=r"changed the entries of the cache of mask\(\)"):
        fit(step)


class Named(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p)]


def test_what_c_refers_to_is_left_as_the_step_has_it(weight):
    """Its bytes are addresses of objects, whose references Python counts elsewhere."""
    cell, named = ctypes.py_object([1]), Named(b"before")

    def step(x):
        cell.value = [2]
        named.name = b"after" * int(x.shape[0])
        return loss_of(weight, x)

    fit(step)
    assert cell.value == [2] and named.name == b"after" * 64


def test_seeds_that_are_spawned_are_an_error(weight):
    numpy = pytest.importorskip("numpy")
    generator, seeds = numpy.random.default_rng(3), numpy.random.SeedSequence(4)
    for spawn in (lambda: generator.spawn(1)[0].random(), lambda: seeds.spawn(1)[0].generate_state(1)[0] / 2**32):
        with pytest.raises(snug.UsageError, match="spawned"):
            fit(lambda x, spawn=spawn: loss_of(weight, x) / (1 + spawn()))


def test_arrays_of_numpys_classes_and_of_objects(weight, tmp_path):
    numpy = pytest.importorskip("numpy")
    masked = numpy.ma.masked_array(numpy.zeros(4), mask=[False, True, False, False])
    record = numpy.zeros(3, dtype=[("reward", "f4"), ("done", "?")]).view(numpy.recarray)
    replay = numpy.memmap(tmp_path / "replay", dtype="f4", mode="w+", shape=(4,))
    objects = numpy.array([[1], {"n": 0}, None], dtype=object)

    def step(x):
        masked[0], masked[2] = 1.0, numpy.ma.masked
        record.reward[1] += 1
        replay[0] += 1
        objects[0].append(2)
        objects[1]["n"] += 1
        objects[2] = x.shape
        return loss_of(weight, x) / float(replay[0])

    fit(step)
    assert masked.data.tolist() == [0, 0, 0, 0] and masked.mask.tolist() == [False, True, False, False]
    assert record.reward.tolist() == [0, 0, 0] and replay.tolist() == [0, 0, 0, 0]
    assert objects.tolist() == [[1], {"n": 0}, None]


@functools.lru_cache(maxsize=1)
def latest(rows):
    return torch.rand(rows)


def test_a_full_cache_that_is_filled_with_the_same_again_is_refused(weight):
    latest.cache_clear()
    latest(64)
    with pytest.raises(snug.UsageError, match=r"changed the entries of the cache of latest\(\)"):
        fit(lambda x: loss_of(weight, x) * latest(4).mean() * latest(64).mean())
    latest(64)
    fit(lambda x: loss_of(weight, x) * latest(64).mean())


@functools.lru_cache(maxsize=8)
def noise(rows):
    return {"noise": torch.rand(rows)}


def test_a_bounded_cache_of_dictionaries(weight):
    noise.cache_clear()
    before = noise(4)
    fit(lambda x: loss_of(weight, x) * noise(4)["noise"].mean())
    assert noise(4) is before


def test_pointers_of_c(weight):
    class Buffer(ctypes.Structure):
        _fields_ = [("length", ctypes.c_int), ("start", ctypes.c_void_p)]

    buffer, pointer = Buffer(0, None), ctypes.c_void_p(1)

    def step(x):
        buffer.length += 1
        pointer.value += 1
        return loss_of(weight, x) * buffer.length

    fit(step)
    assert (buffer.length, pointer.value) == (0, 1)
