"""SNUG_TEST_DEVICE: where the tests make their tensors, "cpu" unless it is set; "simulated" is an accelerator that the CPU
plays."""
import gc
import os

import pytest
import torch

import snug
from snug import testing

if (chosen := os.environ.get("SNUG_TEST_DEVICE", "cpu")) != "cpu":
    torch.set_default_device(testing.simulated_device() if chosen == "simulated" else chosen)
DEVICE = torch.get_default_device().type


def only_on_the_cpu(what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(DEVICE != "cpu", reason=f"only the CPU has {what}")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: more of the same, in make test-long")


# What a device may change: of the others, the simulated one's are in make test-long alone.
OF_DEVICES = {"test_memory", "test_moving", "test_session", "test_simulated_device", "test_steps", "test_streaming"}


def pytest_collection_modifyitems(items):
    if chosen != "simulated":
        return
    for item in items:
        if item.module.__name__ not in OF_DEVICES:
            item.add_marker(pytest.mark.long)


least = None  # bytes that were allocated in front of a test


@pytest.fixture(autouse=True)
def clean_slate():
    global least
    gc.collect(1)
    if least is None or allocated() > least:
        gc.collect()  # which looks through all that large libraries have made
        least = allocated()
    torch.manual_seed(0)
    yield
    for device in {"cpu", str(torch.get_default_device())}:
        assert snug.memory_stats(device)["limit"] is None, f"a limit of {device} outlived its session"


def allocated() -> int:
    return sum(snug.memory_stats(device)["allocated"] for device in {"cpu", str(torch.get_default_device())})


def reset_peak() -> None:
    snug._core.reset_peak(snug.devices.device_named(None))
