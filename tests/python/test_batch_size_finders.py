"""OutOfBudget is torch's OutOfMemoryError in Python, in type and in words: what searches for a batch size goes on."""

import copy
import gc
import pickle

import pytest
import torch
from conftest import allocated, only_on_the_cpu
from torch import nn

import snug

MIB = 1 << 20
WORDS = {
    "cpu": "DefaultCPUAllocator: can't allocate memory",
    "cuda:1": "CUDA out of memory.",
    "xpu:0": "XPU out of memory.",
    "mps:0": "MPS backend out of memory",
}


@pytest.fixture
def limited():
    """Room for 8 MiB."""
    gc.collect()
    snug.set_memory_limit(allocated() + 8 * MIB)
    yield
    snug.set_memory_limit(None)


@only_on_the_cpu("the words of its allocator")
def test_a_refusal_is_an_error_of_torch(limited):
    for catch in (torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, MemoryError, snug.Error, RuntimeError):
        with pytest.raises(catch, match="out of budget: .* asked for 64.0 MiB") as caught:
            torch.zeros(64 * MIB, dtype=torch.uint8)
        error = caught.value
        assert type(error) is snug.OutOfBudget and len(error.args) == 1 and str(error).endswith(f"({WORDS['cpu']})")
        assert error.requested >= 64 * MIB and error.device == "cpu" and sum(error.by_tag.values()) == error.allocated
    # Its words are there once, in another process too.
    pickled = pickle.loads(pickle.dumps(error))
    for again in (copy.copy(error), pickled, pickle.loads(pickle.dumps(pickled))):
        assert type(again) is snug.OutOfBudget and str(again) == str(error) and again.requested == error.requested
        assert again.by_tag == error.by_tag and not hasattr(again, "_details")


def test_words_of_each_device():
    for device, words in WORDS.items():
        assert str(snug.OutOfBudget("out of budget: x", device=device)) == f"out of budget: x ({words})"
    assert str(snug.OutOfBudget("out of budget: x")) == "out of budget: x"


@pytest.mark.parametrize("device", WORDS)
def test_accelerate_knows_it(device):
    memory = pytest.importorskip("accelerate.utils.memory")
    assert memory.should_reduce_batch_size(snug.OutOfBudget("out of budget: x", device=device))
    assert not memory.should_reduce_batch_size(snug.DoesNotFit("no plan keeps the step under 1 MiB"))


@pytest.mark.long
@only_on_the_cpu("a name that Accelerate knows")
def test_accelerate_finds_a_batch_size(limited):
    utils = pytest.importorskip("accelerate.utils")
    tried = []

    @utils.find_executable_batch_size(starting_batch_size=64)
    def train(batch_size):
        tried.append(batch_size)
        model = nn.Sequential(nn.Linear(256, 256), nn.GELU())
        model(torch.ones(batch_size * 64, 256)).square().mean().backward()
        return batch_size

    found = train()
    assert tried[0] == 64 and len(tried) > 2 and found == tried[-1] < 64
    assert tried == [tried[0]] + [int(n * 0.9) for n in tried[:-1]]


@only_on_the_cpu("a name that Lightning knows")
def test_lightning_finds_a_batch_size(tmp_path, limited):
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.tuner import Tuner
    from lightning.pytorch.utilities.memory import is_oom_error

    tried = []
    assert is_oom_error(snug.OutOfBudget("out of budget: x", device="cpu"))
    assert is_oom_error(snug.OutOfBudget("out of budget: x", device="cuda:0"))

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.batch_size = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), 64

        def train_dataloader(self):
            data = torch.utils.data.TensorDataset(torch.ones(1, 64).expand(1 << 20, 64))
            return torch.utils.data.DataLoader(data, self.batch_size)

        def training_step(self, batch, index):
            tried.append(len(batch[0]))
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path)
    model = Lit()
    found = Tuner(trainer).scale_batch_size(model, mode="power", init_val=64, steps_per_trial=1, max_trials=12)
    assert sorted(set(tried))[-1] == 2 * found and found >= 128 and model.batch_size == found
