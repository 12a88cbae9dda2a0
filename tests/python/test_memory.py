"""The counting allocator and the cap, from Python."""

import copy
import gc
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import snug
from conftest import allocated

MIB = 1 << 20


def test_counts_every_tensor():
    gc.collect()
    before = allocated()
    x = torch.empty(MIB, dtype=torch.uint8)
    assert MIB <= allocated() - before <= MIB + 8192
    view = x[10:]
    del x
    assert allocated() - before >= MIB
    del view
    gc.collect()
    assert allocated() == before


def test_a_refusal_is_a_memory_error_in_any_operator():
    snug.set_memory_limit(allocated() + 4 * MIB)
    try:
        with pytest.raises(snug.OutOfBudget, match="out of budget") as caught:
            torch.zeros(64 * MIB, dtype=torch.uint8)
        error = caught.value
        assert isinstance(error, MemoryError) and isinstance(error, RuntimeError)
        assert error.requested >= 64 * MIB and error.limit < 64 * MIB + error.allocated
        assert sum(error.by_tag.values()) == error.allocated
        model = nn.Linear(8, 8)
        with pytest.raises(snug.OutOfBudget):
            model(torch.randn(8, 8)).repeat(MIB, 4)
        torch.zeros(MIB, dtype=torch.uint8)
    finally:
        snug.set_memory_limit(None)
    torch.zeros(64 * MIB, dtype=torch.uint8)


def test_a_refusal_inside_of_a_step_and_its_backward():
    model = nn.Linear(256, 256)
    x = torch.randn(64, 256)

    def step(x):
        return model(x).square().mean()

    with snug.fit(step, x, budget="16MiB") as session:
        with pytest.raises(snug.OutOfBudget):
            session.backward(x, step=lambda b: step(b) + torch.zeros(64 * MIB, dtype=torch.uint8).sum())

        class Greedy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                return g + torch.zeros(64 * MIB).sum()

        with pytest.raises(snug.OutOfBudget):
            session.backward(x, step=lambda b: Greedy.apply(step(b)))
        session.backward(x)


def test_plans_again_when_more_is_taken_than_was_planned():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
    x = torch.randn(1024, 256)

    def step(x):
        return model(x).square().mean()

    step(x).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    peak = snug.plan(step, x).unplanned_peak
    with snug.fit(step, x, budget=peak + 2 * MIB) as session:
        ballast = torch.empty(4 * MIB, dtype=torch.uint8)
        session.backward(x)
        assert session.last_step.followed_plan and session.last_step.replayed_ops > 0
        assert session.last_step.evictions == 0
        del ballast
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters()))


def test_what_optimizers_keep_is_counted_as_such():
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(optimizer):
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def optimizer_bytes():
        return snug.memory_stats()["by_tag"]["optimizer"]

    before = optimizer_bytes()
    step(optimizer)
    kept = optimizer_bytes() - before
    assert 8 * 512 * 513 <= kept < 8 * 512 * 513 + 65536
    step(optimizer)
    assert optimizer_bytes() - before == kept
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(optimizer)
    assert abs(optimizer_bytes() - before - kept) < 65536, "which deepcopy() did not ask snug's allocator for"
    del optimizer
    gc.collect()
    assert optimizer_bytes() == before
    # Nothing of one that keeps nothing; and parameter by parameter.
    step(torch.optim.SGD(model.parameters()))
    assert optimizer_bytes() == before
    optimizer = torch.optim.AdamW(model.parameters())
    with snug.fit(lambda x: model(x).sum(), torch.ones(4, 512), "1GiB", optimizer=optimizer, in_backward=True) as session:
        assert optimizer_bytes() == before, "its rehearsal leaves none"
        session.backward(torch.ones(4, 512))
        assert optimizer_bytes() - before == kept


def test_a_refusal_knows_the_weights():
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(snug.DoesNotFit, match=r"bytes: .*weights \d.*workspace"):
        snug.fit(lambda x: model(x).square().sum(), torch.ones(2048, 512), budget=snug.memory_stats()["allocated"] + MIB, optimizer=optimizer)


def test_plain_steps_beside_a_session_are_told_of_it():
    model = torch.nn.Linear(512, 512)
    x = torch.ones(64, 512)
    with snug.fit(lambda x: model(x).square().sum(), x, budget=snug.memory_stats()["allocated"] + 8 * MIB) as session:
        session.backward(x)
        with pytest.raises(snug.OutOfBudget, match="outside of any step of a session.*end the session"):
            torch.empty(16 * MIB, dtype=torch.uint8)


def test_monitor_draws_a_timeline():
    with snug.Monitor(interval=0.0005) as monitor:
        x = torch.empty(8 * MIB, dtype=torch.uint8)
        torch.randn(400, 400) @ torch.randn(400, 400)
        del x
    assert monitor.peak - monitor.before >= 8 * MIB
    assert len(monitor.timeline) >= 1 and all(size >= 0 for _, size in monitor.timeline)
    assert sum(monitor.by_tag.values()) == monitor.peak
    with pytest.raises(snug.UsageError, match="interval"):
        snug.Monitor(interval=0)
    with pytest.raises(snug.UsageError, match="device"):
        snug.memory_stats("meta")


def test_the_peak_of_a_monitor_is_its_own():
    with snug.Monitor(interval=None) as outer:
        x = torch.empty(8 * MIB, dtype=torch.uint8)
        del x
        assert outer.peak - outer.before >= 8 * MIB, "there while it watches"
        outer.step()
        with snug.Monitor(interval=None) as inner:
            y = torch.empty(2 * MIB, dtype=torch.uint8)
            del y
        assert 2 * MIB <= inner.peak - inner.before < 3 * MIB
        assert outer.peak == outer.step_peak
    assert outer.peak - outer.before >= 8 * MIB


def test_a_forked_process_may_leave_a_monitor():
    code = """
import os, sys, signal
import snug
with snug.Monitor(interval=0.0005) as monitor:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        sys.exit(7)
    status = os.waitpid(child, 0)[1]
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, status
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_monitor_follows_steps_into_a_file(tmp_path):
    file = tmp_path / "runs" / "memory.jsonl"
    kept = []
    with pytest.warns(snug.MemoryAlarm, match="what tensors take grew by"):
        with snug.Monitor(interval=None, file=file, growth_steps=4, headroom=0) as monitor:
            for step in range(5):
                large = torch.empty((8 + step) * MIB, dtype=torch.uint8)
                kept.append(large[:1].clone().expand(1).repeat(2 * MIB))
                del large
                monitor.step(loss_scale=2.0**step)
                assert (8 + step) * MIB <= monitor.step_peak - monitor.before
    alarms = [alarm for alarm in monitor.alarms if "what tensors take" in alarm.message]
    assert [alarm.kind for alarm in alarms] == ["growth"] and monitor.timeline == []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == list(range(5)) and [line["loss_scale"] for line in steps] == [1, 2, 4, 8, 16]
    assert steps[-1]["peak_bytes"] == monitor.step_peak <= monitor.peak
    assert [line for line in lines if "alarm" in line][0] == {"alarm": "growth", "at_step": 4, "message": alarms[0].message}
    for line in steps:
        assert sum(line["by_tag"].values()) == line["allocated_bytes"]
        shares = line["resident"]
        assert shares["tensors"] + shares["cached"] + shares["others"] - shares["untouched"] == line["resident_bytes"]
        assert 0 < line["device_free_bytes"] <= line["device_total_bytes"]


def test_monitor_tells_of_a_scale_that_falls_and_of_little_room():
    with pytest.warns(snug.MemoryAlarm) as warned, snug.Monitor(interval=None, headroom=0.999999) as monitor:
        for scale in (2.0, 1.0, 0.5, 0.25):
            monitor.step(scale)
    assert [alarm.kind for alarm in monitor.alarms] == ["headroom", "falling_scale"]
    assert "to 0.5 after 2 overflows in a row" in str(warned[1].message) and warned[0].filename == __file__


def test_monitors_may_be_many_and_go_on_in_their_file(tmp_path):
    kept = [snug.Monitor(interval=None, file=tmp_path / "m.jsonl") for _ in range(2)]
    for _ in range(20):
        with snug.Monitor(interval=None) as monitor:
            monitor.step()
        kept.append(monitor)
    for _ in range(2):
        with kept[0] as monitor:
            monitor.step()
    with pytest.raises(snug.UsageError, match="outside of its `with`"):
        kept[0].step()
    with snug.Monitor(file=tmp_path / "m.jsonl", append=True) as monitor:
        monitor.step()
    assert monitor.timeline == [] and len((tmp_path / "m.jsonl").read_text().splitlines()) == 3
    with snug.Monitor(file=tmp_path / "m.jsonl") as monitor:
        monitor.step()
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 1


def test_monitor_says_what_it_cannot_do(tmp_path):
    with pytest.raises(snug.UsageError, match="outside of its `with`"):
        snug.Monitor().step()
    with pytest.raises(snug.UsageError, match="headroom"), snug.Monitor(headroom=1):
        pass
    with pytest.raises(snug.Error, match="No space left"), snug.Monitor(file="/dev/full") as monitor:
        monitor.step()
    with pytest.raises(KeyError), snug.Monitor(file="/dev/full") as monitor:
        monitor.step()
        raise KeyError("what ends the block")
    stats = snug.memory_stats()
    shares = [stats["resident_" + name] for name in ("tensors", "cached", "others", "untouched")]
    assert shares[0] + shares[1] + shares[2] - shares[3] == stats["resident"] and stats["device_total"] > stats["device_free"]


def test_what_is_older_than_snug_counts_once_it_is_known():
    """import snug after the model was made: its weights count from the first recording on."""
    code = """
        import torch
        model = torch.nn.Linear(512, 512)
        x = torch.randn(64, 512)
        import snug
        assert snug.memory_stats()["allocated"] < 1 << 20
        step = lambda x: model(x).square().mean()
        with snug.fit(step, x, budget="16MiB") as session:
            assert snug.memory_stats()["by_tag"]["weights"] >= 4 * 512 * 512
            assert session.plan.predicted_peak >= 2 * 4 * 512 * 512
            session.backward(x)
        before = snug.memory_stats()["allocated"]
        model.weight.grad = model.bias.grad = None
        del model, session, step
        import gc; gc.collect()
        assert snug.memory_stats()["allocated"] <= before - 4 * 512 * 512
        print("counted")
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert run.stdout == "counted\n", run.stderr


def test_sizes():
    assert snug.parse_bytes("8GiB") == 8 << 30 and snug.parse_bytes(17) == 17
    assert snug._core.parse_budget(" 8 gib\n") == 8 << 30 and snug._core.parse_budget(" 7e1 %\n").value == 70
    assert snug.format_bytes(3 << 20) == "3.0 MiB"
    with pytest.raises(snug.UsageError, match="bananas"):
        snug.parse_bytes("3 bananas")


@pytest.mark.parametrize("size", [0, -1, "0"])
def test_a_limit_is_positive(size):
    with pytest.raises(snug.UsageError, match="must be positive"):
        snug.set_memory_limit(size)
    assert snug.memory_stats()["limit"] is None


@pytest.mark.parametrize("optimizer_of", [torch.optim.AdamW, torch.optim.Adagrad, lambda p: torch.optim.SGD(p, momentum=0.9)], ids=["adamw", "adagrad", "momentum"])
def test_state_of_parameters_that_other_steps_have_gradients_for_is_counted(optimizer_of):
    always, sometimes = nn.Linear(512, 512), nn.Linear(512, 512)
    x = torch.randn(64, 512)

    def run(step, parameters):
        before = snug.memory_stats()["by_tag"]["optimizer"]
        optimizer = optimizer_of([p for p in parameters if p.requires_grad])
        with snug.fit(step, x, "1GiB", optimizer=optimizer) as session:
            planned = session.plan.unplanned_peak
        step(x).backward()
        optimizer.step()
        kept = snug.memory_stats()["by_tag"]["optimizer"] - before
        optimizer.zero_grad()
        return planned, kept

    both = [*always.parameters(), *sometimes.parameters()]
    weight = sometimes.weight.detach().clone()
    planned, _ = run(lambda x: always(x).square().mean(), both)
    assert sometimes.weight.grad is None and torch.equal(sometimes.weight, weight)
    alone, _ = run(lambda x: always(x).square().mean(), always.parameters())
    for p in always.parameters():
        p.requires_grad_(False)
    _, kept = run(lambda x: sometimes(x).square().mean(), sometimes.parameters())
    assert kept > 512 * 512 * 4
    assert abs(planned - alone - kept) < 65536


def test_the_optimizer_of_another_model_is_refused():
    model, other = nn.Linear(8, 8), nn.Linear(8, 8)
    with pytest.raises(snug.UsageError, match="has gradients for none of the optimizer's 2 tensors, as those of another model"):
        snug.fit(lambda x: model(x).sum(), torch.ones(4, 8), "1GiB", optimizer=torch.optim.SGD(other.parameters()))
    with snug.fit(lambda x: model(x).sum(), torch.ones(4, 8), "1GiB", optimizer=[torch.optim.SGD(other.parameters()), torch.optim.SGD(model.parameters())]):
        pass
