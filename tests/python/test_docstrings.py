"""Each exported function and class has a docstring with the sections that an editor shows."""

import importlib
import inspect
import re

import pytest

import snug
from snug import testing

OURS = [name for name in snug.__all__ if not getattr(snug, name).__module__.endswith("_core")]
# Made by snug alone, whose constructors are no program's.
MADE_INSIDE = {"LazyLogits", "DoesNotFit", "Mismatch", "OutOfBudget"}


def section_of(doc, name):
    """The lines of a Google-style section, or None."""
    found = re.search(rf"^{name}:\n((?:(?:    .*)?\n)+)", inspect.cleandoc(doc) + "\n", re.MULTILINE)
    return found and found.group(1)


def parameters_of(thing):
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return []
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in parameters]


def check(thing, name):
    doc = thing.__doc__
    assert doc and doc[0].isupper() or doc.startswith("F."), name
    assert section_of(doc, "Example"), f"{name} has no example"
    documented = re.findall(r"^    (\**\w+): ", section_of(doc, "Args") or "", re.MULTILINE)
    expected = [] if name in MADE_INSIDE or isinstance(thing, type) and issubclass(thing, Exception) else parameters_of(thing)
    expected = [p for p in expected if p != "**unexpected"]  # which is refused
    assert documented == expected, f"{name} describes {documented} and takes {expected}"
    if not isinstance(thing, type) and inspect.signature(thing).return_annotation not in ("None", "Iterator[None]"):
        assert section_of(doc, "Returns"), f"{name} does not say what it returns"


@pytest.mark.parametrize("name", OURS)
def test_exported_names_are_documented(name):
    check(getattr(snug, name), name)


@pytest.mark.parametrize("name", ["fit", "plan", "verify", "gradient_errors", "fuse", "memory_stats", "parse_bytes"])
def test_functions_say_what_they_raise(name):
    assert "UsageError: " in section_of(getattr(snug, name).__doc__, "Raises")


@pytest.mark.parametrize("kind", [snug.Session, snug.Plan, snug.Monitor, snug.StreamedTensors])
def test_methods_are_documented(kind):
    for name, method in inspect.getmembers(kind):
        if name.startswith("_") and name != "__call__":
            continue
        doc = inspect.getattr_static(kind, name).__doc__
        assert doc and doc[0].isupper(), f"{kind.__name__}.{name}"
        if inspect.isfunction(method) and len(parameters_of(method)) > 1:
            documented = re.findall(r"^    (\**\w+): ", section_of(doc, "Args") or "", re.MULTILINE)
            assert documented == parameters_of(method)[1:], f"{kind.__name__}.{name}"


@pytest.mark.parametrize("module", ["integrations", "lightning"])
def test_callbacks_are_documented(module):
    try:
        check(importlib.import_module(f"snug.{module}").SnugCallback, module)
    except ImportError as missing:
        pytest.skip(str(missing))


def test_the_simulated_device_is_documented():
    check(testing.simulated_device, "simulated_device")
