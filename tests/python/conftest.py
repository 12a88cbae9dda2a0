import gc

import pytest
import torch

import snug


def pytest_configure(config):
    config.addinivalue_line("markers", "long: more of the same, in make test-long")


@pytest.fixture(autouse=True)
def clean_slate():
    gc.collect()
    torch.manual_seed(0)
    yield
    assert snug.memory_stats()["limit"] is None, "a limit outlived its session"


def allocated() -> int:
    return snug.memory_stats()["allocated"]
