"""Weights and optimizer state that are larger than the budget."""

import pytest
import torch
from torch import nn

import snug
from snug.verifying import bits_of


def net():
    torch.manual_seed(2)
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU())])


def step_of(model):
    return lambda x: model(x).square().mean()


def trained(model, optimizer, x, steps, session=None):
    losses = []
    for _ in range(steps):
        if session is None:
            loss = step_of(model)(x)
            loss.backward()
            loss = loss.detach()
        else:
            loss = session.backward(x)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def plainly(kind, x):
    """Losses and weights, in memory that no budget counts."""
    model = net()
    return trained(model, kind(model.parameters()), x, 4), [bits_of(p) for p in model.parameters()]


@pytest.mark.parametrize("tier", ["host_budget", "disk_budget"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_a_model_of_several_times_its_budget_trains_to_the_same_bits(tier, kind):
    x = torch.randn(64, 512)
    expected, expected_weights = plainly(kind, x)
    model = net()
    optimizer = kind(model.parameters())
    with_momentum = isinstance(optimizer, torch.optim.SGD)  # whose buffers are clones, and stay
    streamed = snug.StreamedTensors(model.parameters(), **{tier: "1GiB"})
    weights = sum(p.nbytes for p in model.parameters())
    assert streamed.bytes > 0.9 * weights
    budget = 14 << 20 if with_momentum else 8 << 20
    with snug.fit(step_of(model), x, budget, optimizer=optimizer, streamed=streamed) as session:
        assert 0 < streamed.window < budget
        assert trained(model, optimizer, x, 4, session) == expected
        assert session.last_step.followed_plan, session.last_step
        assert session.plan.predicted_peak <= budget
        assert streamed.copied[0] > weights and streamed.copied[1] > weights
    streamed.bring_back()
    assert streamed.bytes == 0
    assert [bits_of(p) for p in model.parameters()] == expected_weights


def test_is_verified_like_any_other_session():
    model, x = net(), torch.randn(64, 512)
    streamed = snug.StreamedTensors(model.parameters(), host_budget="1GiB")
    with snug.fit(step_of(model), x, "24MiB", streamed=streamed) as session:
        assert "gradient of 0.weight" in snug.verify(step_of(model), x, model, session=session)


def test_its_plan_has_the_window_and_the_smallest_budget_that_fit_takes():
    model, x = net(), torch.randn(64, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    streamed = snug.StreamedTensors(model.parameters(), host_budget="1GiB")
    with snug.fit(step_of(model), x, "12MiB", optimizer=optimizer, streamed=streamed) as session:
        plan = session.plan
        assert plan.window.bytes == streamed.window > 0
        assert plan.window.streamed == streamed.bytes
        assert plan.floor < plan.budget - plan.window.spare
        assert "in a window of" in str(plan) and "a step, which waits" in str(plan)
        assert plan.lower_bound()[0] <= plan.floor
        floor = plan.floor
    with snug.fit(step_of(model), x, floor, optimizer=optimizer, streamed=streamed) as session:
        assert session.plan.floor == floor
        session.backward(x)
    with pytest.raises(snug.DoesNotFit):
        snug.fit(step_of(model), x, floor - (256 << 10), optimizer=optimizer, streamed=streamed)


def test_says_what_it_needs():
    model, x = net(), torch.randn(8, 512)
    for wrong in (model, list(model.parameters())):
        with pytest.raises(snug.UsageError, match=f"streamed is a {type(wrong).__name__}; give a snug.StreamedTensors"):
            snug.fit(step_of(model), x, "24MiB", streamed=wrong)
    with pytest.raises(snug.UsageError, match="streamed: host_budget: .*60%"):
        snug.StreamedTensors(model.parameters(), host_budget="60%")
    for wrong in (next(model.parameters()), model, model.state_dict(), 3):
        with pytest.raises(snug.UsageError, match=f"it is a {type(wrong).__name__}; give a list of tensors"):
            snug.StreamedTensors(wrong)
    with pytest.raises(snug.UsageError, match="a str is among them"):
        snug.StreamedTensors(["weight"])
    streamed = snug.StreamedTensors(model.parameters(), host_budget="1GiB")
    with pytest.raises(snug.UsageError, match="give that in bytes"):
        snug.fit(step_of(model), x, "60%", streamed=streamed)
    with pytest.raises(snug.UsageError, match="leave host_budget and disk_budget to StreamedTensors"):
        snug.fit(step_of(model), x, "24MiB", streamed=streamed, host_budget="1GiB")
    with pytest.raises(snug.DoesNotFit) as refused:
        snug.fit(step_of(model), x, "1MiB", streamed=streamed)
    assert "a plan without a budget" not in str(refused.value)  # there is none
    with pytest.raises(snug.UsageError, match="in_backward is True with streamed tensors"):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        snug.fit(step_of(model), x, "24MiB", streamed=streamed, optimizer=optimizer, in_backward=True)


def test_is_saved_tensor_by_tensor_and_goes_on_after_it_was_brought_back(tmp_path):
    x = torch.randn(64, 512)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    streamed = snug.StreamedTensors(model.parameters(), host_budget="1GiB")
    with snug.fit(step_of(model), x, "12MiB", optimizer=optimizer, streamed=streamed) as session:
        trained(model, optimizer, x, 2, session)
        torch.save({name: p.detach().clone() for name, p in list(model.named_parameters())[:2]}, tmp_path / "part")
    streamed.bring_back()
    torch.save(model.state_dict(), tmp_path / "whole")
    part, whole = torch.load(tmp_path / "part"), torch.load(tmp_path / "whole")
    assert all(torch.equal(part[name], whole[name]) for name in part)
    del part, whole
    streamed.add(model.parameters())
    streamed.add(t for state in optimizer.state.values() for t in state.values())
    with snug.fit(step_of(model), x, "12MiB", optimizer=optimizer, streamed=streamed) as session:
        trained(model, optimizer, x, 2, session)
        assert session.last_step.followed_plan


def test_nothing_comes_back_where_the_budget_has_no_room_for_all():
    x = torch.randn(64, 512)
    expected, expected_weights = plainly(torch.optim.AdamW, x)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    streamed = snug.StreamedTensors(model.parameters(), host_budget="1GiB")
    with snug.fit(step_of(model), x, "8MiB", optimizer=optimizer, streamed=streamed) as session:
        losses = trained(model, optimizer, x, 2, session)
        before = streamed.bytes
        with pytest.raises(snug.UsageError, match=r"stream: 24.[01] MiB cannot come back within the budget of 8.0 MiB, .*: close the session"):
            streamed.bring_back()
        assert streamed.bytes == before
        assert losses + trained(model, optimizer, x, 2, session) == expected
    streamed.bring_back()
    assert [bits_of(p) for p in model.parameters()] == expected_weights


@pytest.mark.parametrize("tier", ["host_budget", "disk_budget"])
def test_too_little_room_to_stream_to_is_told_as_such(tier):
    if tier == "disk_budget" and torch.get_default_device().type != "cpu":
        pytest.skip("what there is no room for goes to the host, which has no budget")
    x = torch.randn(32, 512)
    model = net()  # 8 MiB of weights, and as much of gradients and of each moment
    where = "into the host budget of" if tier == "host_budget" else "on the disk"
    with pytest.raises(snug.Error, match=f"stream: 16 tensors of 8.0 MiB in all do not find room: .*{where}"):
        snug.StreamedTensors(model.parameters(), **{tier: "2MiB"})
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    streamed = snug.StreamedTensors(model.parameters(), **{tier: "20MiB"})
    with pytest.raises(snug.DoesNotFit, match="budget for what is streamed: [0-9.]+ MiB that the optimizer keeps found no room there"):
        snug.fit(step_of(model), x, "10MiB", optimizer=optimizer, streamed=streamed)
    streamed.bring_back()
    streamed = snug.StreamedTensors(model.parameters(), **{tier: "10MiB"})
    with pytest.raises(snug.Error, match=f"stream: gradients, which take as much as what they are of, do not find room: .*{where}"):
        snug.fit(step_of(model), x, "10MiB", optimizer=optimizer, streamed=streamed)
    streamed.bring_back()
    with pytest.raises(snug.DoesNotFit) as refused:
        snug.fit(step_of(model), x, "10MiB", optimizer=optimizer)
    assert "what is streamed" not in str(refused.value)
