"""Objects that a step refers to are looked at without asking them anything: mocks, proxies, what makes attributes when asked, and buffers
of the io module."""

import csv
import ctypes
import io
import weakref
from unittest import mock

import pytest
import torch
from conftest import only_on_the_cpu
from recorded import fit, loss_of, weight  # noqa: F401: a fixture

pytestmark = only_on_the_cpu("budgets of the CPU")


class Settings:
    def __init__(self, names):
        self.__dict__["_names"] = names

    def __getattr__(self, name):
        return self.__dict__["_names"][name]  # KeyError where there is none


class Slotted:
    __slots__ = ("__weakref__", "names")

    def __getattr__(self, name):
        raise KeyError(name)


class MakesWhatIsAskedFor:
    def __getattr__(self, name):
        setattr(self, name, 1)
        return 1


def test_objects_are_not_asked_for_attributes(weight):
    numpy = pytest.importorskip("numpy")
    settings, slotted, makes = Settings({"scale": 2.0}), Slotted(), MakesWhatIsAskedFor()
    array, libraries = mock.Mock(spec=numpy.ndarray), ctypes.cdll
    ops, classes = torch.ops, torch.classes

    def step(x):
        used = (slotted, makes, array, libraries, ops, classes)
        return loss_of(weight, x) * settings.scale * len(used)

    before = set(vars(torch.ops))
    fit(step)
    assert vars(makes) == {} and set(vars(torch.ops)) == before


def test_a_long_array_of_objects_is_not_looked_into(weight):
    numpy = pytest.importorskip("numpy")
    counts = [0]
    items = numpy.array([counts, *map(str, range(20_000))], dtype=object)

    def step(x):
        counts[0] += 1  # by its own name it is put back
        return loss_of(weight, x) * len(items)

    with mock.patch("snug._restored.SavedArray.objects", side_effect=AssertionError):
        fit(step)
    assert counts == [0]


def test_dead_references_that_the_program_keeps_stay(weight):
    one, other = Slotted(), Slotted()
    references = [weakref.ref(one, print), weakref.ref(other, print)]
    del other
    fit(lambda x: loss_of(weight, x) * len(references))
    assert len(references) == 2


class Lines(io.StringIO):
    def __init__(self):
        super().__init__()
        self.count = 0

    def write(self, text):
        self.count += 1
        return super().write(text)


def test_buffers_have_their_contents_and_positions_again(weight):
    text, data, lines, closed = io.StringIO("abc"), io.BytesIO(b"123"), Lines(), io.StringIO()
    table = csv.writer(lines)
    text.seek(3)
    closed.close()

    def step(x):
        loss = loss_of(weight, x)
        text.write("a line\n")
        data.read(2)
        data.write(b"4567")
        table.writerow([1, 2])
        lines.write("loss")
        return loss if closed.closed else 2 * loss

    fit(step)
    assert (text.getvalue(), text.tell()) == ("abc", 3)
    assert (data.getvalue(), data.tell()) == (b"123", 0)
    assert (lines.getvalue(), lines.count) == ("", 0) and closed.closed


def test_buffers_with_views_have_their_contents_and_positions_again(weight):
    data = io.BytesIO(b"12345678")
    view = data.getbuffer()

    def step(x):
        view[0] = data.read(2)[1]
        return loss_of(weight, x)

    fit(step)
    assert bytes(view) == b"12345678" and data.tell() == 0


def test_a_buffer_that_the_step_closes_stays_closed(weight):
    text = io.StringIO()

    def step(x):
        text.close()
        return loss_of(weight, x)

    fit(step)
    assert text.closed
