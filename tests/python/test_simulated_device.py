"""Steps on an accelerator that the CPU plays, each in a process of its own: it has to be there before the first backward pass."""
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
from conftest import only_on_the_cpu

import snug

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a torch for CUDA has no other accelerator beside it")


def run(program: str) -> str:
    begin = """
        import torch, snug
        from snug.testing import simulated_device
        device = simulated_device()

        def net():
            torch.manual_seed(0)
            layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Dropout(0.2)] * 4
            return torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))

        def gradients(model):
            return [p.grad.cpu() for p in model.parameters()]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(program)], cwd=HERE,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_planned_step_has_the_bits_of_the_plain_one_and_its_memory_is_the_devices():
    run("""
        model = net().to(device)
        x, y = torch.randn(256, 64).to(device), torch.randint(0, 8, (256,)).to(device)
        step = lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        torch.manual_seed(1)
        step((x, y)).backward()
        plain = gradients(model)
        model.zero_grad()
        session = snug.fit(step, (x, y), "75%")
        torch.manual_seed(1)
        with snug.Monitor(device, interval=3600) as monitor:
            session.backward((x, y))
        assert session.last_step.followed_plan and session.last_step.replayed_ops > 0, session.last_step
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model)))
        stats = snug.memory_stats(device)
        assert 0 < monitor.peak <= stats["limit"] and stats["mapped_peak"] <= stats["limit"], stats
        assert snug.memory_stats()["limit"] is None
    """)


def test_layers_that_stay_on_the_cpu_have_a_budget_of_their_own():
    run("""
        front, back = net(), net().to(device)
        x = torch.randn(512, 64)

        def step(batch):
            hidden = front(batch)
            return back(torch.nn.functional.pad(hidden, (0, 56)).to(device)).square().mean()

        try:
            snug.fit(step, x, "1GiB", device=device)
            raise AssertionError("it has parameters on the CPU")
        except snug.UsageError as error:
            assert "other_budgets" in str(error), error
        torch.manual_seed(1)
        with snug.Monitor("cpu", interval=3600) as plain_memory:
            step(x).backward()
        plain = gradients(front) + gradients(back)
        front.zero_grad(), back.zero_grad()
        taken = snug.memory_stats()["allocated"]
        budget = taken + (plain_memory.peak - taken) * 7 // 10
        with snug.fit(step, x, "1GiB", device=device, other_budgets={"cpu": budget}) as session:
            torch.manual_seed(1)
            with snug.Monitor("cpu", interval=3600) as memory:
                session.backward(x)
            assert memory.peak <= budget < plain_memory.peak, (memory.peak, budget, plain_memory.peak)
            assert session.last_step.evictions == 0 < session.last_step.replayed_ops
            (part,) = session.plan.others
            assert part.device == "cpu" and part.budget == budget, part
            assert memory.peak <= part.predicted_peak <= budget < part.unplanned_peak, (memory.peak, part)
            assert all(torch.equal(a, b) for a, b in zip(plain, gradients(front) + gradients(back)))
        assert snug.memory_stats()["limit"] is None
    """)


def test_a_step_over_two_devices_is_planned_verified_and_refused_by_name():
    run("""
        there = simulated_device(1)
        front, back = net().to(device), net().to(there)
        x = torch.randn(512, 64, device=device)
        step = lambda batch: back(torch.nn.functional.pad(front(batch), (0, 56)).to(there)).square().mean()
        model = torch.nn.ModuleList([front, back])
        others = {"hpu:1": "64MiB"}
        plan = snug.plan(step, x, "64MiB", other_budgets=others)
        assert [part.device for part in plan.others] == ["hpu:1"]
        compared = snug.verify(step, x, model, "64MiB", other_budgets=others)
        assert len(compared) > 8
        try:
            snug.verify(step, x, model, "64MiB", other_budgets="64MiB")
            raise AssertionError("no refusal")
        except snug.UsageError as error:
            assert "other_budgets is a str" in str(error), error
        with snug.fit(step, x, "64MiB", other_budgets=others) as session:
            assert snug.verify(step, x, model, session=session) == compared
        for refused, words in [
            (dict(), "has parameters on hpu:1"),
            (dict(other_budgets={"hpu:1": "60%"}), "other_budgets of hpu:1"),
            (dict(other_budgets={"hpu:1": "64MiB", "hpu": "64MiB"}), "has two budgets"),
            (dict(other_budgets="64MiB"), "other_budgets is a str"),
        ]:
            try:
                snug.fit(step, x, "64MiB", **refused)
                raise AssertionError("no refusal")
            except snug.UsageError as error:
                assert words in str(error), error
        try:
            snug.fit(step, x, "64MiB", other_budgets={"hpu:1": 300_000})
            raise AssertionError("no refusal")
        except snug.DoesNotFit as error:
            assert error.device == "hpu:1" and error.budget == 300_000 < error.floor, vars(error)
        try:
            snug.fit(step, x, "100%", other_budgets={"hpu:1": 300_000})
            raise AssertionError("no refusal")
        except snug.DoesNotFit as error:
            assert error.device == "hpu:1" and error.only_begun, vars(error)
        swapped = lambda batch: step(batch[1])
        snug.fit(swapped, (torch.zeros(4, device=there), x), "64MiB", other_budgets={"hpu:1": "64MiB"}).close()
        assert snug.doctor()
        for d in (device, there):
            assert snug.memory_stats(d)["limit"] is None
    """)


def test_an_optimizer_a_region_and_verify_work_there():
    run("""
        model = net().to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(64, 64, device=device)

        def step(batch):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        session = snug.fit(step, x, "100%", optimizer=optimizer)
        losses = [float(model(x).square().mean().detach())]
        for _ in range(3):
            session.backward(x)
        assert float(model(x).square().mean().detach()) < losses[0]
        session.close()
        model.zero_grad()
        with snug.Region(snug.Recompute()) as region:
            loss = model(x).square().mean()
        loss.backward()
        assert region.replayed_ops > 0
        torch.use_deterministic_algorithms(False)
        deterministic = []

        def loss_of(batch):
            deterministic.append(torch.are_deterministic_algorithms_enabled())
            return model(batch).square().mean()

        snug.verify(loss_of, x, model, "80%")
        assert all(deterministic) and not torch.are_deterministic_algorithms_enabled(), deterministic
    """)


def test_operators_do_not_mix_it_with_the_hosts_memory():
    run("""
        x = torch.randn(4, 4, device=device)
        for wrong in (lambda: torch.nn.Linear(4, 4)(x), lambda: x + torch.ones(4), lambda: torch.cat([x, torch.ones(4, 4)])):
            try:
                wrong()
                raise SystemExit("accepted")
            except RuntimeError as error:
                assert "Expected all tensors to be on the same device" in str(error), error
        # Numbers and indices may come from there.
        assert torch.equal((x * torch.tensor(2.0))[torch.tensor([1])].cpu(), 2 * x.cpu()[1:2])
    """)


def test_too_small_a_budget_and_too_large_an_index_are_refused():
    run("""
        try:
            simulated_device(2)
        except snug.UsageError as error:
            assert "there are 2" in str(error)
        else:
            raise AssertionError("no refusal")
        model = net().to(device)
        x = torch.randn(256, 64, device=device)
        try:
            snug.fit(lambda batch: model(batch).square().mean(), x, 200_000)
        except snug.DoesNotFit as error:
            assert "raise the budget" in str(error)
        else:
            raise AssertionError("no refusal")
        assert snug.memory_stats(device)["limit"] is None
    """)


@only_on_the_cpu("no simulated device, unless it is asked for")
def test_without_a_build_for_tests_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "snug._simulated", None)
    from snug import testing

    with pytest.raises(snug.UsageError, match="make test"):
        testing.simulated_device()


def test_steps_lie_in_an_arena_with_the_plain_bits():
    run("""
        def trained(backward_of):
            model = net().to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            x = torch.randn(512, 64, generator=torch.Generator().manual_seed(1)).to(device)
            backward = backward_of(lambda batch: model(batch).square().mean(), x, optimizer)
            torch.manual_seed(1)
            for _ in range(6):
                backward(x)
                optimizer.step()
                optimizer.zero_grad()
            return [p.detach().cpu() for p in model.parameters()]

        def plainly(step, x, optimizer):
            return lambda batch: step(batch).backward()

        def planned(step, x, optimizer):
            global session
            session = snug.fit(step, x, "80%", optimizer=optimizer, arena=True)
            assert session.arena.bytes == 0
            return session.backward

        expected, found = trained(plainly), trained(planned)
        assert all(torch.equal(a, b) for a, b in zip(expected, found))
        arena = session.arena
        assert arena.highest <= arena.bytes <= 1.05 * arena.highest, arena
        assert arena.placed > 10 * arena.elsewhere, arena
        stats = snug.memory_stats(device)
        assert stats["mapped"] <= stats["limit"], stats
    """)


def test_the_cpu_has_no_arena():
    x = torch.ones(8, device="cpu", requires_grad=True)
    with pytest.raises(snug.UsageError, match="it is for accelerators"):
        snug.fit(lambda batch: (batch * x).sum(), torch.ones(8, device="cpu"), "1GiB", device="cpu", arena=True)
    with snug.fit(lambda batch: (batch * x).sum(), torch.ones(8, device="cpu"), "1GiB", device="cpu") as session:
        assert session.arena is None
