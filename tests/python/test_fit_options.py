"""fit and plan take the same options in the same order, and hand each of them over once."""

import dataclasses
import inspect
import sys

import pytest
import torch

import snug
from snug._options import FitOptions

FIELDS = {field.name: field.default for field in dataclasses.fields(FitOptions)}


def keywords_of(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def test_the_options_are_the_keyword_arguments_of_fit():
    assert list(keywords_of(snug.fit).items()) == list(FIELDS.items())


def test_plan_has_those_of_fit_in_their_order():
    of_plan = keywords_of(snug.plan)
    assert list(of_plan.items()) == [(name, FIELDS[name]) for name in FIELDS if name in of_plan]
    assert set(FIELDS) - set(of_plan) == {"plan", "streamed", "arena", "check"}  # which only sessions have


@pytest.mark.parametrize("function", [snug.fit, snug.plan])
def test_each_option_is_handed_over_by_its_name(function, monkeypatch):
    class Given(Exception):
        pass

    def stop(step, sample, budget, options):
        raise Given(options)

    monkeypatch.setattr(sys.modules[function.__module__], "Fitted", stop)
    values = {name: object() for name in keywords_of(function)}
    with pytest.raises(Given) as caught:
        function(None, None, "1GiB", **values)
    (options,) = caught.value.args
    assert all(getattr(options, name) is value for name, value in values.items())


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FitOptions().strategy = "none"


def test_the_device_of_an_option_counts():
    weight = torch.ones(8, requires_grad=True)
    with pytest.raises(snug.UsageError, match="names no device"):
        snug.plan(lambda x: (x * weight).sum(), torch.ones(8), device="toaster")
