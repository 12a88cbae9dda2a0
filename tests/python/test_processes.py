"""Processes that train one model together decide together what changes what each of them runs."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import snug
from processes import in_processes

fsdp2_recovers = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="FSDP2 of this torch cannot go on after an exception"
)


def small():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)])
    return model, torch.randn(8192, 64)


def gradients(model):
    return [getattr(p.grad, "to_local", p.grad.clone)().clone() for p in model.parameters()]


def _refused(rank, results, how):
    explicit = how == "a group"
    model, x = small()
    part = x.chunk(2)[rank]
    divided = None
    if how == "ddp":
        divided = nn.parallel.DistributedDataParallel(model)
    elif how == "fsdp":
        divided = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    calls = bytearray(1)  # which recording does not put back, as it does a list

    def step(batch):
        calls[0] += 1
        loss = (model if explicit else divided)(batch).square().mean()
        # Only one of them finds no room, and only in the second run of its recording.
        if rank == 1 and calls[0] == 2:
            torch.empty(1 << 28)
        if not explicit:
            return loss
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        return loss

    def gradients_of(backward):
        model.zero_grad()
        torch.manual_seed(10 + rank)
        backward()
        return gradients(model)

    group = dist.group.WORLD if explicit else None
    with snug.fit(step, part, "400MiB", process_group=group) as session:
        recorded = calls[0]
        planned = gradients_of(lambda: session.backward(part))
    plain = gradients_of((lambda: step(part)) if explicit else lambda: step(part).backward())
    results[rank] = (recorded, all(torch.equal(a, b) for a, b in zip(plain, planned)))


def _unplanned(rank, results):
    model, x = small()
    divided = nn.parallel.DistributedDataParallel(model)
    step = lambda batch: divided(batch).square().mean()  # noqa: E731
    part = x.chunk(2)[rank]
    began = time.monotonic()
    try:
        snug.fit(step, part, "400MiB", strategy="revolve(9)" if rank == 1 else "optimal")
        said = "nothing"
    except snug.Error as error:
        said = str(error)
    ended = time.monotonic() - began
    with snug.fit(step, part, "400MiB") as session:  # with one that suits all
        session.backward(part)
    results[rank] = (said, ended)


def test_what_one_process_cannot_plan_ends_in_all_at_once():
    results = in_processes(2, _unplanned)
    assert "process 1 of the group's 2" in results[0][0]
    assert "revolve" in results[1][0]
    assert max(ended for _, ended in results.values()) < 60


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=fsdp2_recovers), "a group"])
def test_what_one_process_refuses_is_recorded_again_in_all(how):
    assert in_processes(2, _refused, how) == {0: (2 + 2, True), 1: (2 + 2, True)}


def _static_graph(rank, results):

    def trained(planned):
        model, x = small()
        part = x.chunk(2)[rank]
        ddp = nn.parallel.DistributedDataParallel(model, static_graph=True)

        def step(batch):
            return ddp(batch).square().mean()

        if planned:
            with pytest.raises(snug.UsageError, match="static_graph=True that has had no iteration yet"):
                snug.fit(step, part, "70%")
        step(part).backward()
        session = snug.fit(step, part, "70%") if planned else None
        model.zero_grad()
        torch.manual_seed(3)
        session.backward(part) if planned else step(part).backward()
        if planned:
            session.close()
        return gradients(model)

    results[rank] = all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def test_a_static_graph_of_ddp_has_to_have_had_its_first_iteration():
    assert in_processes(2, _static_graph) == {0: True, 1: True}


class Ended(Exception):
    pass


def _ends(rank, results):
    """Steps of which one ends in the middle of its backward pass, in all processes."""

    def trained(planned):
        model, x = small()
        part = x.chunk(2)[rank]
        mesh = init_device_mesh("cpu", (2,))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        hooks = []
        for p in model.parameters():  # which FSDP2 calls itself
            p.register_post_accumulate_grad_hook(lambda p: hooks.append(p))
        ends = [False]

        def end(gradient):
            if ends[0]:
                raise Ended

        model[1].register_forward_hook(lambda module, inputs, output: output.register_hook(end) and None)

        def step(batch):
            return model(batch).square().mean()

        # In percent: without a limit.
        session = snug.fit(step, part, "70%", optimizer=optimizer) if planned else None
        assert not hooks, "a recording leaves no trace"
        told = []
        for i in range(4):
            torch.manual_seed(i)
            ends[0] = i == 1
            try:
                session.backward(part) if planned else step(part).backward()
            except Ended:
                if not planned:
                    model.reset_iter_state()
                optimizer.zero_grad()
                continue
            told += [g.clone() for g in gradients(model)]
            optimizer.step()
            optimizer.zero_grad()
        assert len(hooks) > 3 * len(list(model.parameters())) - 1
        if planned:
            assert session.last_step.followed_plan and session.last_step.replayed_ops > 0, session.last_step
            session.close()
        return told

    plain, under = trained(False), trained(True)
    results[rank] = len(plain) == len(under) > 0 and all(torch.equal(a, b) for a, b in zip(plain, under))


@fsdp2_recovers
def test_steps_under_fsdp2_go_on_after_one_that_ended_in_its_backward_pass():
    assert in_processes(2, _ends) == {0: True, 1: True}


def test_a_process_group_that_is_none_is_refused():
    model, x = small()
    with pytest.raises(snug.UsageError, match="process group is a str; give one of torch.distributed"):
        snug.fit(lambda b: model(b).square().mean(), x, "60%", process_group="world")
