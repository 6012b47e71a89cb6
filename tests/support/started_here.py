"""The processes that this run of the tests has started, whoever their parents are by now: found by a variable that they inherit."""

import contextlib
import os
import secrets

import psutil

VARIABLE = "TRAINLEAN_TESTS"


def mark() -> None:
    """From here on what this process starts can be told from everything else."""
    os.environ[VARIABLE] = secrets.token_hex(8)


def end_started(*, orphans: bool = False) -> None:
    """End what was started since `mark`; with `orphans` only those whose parents are gone, as a launcher that was killed leaves them.

    The kernels of a worker's notebooks, and so their devices, descend from the process that has started the workers.
    """
    first = psutil.Process(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    family = {one.pid for one in (first, *first.children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid == os.getpid() or (orphans and process.pid in family):
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == os.environ.get(VARIABLE, "none"):
                process.kill()
