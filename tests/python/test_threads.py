"""Threads, workers and processes beside sessions."""

import threading

import pytest
import torch
from conftest import only_on_the_cpu
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snug


def task(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)], nn.Linear(64, 1))
    return model, torch.randn(4096, 64)


def test_two_sessions_in_two_threads():
    tasks = [task(i) for i in range(2)]
    plain = []
    for model, x in tasks:
        model(x).square().mean().backward()
        plain.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    # Recording measures the memory of the process: one after the other.
    sessions = [
        snug.fit(lambda b, m=model: m(b).square().mean(), x, budget="1GiB", strategy="sequential(2)")
        for model, x in tasks
    ]
    failures = []

    def run(i):
        model, x = tasks[i]
        try:
            for _ in range(20):
                for p in model.parameters():
                    p.grad = None
                sessions[i].backward(x)
                assert sessions[i].last_step.replayed_ops > 0
                for p, expected in zip(model.parameters(), plain[i]):
                    assert torch.equal(p.grad, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    for session in sessions:
        session.close()


def test_a_session_moves_between_threads():
    model, x = task(3)
    session = snug.fit(lambda b: model(b).square().mean(), x, budget="75%")
    losses = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: losses.append(session.backward(x).item()))
        thread.start()
        thread.join()
    session.close()
    assert len(set(losses)) == 1 and len(losses) == 3


@only_on_the_cpu("memory that processes share")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_loader_with_workers(method):
    model, x = task(4)
    data = TensorDataset(x)
    with snug.fit(lambda b: model(b[0]).square().mean(), [x[:1024]], budget="100%") as session:
        loader = DataLoader(data, batch_size=1024, num_workers=2, multiprocessing_context=method)
        losses = [session.backward(batch).item() for _ in range(2) for batch in loader]
    assert len(losses) == 8
    expected = [model(x[i : i + 1024]).square().mean().item() for i in range(0, 4096, 1024)] * 2
    assert losses == expected


class Large(torch.utils.data.Dataset):
    """Whose items take 40 MiB for a moment."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        assert snug.memory_stats()["limit"] is None
        return torch.full((10 << 20,), float(i))[:64].clone()


@only_on_the_cpu("memory that processes share")
def test_the_limit_is_not_that_of_forked_workers():
    model, _ = task(2)
    x = torch.randn(4, 64)
    with snug.fit(lambda b: model(b).square().mean(), x, budget="100%") as session:
        limit = session.plan.budget
        assert limit < 32 << 20
        loader = DataLoader(Large(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3]]
        assert snug.memory_stats()["limit"] == limit


def test_a_fork_beside_a_thread_that_allocates():
    """The child has only the thread that forked: whatever another was in the middle of must not be locked for good."""
    import os
    import signal

    stop = threading.Event()

    def churn():
        while not stop.is_set():
            torch.empty(100)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                torch.empty(1000)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for t in threads:
            t.join()


@pytest.mark.parametrize("what", ["leaves the region", "saves for backward"])
def test_a_region_goes_on_while_another_thread_replays_python(what):
    """That thread holds the tape and waits for Python's lock, so nobody may hold that one and wait for the tape."""
    import faulthandler
    import time

    replays, replaying = [False], threading.Event()

    @torch.library.custom_op(f"snug_test_threads::slow_{len(what)}", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        if replays[0]:
            replaying.set()
            time.sleep(0.3)  # without Python's lock
        return x.sin()

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x

    weight = torch.randn(64, requires_grad=True)
    x = torch.randn(64)
    found = []
    faulthandler.dump_traceback_later(120, exit=True)
    try:
        region = snug.Region(snug.Recompute())
        with region:
            part = (slow(x) * weight).sum()
            replays[0] = True
            other = threading.Thread(target=lambda: found.append(torch.autograd.grad(part, weight)[0]))
            other.start()
            assert replaying.wait(60)
            rest = Same.apply(weight) if what == "saves for backward" else None
        other.join()
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert torch.equal(found[0], x.sin()) and region.replayed_ops > 0
    if rest is not None:
        assert torch.equal(torch.autograd.grad(rest.sum(), weight)[0], weight)


def test_two_backward_passes_of_one_rerun_in_two_threads():
    """One waits for the other's rerun while it holds Python's lock, which that needs."""
    import faulthandler

    class ReadsSaved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clone()
            ctx.save_for_backward(y)
            return y * 2

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * 2 + 0 * y

    def function(x):
        y = ReadsSaved.apply(x.sin())
        for _ in range(50):
            y = y.cos() + sum(range(200)) * 0
        return y

    faulthandler.dump_traceback_later(120, exit=True)
    try:
        x = torch.randn(64, requires_grad=True)
        for _ in range(20):
            y = snug.checkpoint(function, x, mode=snug.Rerun())
            a, b = y.sum(), y.square().sum()
            found = []
            threads = [
                threading.Thread(target=lambda z=z: found.append(torch.autograd.grad(z, x, retain_graph=True)[0]))
                for z in (a, b)
            ]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert len(found) == 2
    finally:
        faulthandler.cancel_dump_traceback_later()
