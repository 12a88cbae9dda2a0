"""allow=["int4_activations"] and its like: other gradients, within little of the exact ones, and nothing else."""

import pytest
import torch
from conftest import only_on_the_cpu
from torch import nn

import snug

NAMES = ["bf16_activations", "fp8_activations", "int8_activations", "int4_activations"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x), 0.1)
        return x


def made():
    net = Net()
    return net, torch.randn(2048, 256), lambda x: net(x).square().mean()


def lossy_session(net, x, step, name):
    """With a codec in use: which plan is the quickest is measured, each time anew."""
    for _ in range(8):
        session = snug.fit(step, x, "70%", allow=[name])
        session.backward(x)
        net.zero_grad()
        if session.last_step.lossy_bytes > 0:
            return session
        session.close()
    pytest.fail("no plan was lossy")


@only_on_the_cpu("codecs that are quicker than what is made again")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in NAMES[1:] else []) for name in NAMES])
def test_changes_gradients_by_little_and_nothing_else(name):
    net, x, step = made()
    torch.manual_seed(5)
    expected = step(x).detach()
    with lossy_session(net, x, step, name) as session:
        torch.manual_seed(5)
        assert torch.equal(session.backward(x), expected)
        net.zero_grad()
        assert "lossy_bytes=" in repr(session.last_step)
        names = snug.verify(step, x, net, session=session)
        report = session.last_step  # of a step that has the codec alone, and no limit
        assert report.lossy_bytes > 0 and report.replayed_ops == 0 and report.evictions == 0, report
        assert "gradient of layers.0.0.weight" in names
        errors = snug.gradient_errors(step, x, net, session=session)
        assert set(errors) == {n for n, _ in net.named_parameters()}
        assert 0 < max(errors.values()) < (0.02 if name == "bf16_activations" else 0.5)
        assert all(p.grad is None for p in net.parameters())


def test_is_exact_unless_it_is_named():
    net, x, step = made()
    with snug.fit(step, x, "70%") as session:
        session.backward(x)
        net.zero_grad()
        assert session.last_step.lossy_bytes == 0
        assert set(snug.gradient_errors(step, x, net, session=session).values()) == {0.0}


def test_leaves_no_strategy_without_effect():
    _, x, step = made()
    with pytest.raises(snug.UsageError, match='the strategy "every_block" leaves nothing to codecs'):
        snug.fit(step, x, "60%", strategy="every_block", allow=["int4_activations"])


def test_names_may_come_one_by_one():
    assert snug.allowed.Allowed(name for name in ["int4_activations"]).lossy == snug._core.Lossy.Int4


def test_has_one_codec():
    _, x, step = made()
    with pytest.raises(snug.UsageError, match="allow has int4_activations and int8_activations; a plan has one lossy codec"):
        snug.fit(step, x, "60%", allow=["int4_activations", "int8_activations"])
    with pytest.raises(snug.UsageError, match='did you mean "int4_activations"'):
        snug.fit(step, x, "60%", allow=["int4_activation"])
