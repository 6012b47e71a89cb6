"""Processes of a server that has imported everything and computed nothing: a fork of it is ready in milliseconds, and sound."""

import multiprocessing.util  # registers its own farewell, which waits for processes: those who end them do it after this import
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import psutil

_starting = threading.Lock()


def server_context(preloaded: list[str]):
    """A multiprocessing context whose server imports these modules first; on Windows each process imports them itself."""
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    if context.get_start_method() == "forkserver":
        # Libraries ask for cards while they are imported: then without CUDA, which no fork could use any more.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        context.set_forkserver_preload(preloaded)
    return context


def import_ahead(preloaded: list[str]) -> None:
    """Start the server on importing these, while this process does other things; nothing where there is no server."""
    if server_context(preloaded).get_start_method() == "forkserver":
        from multiprocessing import forkserver  # not there on Windows

        forkserver.ensure_running()


def start(context, target: Callable, *args, daemon: bool | None = None) -> BaseProcess:
    """A started process of such a context that calls `target(*args)`; it ends with the process that has started it.

    The program's main file is not run in it. multiprocessing would run it again in every process: seconds for one that imports
    much, and without an end for a script without a `__main__` guard. What the processes of this course need comes to them whole.
    """
    process = context.Process(target=_with_its_starter, args=(target, *args), daemon=daemon)
    main = sys.modules["__main__"]
    with _starting:
        file, spec = main.__dict__.pop("__file__", None), main.__spec__
        main.__spec__ = None
        try:
            process.start()
        finally:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file
    return process


def still_running(
    processes: Iterable[psutil.Process], seconds: float = 0.0
) -> list[psutil.Process]:
    """Those that run on after so many seconds. One that only waits for its parent to collect it, which can take long, has ended."""
    until = time.monotonic() + seconds
    while (left := [one for one in processes if _runs(one)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went in between
        return False


def _with_its_starter(target, *args):
    starter = multiprocessing.parent_process()
    assert starter is not None

    def leave_with_it():
        wait([starter.sentinel])
        os._exit(1)  # an answer that never ends must not outlive a kernel that was killed

    threading.Thread(target=leave_with_it, daemon=True).start()
    target(*args)


def wait_for(receiver, pid: int | None, seconds: float, clock_factor: float) -> tuple[float, float]:
    """Wait until a process answers, has computed for so long, or has taken `clock_factor` times as long on the clock.

    Returns the seconds that it has computed and those that have passed.
    """
    start, computed = time.monotonic(), 0.0
    try:
        process = psutil.Process(pid)
        used = sum(process.cpu_times()[:2])
    except psutil.Error:  # it has answered and gone already
        receiver.poll(1)
        return computed, time.monotonic() - start
    while not receiver.poll(0.2):
        try:
            computed = sum(process.cpu_times()[:2]) - used
        except psutil.Error:
            receiver.poll(1)
            break
        if computed > seconds or time.monotonic() - start > clock_factor * seconds:
            break
    return computed, time.monotonic() - start


def too_long(name: str, limit: float, computed: float, waited: float) -> str:
    """Why nothing was seen, when time ran out: after so much computing, or waiting (all in seconds)."""
    if computed >= limit:
        return (
            f"{name} computed for {computed:.0f} s without an answer: does a loop in it never end?"
        )
    return f"{name} gave no answer within {waited:.0f} s, of which it computed for {computed:.1f} s: does it wait for something that never comes? On a busy machine, check again."
