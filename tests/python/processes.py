"""Processes that meet by torch.distributed, on Gloo, as a test starts them."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from free_port import free_port  # noqa: E402


# What takes seconds to import, once for all that are started.
_IMPORTED = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "snug"]


def _run(rank, body, count, port, results, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # Gloo's threads, which inherit it, run in circles where they take the processor from who has a connection's lock.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dist.init_process_group("gloo", rank=rank, world_size=count, timeout=timedelta(seconds=120))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    torch.set_num_threads(1)
    body(rank, results, *arguments)
    dist.destroy_process_group()


def in_processes(count, body, *arguments):
    """body(rank, results, *arguments) in each of them; what they have put into results. Fails where one of them does."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with context.Manager() as manager:
        results = manager.dict()
        mp.start_processes(_run, args=(body, count, free_port(), results, arguments), nprocs=count, start_method="forkserver")
        return dict(results)


def what_became(plain, bits, said):
    """Of a run under plans, beside a plain one: digests of both, and for each step its report, the plan, and the peak that is
    predicted, that was, and that is allowed."""
    assert len(bits) == len(plain)
    return {
        "same": sum(a == b for a, b in zip(plain, bits)) / len(bits),
        "replayed": [report.replayed_ops for report, *_ in said],
        "evictions": [report.evictions for report, *_ in said],
        "followed": [report.divergence or report.followed_plan for report, *_ in said],
        "peaks": [(peak, predicted, limit, plan.unplanned_peak) for _, plan, predicted, peak, limit in said],
    }
