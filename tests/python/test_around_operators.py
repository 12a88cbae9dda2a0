"""What surrounds operators: profilers, higher-order operators, inference mode, forks, and updates in the forward pass."""
import os
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import snug
from conftest import only_on_the_cpu
from plain_and import bits, in_region, leaf, plain_and

pytestmark = only_on_the_cpu("kernels that write to memory through NumPy")


# --- what surrounds an operator ---------------------------------------------------------------------------------------


def test_composites_in_inference_mode_update_their_statistics_once():
    norm, w, x = torch.nn.BatchNorm1d(16), leaf(16, 16), torch.randn(32, 16)
    start = [b.clone() for b in norm.buffers()]

    def run():
        for b, s in zip(norm.buffers(), start):
            b.copy_(s)
        with torch.inference_mode():
            target = norm(x)
        return ((x @ w) * target.clone()).sum()

    expected = bits(b for b in [*norm.buffers()] if run() is not None)
    plain, planned = plain_and(run, [w], in_region)
    assert plain == planned and bits(norm.buffers()) == expected


@pytest.mark.parametrize("what", ["fit", "verify", "gate"])
def test_profilers_around_it_go_on(what):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    x = torch.randn(64, 64)
    step = lambda b: net(b).square().sum()  # noqa: E731
    with profile(activities=[ProfilerActivity.CPU]) as around:
        if what == "fit":
            with snug.fit(step, x, "100%") as session:
                session.backward(x)
        elif what == "verify":
            assert snug.verify(step, x, net, "100%")
        else:
            gate = snug._core.StopBeforeWrites([net[0].weight])
            gate.enter()
            step(x).backward()
            gate.exit()
    assert any(event.key == "aten::addmm" for event in around.key_averages())
    with profile(activities=[ProfilerActivity.CPU]) as later:
        x @ x
    assert any(event.key == "aten::mm" for event in later.key_averages())


def test_higher_order_operators_are_recorded_inside():
    from torch._higher_order_ops.while_loop import while_loop

    x, w = torch.randn(4, 16), leaf(16, 16)

    def run():
        h = x @ w
        h = torch.cond(h.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (h,))
        with torch.no_grad():
            _, k = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.tanh()), (torch.tensor(0), h.detach()))
        return (h * k).sum()

    plain, planned = plain_and(run, [w], in_region)
    assert plain == planned


def test_flex_attention_without_a_compiler_runs_in_a_region():
    from torch.nn.attention.flex_attention import flex_attention

    q, w = torch.randn(1, 2, 128, 16), leaf(16, 16)

    def run():
        with torch.no_grad():
            attention = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s - (i - j).abs() * 0.1)
        return ((q @ w) * attention).sum()

    plain, planned = plain_and(run, [w], in_region)
    assert plain == planned


def test_a_compiled_graph_with_an_operator_that_writes_runs_in_a_region():
    @torch.library.custom_op("no_silent_difference::fill", mutates_args=("out",))
    def fill(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    fill.register_fake(lambda x, out: None)

    @torch.compile(backend="aot_eager")
    def compiled(x):
        out = torch.empty_like(x)
        torch.ops.no_silent_difference.fill(x, out)
        return out + 1

    x, w = torch.randn(4, 4), leaf(4, 4)

    def run():
        with torch.no_grad():
            t = compiled(x)
        return (t @ w).square().sum()

    plain, planned = plain_and(run, [w], in_region)
    assert plain == planned


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_the_child_of_a_fork_inside_of_a_region_records_nothing():
    x, w = torch.randn(64, 64), leaf(64, 64)
    read, write = os.pipe()
    with snug.Region(snug.Recompute()):
        h = torch.tanh(x @ w)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # OpenMP's threads are the parent's
            before = snug.memory_stats()["allocated"]
            for _ in range(100):
                t = torch.randn(256, 256) + 1  # 256 KiB, which a tape would hold
            os.write(write, str(snug.memory_stats()["allocated"] - before - t.nbytes).encode())
            os._exit(0)
        loss = h.square().sum()
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(read, 100)) < 2 << 20
    loss.backward()
    w.grad, grad = None, w.grad
    torch.tanh(x @ w).square().sum().backward()
    assert torch.equal(grad, w.grad)


class WritesOutsideOfOperators(torch.optim.Optimizer):
    """Updates by a kernel that is no operator, as Apex', DeepSpeed's CPUAdam and ctypes do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["sum"] = torch.zeros_like(p)
            state["sum"].numpy()[...] += p.grad.numpy()
            p.numpy()[...] -= 0.1 * state["sum"].numpy()


def test_an_optimizer_that_writes_outside_of_operators_is_rehearsed_without_a_trace():
    lin = torch.nn.Linear(64, 64)
    optimizer = WritesOutsideOfOperators(lin.parameters())
    x = torch.randn(64, 64)
    torch.tanh(lin(x)).square().sum().backward()
    optimizer.step()
    lin.zero_grad()
    before, state = bits(lin.parameters()), bits(s["sum"] for s in optimizer.state.values())
    with snug.fit(lambda b: torch.tanh(lin(b)).square().sum(), x, "100%", optimizer=optimizer):
        assert bits(lin.parameters()) == before
        assert bits(s["sum"] for s in optimizer.state.values()) == state


# --- updates of what nothing has read ---------------------------------------------------------------------------------


def peak_of(run):
    with snug.Monitor(interval=None) as monitor:
        run()
    return monitor.peak


def test_an_average_of_weights_that_the_forward_pass_updates_is_not_copied():
    n = 1024
    student, start = torch.nn.Parameter(torch.randn(n, n) * 0.01), torch.randn(n, n) * 0.01  # 4 MiB each
    teacher, x = start.clone(), torch.randn(8, n)

    def step(b):
        with torch.no_grad():
            teacher.mul_(0.99).add_(student, alpha=0.01)
        return (b @ student - b @ teacher).square().sum()

    plain_peak = peak_of(lambda: step(x).backward())
    plain, teacher_then = bits([student.grad]), bits([teacher])
    teacher.copy_(start)
    student.grad = None
    with snug.fit(step, x, plain_peak + (1 << 20)) as session:
        assert session.plan.unplanned_peak < plain_peak + (1 << 20)
        assert peak_of(lambda: session.backward(x)) <= plain_peak + (1 << 20)
        assert session.last_step.followed_plan and session.last_step.evictions == 0
    assert bits([student.grad]) == plain and bits([teacher]) == teacher_then


def test_an_optimizer_at_the_beginning_of_the_step_copies_no_state():
    def train(steps, run_with):
        torch.manual_seed(3)
        net = torch.nn.Linear(1024, 1024)
        optimizer, x = torch.optim.AdamW(net.parameters()), torch.randn(8, 1024)

        def step(b):
            if net.weight.grad is not None:
                optimizer.step()
                optimizer.zero_grad()
            loss = net(b).square().mean()
            loss.backward()
            return loss

        step(x), step(x)  # state and gradients are there
        peak = run_with(step, x, steps)
        return bits(net.parameters()), peak

    plain, plain_peak = train(3, lambda step, x, n: max(peak_of(lambda: step(x)) for _ in range(n)))

    def planned(step, x, n):
        with snug.fit(step, x, plain_peak + (2 << 20)) as session:
            return max(peak_of(lambda: session.backward(x)) for _ in range(n))

    trained, peak = train(3, planned)
    assert trained == plain and peak <= plain_peak + (2 << 20)
