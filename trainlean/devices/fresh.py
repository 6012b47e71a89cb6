"""Processes for one call: they start, answer and are gone."""

import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import wait as wait_for_any

import cloudpickle

from trainlean.devices.inside import call_packed, cores, free_port, join_group
from trainlean.devices.waiting import results_of, wait_for_ranks
from trainlean.processes import server_context, start

PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "transformers",
    "accelerate",
    "trainlean.devices.inside",
]
# Seconds of imports each: worth it where the program itself has them.
SLOW = ["transformers.models.bert.modeling_bert", "transformers.trainer"]


def run_in_fresh_processes(function: Callable, args: tuple, n: int, timeout: float) -> list:
    """The results of `function(*args)` by rank, from `n` CPU processes with a process group; `run_on_devices` says what it raises."""
    context = server_context(PRELOADED + [name for name in SLOW if name in sys.modules])
    packed = cloudpickle.dumps((function, args))
    threads = max(1, cores() // n)
    pipes, processes = [], []
    with tempfile.TemporaryDirectory(prefix="trainlean-devices-") as folder:
        group = {
            "world_size": n,
            "address": "127.0.0.1",
            "port": free_port(),
            "loopback": True,
            "cuda": False,
            "timeout": timeout,
            "folder": folder,
        }
        try:
            for number in range(n):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                processes.append(
                    start(context, _answer_once, theirs, packed, number, threads, group)
                )
                theirs.close()

            def ended():
                return {pipes.index(pipe) for pipe in wait_for_any(pipes, timeout=0)}

            ranks = wait_for_ranks(ended, n, folder, timeout, timeout)
            for rank in ranks:
                if rank.ended:
                    try:
                        rank.take(pipes[rank.number].recv_bytes())
                    except (EOFError, OSError):
                        rank.died = True
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.kill()
                process.join()
    return results_of(ranks)


def _answer_once(pipe, packed: bytes, rank: int, threads: int, group: dict) -> None:
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    join_group(rank, rank, threads, group)
    pipe.send_bytes(call_packed(packed, sys.path))
    wait_for_any(
        [pipe]
    )  # rank 0 holds the store of the group: nobody leaves before all have answered
