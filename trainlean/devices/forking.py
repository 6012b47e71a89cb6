"""Engines forked from the server that other processes of this course come from: what they need is imported once, whatever their number."""

import ctypes
import gc
import os
import random
import signal
import sys
from multiprocessing.process import BaseProcess

from trainlean.processes import import_ahead, server_context, start
from trainlean.workspace import the_device

# What lessons import on ranks; an engine has those of them that the notebook has imported, too.
HEAVY = (
    "torch",
    "accelerate",
    "transformers",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
)


def can_fork() -> bool:
    """Whether processes may be forked after imports: Apple's libraries break there, CUDA may, and Windows has no fork."""
    return sys.platform == "linux" and the_device() == "cpu"


def prepare_engines() -> None:
    """Let the server begin with its imports, while the controller starts."""
    import_ahead(_preloaded())


def fork_engines(n: int, arguments: list[str], environment: dict[str, str]) -> list[BaseProcess]:
    """`n` engines of ipyparallel, as `ipengine ARGUMENTS` starts them; they end with this process, and with their server."""
    context = server_context(_preloaded())
    return [start(context, _run, arguments, environment, daemon=False) for _ in range(n)]


def _preloaded() -> list[str]:
    # Checks of ranks find their part there, too.
    heavy = [name for name in HEAVY if name in sys.modules]
    return ["ipyparallel.engine.app", "trainlean.devices.inside", *heavy]


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    # The system ends it with the server, frozen or not.
    server = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(0)
    os.setsid()  # an interrupt of the notebook comes by way of `Devices`
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.environ.clear()
    os.environ.update(environment)
    gc.freeze()  # what has been imported stays; a meter's collector need not look at it
    sys.argv = ["ipengine", *arguments]
    random.seed()  # as in a process of its own
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    from ipyparallel.engine.app import launch_new_instance

    launch_new_instance()
    os._exit(0)
