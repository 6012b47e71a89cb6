"""Engines that are forked from one process, which imports what they will need: once, whatever their number."""

import contextlib
import ctypes
import gc
import importlib
import os
import random
import signal
import sys

from trainlean.workspace import the_device

# What lessons import on ranks; an engine has those of them that the notebook has imported, too.
HEAVY = (
    "torch",
    "accelerate",
    "transformers",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
)
PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def can_fork() -> bool:
    """Whether processes may be forked after imports: Apple's libraries break there, CUDA may, and Windows has no fork."""
    return sys.platform == "linux" and the_device() == "cpu"


def engine_set() -> type:
    """ipyparallel's launcher for a set of engines that one command starts, with the command below in place of `mpiexec`."""
    from ipyparallel.cluster.launcher import MPIEngineSetLauncher

    class ForkedEngineSetLauncher(MPIEngineSetLauncher):
        def find_args(self):
            command = "from trainlean.devices.forking import main; main()"
            modules = ",".join(name for name in HEAVY if name in sys.modules)
            return [sys.executable, "-c", command, str(self.n), modules, *self.program_args]

    return ForkedEngineSetLauncher


def main() -> None:
    """`NUMBER MODULES ARGUMENTS...`: import the modules, run so many engines with these arguments, and stay until all have ended."""
    number, modules, *arguments = sys.argv[1:]
    # Libraries ask for cards while they are imported: then without CUDA, which no fork could use any more.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in ("ipyparallel.engine.app", *filter(None, modules.split(","))):
        with contextlib.suppress(Exception):  # an engine that needs it says so itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what has been imported stays; shared pages are not written to
    engines: list[int] = []

    def pass_on(received, frame):
        for engine in engines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, received)

    # A signal that comes while engines are forked waits until all are known: none is left out.
    before = [signal.signal(one, pass_on) for one in PASSED_ON]
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    for _ in range(int(number)):
        engines.append(_fork(arguments, before))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    for _ in engines:
        os.wait()  # whichever ends: what watches one sees no end while nobody has asked for its status


def _fork(arguments: list[str], handlers: list) -> int:
    parent = os.getpid()
    if engine := os.fork():
        return engine
    # The system ends it with the one that would have passed a signal on.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    for one, handler in zip(PASSED_ON, handlers, strict=True):
        signal.signal(one, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    sys.argv = ["ipengine", *arguments]
    random.seed()  # as in a process of its own
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    from ipyparallel.engine.app import launch_new_instance

    launch_new_instance()
    os._exit(0)
