"""A step that is recorded and not run, for tests of what recording puts back."""

import pytest
import torch
from plain_and import leaf

import snug


def fit(step):
    snug.fit(step, torch.randn(64, 8), "100%").close()


def loss_of(weight, x):
    return (x @ weight).tanh().sum()


@pytest.fixture
def weight():
    return leaf(8, 8)
