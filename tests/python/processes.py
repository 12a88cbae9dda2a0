"""Processes that meet by torch.distributed, on Gloo, as a test starts them."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _run(rank, body, count, port, results, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=count, timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    body(rank, results, *arguments)
    dist.destroy_process_group()


def in_processes(count, body, *arguments):
    """body(rank, results, *arguments) in each of them; what they have put into results. Fails where one of them does."""
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(_run, args=(body, count, _free_port(), results, arguments), nprocs=count)
        return dict(results)
