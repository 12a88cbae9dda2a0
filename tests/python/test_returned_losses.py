"""A step that calls backward() on its loss and returns that loss costs no walk of the autograd graph, and holds none. What
another returns is the loss of a forward pass that has not gone backward, or made of what has, or refused."""

import threading
import weakref

import pytest
import torch
from torch import nn

import snug
from snug._backward_passes import BackwardPasses


@pytest.fixture
def walks(monkeypatch):
    """The number of walks of the autograd graph so far, in a list."""
    count = [0]
    plain = BackwardPasses._note_nodes

    def counted(passes):
        count[0] += 1
        plain(passes)

    monkeypatch.setattr(BackwardPasses, "_note_nodes", counted)
    return count


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)), torch.randn(32, 16)


@pytest.mark.parametrize("returned, walked", [("loss", False), ("detached", False), ("half", True)])
def test_the_graph_is_walked_only_for_another_tensor(walks, returned, walked):
    model, x = small()

    def step(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return {"loss": loss, "detached": loss.detach(), "half": loss / 2}[returned]

    step(x)
    expected = [p.grad.clone() for p in model.parameters()]
    with snug.fit(step, x, budget="1GiB") as session:
        model.zero_grad()
        walks[0] = 0
        loss = session.backward(x)
        assert not loss.requires_grad and bool(walks[0]) == walked
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_a_loss_of_another_micro_batch_is_returned_as_it_is():
    model, x = small()

    def step(batch):
        losses = []
        for part in batch.chunk(2):
            with snug.micro_batch():
                losses.append(model(part).square().mean())
            losses[-1].backward()
        return losses[0]

    step(x)
    expected = [p.grad.clone() for p in model.parameters()]
    with snug.fit(step, x, budget="1GiB") as session:
        model.zero_grad()
        session.backward(x)
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("returned", ["other", "sum"])
def test_a_loss_of_a_micro_batch_that_went_backward_by_another_is_refused(returned):
    model, x = small()

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                out = model(part)
                loss, other = out.square().mean(), (out * model[0].weight.sum()).mean()
            loss.backward(retain_graph=True)
        return {"other": other, "sum": other + loss}[returned]

    with pytest.raises(snug.UsageError, match="gradient would be missing"):
        snug.fit(step, x, budget="1GiB")


def test_graphs_of_micro_batches_go_with_them():
    model, x = small()
    alive = []

    def step(batch):
        before = []
        for part in batch.chunk(4):
            part = part.clone().requires_grad_()
            alive.append(sum(leaf() is not None for leaf in before))
            before.append(weakref.ref(part))
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
            assert part.grad is not None
            loss = part = None

    with snug.fit(step, x, budget="1GiB") as session:
        session.backward(x)
        model.zero_grad()
    assert alive and not any(alive)


def gradients_of(step, model, x):
    step_of_session = snug.fit(step, x, budget="1GiB")
    model.zero_grad()
    with step_of_session as session:
        loss = session.backward(x)
    return loss, [p.grad for p in model.parameters()]


def plain_gradients(step, model, x):
    model.zero_grad()
    step(x)
    return [p.grad.clone() for p in model.parameters()]


def has_plain_gradients(step, plain_step, model, x):
    """Of a session's step, which is to have those of another one without a session. Returns its loss."""
    loss, found = gradients_of(step, model, x)
    assert all(torch.equal(f, e) for f, e in zip(found, plain_gradients(plain_step, model, x), strict=True))
    return loss


def test_a_leaf_is_returned_beside_micro_batches():
    model, x = small()

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
        return torch.tensor(1.0, requires_grad=True)

    assert has_plain_gradients(step, step, model, x).item() == 1.0


def test_a_loss_beside_a_pass_in_front_of_the_micro_batches_is_refused():
    model, x = small()

    def step(batch):
        out = model(batch)
        main, aux = out.square().mean(), (out * model[0].weight.sum()).mean()
        main.backward(retain_graph=True)
        with snug.micro_batch():
            loss = model(batch).mean()
        loss.backward()
        return aux

    with pytest.raises(snug.UsageError, match="gradient would be missing"):
        snug.fit(step, x, budget="1GiB")


def test_a_loss_that_is_in_no_micro_batch_is_refused():
    model, x = small()

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
        return model(batch).square().mean()

    with pytest.raises(snug.UsageError, match="gradient would be missing"):
        snug.fit(step, x, budget="1GiB")


def test_a_loss_of_another_thread_that_went_backward_has_gone():
    model, x = small()

    def step(batch):
        loss = in_thread(lambda: model(batch).square().mean())
        loss.backward(retain_graph=True)
        return loss

    has_plain_gradients(step, step, model, x)


def test_a_loss_between_micro_batches_that_went_backward_has_gone():
    model, x = small()

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
        penalty = sum(p.square().sum() for p in model.parameters())
        penalty.backward(retain_graph=True)
        return penalty

    has_plain_gradients(step, step, model, x)


@pytest.mark.parametrize("returned", ["last", "sum"])
def test_a_micro_batch_that_is_skipped_stays_without_gradients(returned):
    model, x = small()

    def step(batch):
        total = 0
        for part in batch.chunk(2):
            with snug.micro_batch():
                loss = model(part).square().mean()
            if loss.isfinite():
                loss.backward()
            total = total + loss
        return loss if returned == "last" else total

    with snug.fit(step, x, budget="1GiB") as session:
        bad = x.clone()
        bad[-1] = float("inf")
        expected = plain_gradients(step, model, bad)
        model.zero_grad()
        session.backward(bad)
        assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
        assert all(e.isfinite().all() for e in expected)


def test_an_update_that_takes_gradients_first_is_not_run_by_a_recording():
    model, x = small()
    updates = []

    def step(batch):
        for part in batch.chunk(2):
            with snug.micro_batch():
                loss = model(part).square().mean()
            loss.backward()
        for p in model.parameters():
            gradient, p.grad = p.grad, None
            with torch.no_grad():
                p.sub_(0.1 * gradient)
        updates.append(1)

    with snug.fit(step, x, budget="1GiB") as session:
        assert not updates
        session.backward(x)
    assert updates == [1]


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_threads_that_make_parts_of_micro_batches_count_their_nodes_apart():
    model, x = small()

    def step(batch, backward_of_last=False):
        first, last = batch.chunk(2)
        for part in (first, last):
            with snug.micro_batch():
                h = in_thread(lambda: model[0](part))  # noqa: B023
                loss = model[2](model[1](h)).square().mean()
            if part is first or backward_of_last:
                loss.backward()
        return loss

    has_plain_gradients(step, lambda batch: step(batch, backward_of_last=True), model, x)


def test_a_backward_pass_that_fails_has_not_gone_through_its_graph():
    model, x = small()

    def fails(_):
        raise ArithmeticError("no")

    def step(batch):
        first, last = batch.chunk(2)
        with snug.micro_batch():
            one = model(first).square().mean()
        one.backward()
        with snug.micro_batch():
            other = model(last).square().mean()
        other.register_hook(fails)
        try:
            other.backward()
        except ArithmeticError:
            pass
        return one + other

    with pytest.raises(snug.UsageError):
        snug.fit(step, x, budget="1GiB")


def test_the_last_loss_may_share_a_part_that_went_backward():
    model, x = small()
    head = nn.Linear(1, 1)

    def step(batch, backward_of_last=False):
        with snug.micro_batch():
            shared = model(batch)
            one = shared.square().mean()
        one.backward(retain_graph=True)
        with snug.micro_batch():
            other = head(shared).mean()
        if backward_of_last:
            other.backward()
        return other

    has_plain_gradients(step, lambda batch: step(batch, backward_of_last=True), model, x)


@pytest.mark.parametrize("dies_first", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_the_update_of_leaves_that_have_died_is_not_run_by_a_recording(dies_first, both):
    """Functional micro-batches: a view of the weight, made anew for each, has the gradient."""
    weight = torch.randn(16, 16, requires_grad=True)
    x = torch.randn(8, 16)
    updates = []

    def part(batch):
        w = weight.detach().requires_grad_()
        with snug.micro_batch():
            a, b = (batch @ w).square().mean(), (batch @ weight).square().mean()
            loss = (a + b if dies_first else b + a) if both else a
        loss.backward()
        return w.grad

    def step(batch):
        total = sum(part(p) for p in batch.chunk(2))
        with torch.no_grad():
            weight.sub_(0.1 * total)
        updates.append(1)

    before = weight.detach().clone()
    with snug.fit(step, x, budget="1GiB") as session:
        assert not updates and torch.equal(weight, before)
        session.backward(x)
    assert updates == [1]


def test_verify_says_what_a_step_without_a_loss_must_return():
    model, x = small()
    with pytest.raises(snug.UsageError, match="did not call backward"):
        snug.verify(lambda batch: None, x, model, budget="1GiB")
