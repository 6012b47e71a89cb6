"""The process that runs submissions: it imports what they use, once, and forks for each exercise a process that its probe questions.

It reads requests from stdin and writes frames to stdout: a line of JSON, then as many bytes as its "bytes" says. Everything
that comes out of a learner's process is numpy's own format and JSON (`trainlean.exercises.seeing.pack`), never pickle,
and the verdict falls where the frames are read. No torch operation happens here before the fork: its threads would not survive one.
"""

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from trainlean.exercises.checking import no_answer, seconds_for, too_long
from trainlean.exercises.seeing import pack, see_answer
from trainlean.exercises.verdicts import CRASHED
from trainlean.grading.probes import (
    ON_DEMAND,
    compiled,
    exercise_without_probe,
    imports_of,
    load_probe,
)
from trainlean.grading.reading import packed_notebook, unpack_notebook, unpack_statements
from trainlean.grading.sandbox import (
    USERS_OF_A_WORKER,
    Limits,
    confine,
    forget_what_is_freed,
    protect_worker,
)
from trainlean.notebooks.statements import Handout

PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.nn.parallel",
    "torch._dynamo",  # which the first step of any optimizer imports
]
ANSWER_PIPE = 3
READING_SECONDS = 10  # of processor time, for one notebook
CLOCK_FACTOR = 3  # times its seconds of processor time an exercise may take on the clock: other work goes on beside it
LOOK_SECONDS = 0.25  # between two looks at the memory in use
ENDED_FOR_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)  # as the kernel and C++ do it
SOCKET_BYTES = 208 << 10  # that a socket holds before who writes has to wait, as Linux sets it
MEMORY = {  # where the system tells what a process has in use, in kB
    "smaps_rollup": ("Pss_Anon:", "Pss_Shmem:", "SwapPss:"),
    "status": ("RssAnon:", "RssShmem:", "VmSwap:"),
}
LEFT_SECONDS = 2  # for a submission's processes to be gone after they were ended
ALL_CHILDREN = 0x40000000  # of waitpid: those, too, that tell nobody when they end


def main() -> None:
    """Answer requests until stdin ends."""
    settings = json.loads(
        os.fdopen(os.dup(0), "rb").readline()
    )  # nothing else comes until it is ready
    # Without buffers: what passes through one is still in it when the next submission runs.
    source, sink = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # what a library prints must not end up among the frames
    worker = Worker(settings, sink)
    forget_what_is_freed(True)
    _send(sink, {"ready": True})
    for line in source:
        request = json.loads(line)
        worker.collect(request, _received(source, request["bytes"]))


def _received(source, size: int) -> bytearray:
    data = bytearray(size)
    place = memoryview(data)
    while place and (got := source.readinto(place)):
        place = place[got:]
    return data


def _send(sink, head: dict, blob: bytes = b"") -> None:
    rest = memoryview(json.dumps(head | {"bytes": len(blob)}).encode() + b"\n" + blob)
    while rest:
        rest = rest[sink.write(rest) :]


class Worker:
    """Reads notebooks and lets probes question them, with the settings of one run."""

    def __init__(self, settings: dict, sink):
        self.sink = sink
        self.seed, self.isolated, self.time_factor = (
            settings["seed"],
            settings["isolated"],
            settings["time_factor"],
        )
        self.users, self.collected, self.short_of = settings["users"], 0, ""
        self.limits = Limits(**settings["limits"])
        self.handouts = {name: Handout(**one) for name, one in settings["handouts"].items()}
        self.outside = settings["process_names"]
        self.probes = {name: compiled(cut) for name, cut in settings["probes"].items()}
        self.starts_processes = {
            name
            for name, cut in settings["probes"].items()
            if "run_on_devices" in str(cut["modules"])
        }
        self.exercises = {name: exercise_without_probe(cut) for name, cut in self.probes.items()}
        self.before = (
            {folder: set(os.listdir(folder)) for folder in ("/tmp", "/dev/shm")}
            if self.isolated
            else {}
        )
        if self.isolated:
            protect_worker()
            if os.readlink("/proc/self/ns/pid") == self.outside or os.getpid() > 9:
                sys.exit("this worker is not alone among its processes")
        self.elsewhere = [
            exercise_without_probe(
                {"about": {"name": name, "points": 0, "requires": "", "notebook": lesson}}
            )
            for name, lesson in settings["elsewhere"].items()
        ]
        self.imports = {
            name: [*PRELOADED, *imports_of(cut)] for name, cut in settings["probes"].items()
        }
        self.imported: set[str] = set()
        from IPython.core import inputtransformer2  # noqa: F401  read notebooks with it later

    def collect(self, request: dict, data: bytes | bytearray) -> None:
        """Send a frame for each exercise of a notebook that is not in `request["done"]`, then one that ends it."""
        self.user = self.users + self.collected % USERS_OF_A_WORKER
        self.collected += 1
        problem, exercises, not_due = self._read(data, request["where"], request["only_names"])
        if problem:
            _send(self.sink, {"end": True, "problem": problem, "short_of": self.short_of})
            return
        _send(self.sink, {"exercises": [known["exercise"] for known, _ in exercises]})
        if request["only_names"] or not_due:
            _send(self.sink, {"end": True, "problem": "", "not_due": not_due})
            return
        exercises = [one for one in exercises if one[0]["exercise"] not in request["done"]]
        # All imports come before any answer runs: libraries read settings from folders in which an answer may write.
        for known, statements in exercises:
            name = known["exercise"]
            _send(self.sink, {"importing": name})
            named = (ON_DEMAND[word] for word in known.pop("names") if word in ON_DEMAND)
            self._import([*self.imports[name], *named] if statements else [])
        before = _own_settings() if self.isolated else None
        folder = self._temporary_folder()
        for known, statements in exercises:
            name = known["exercise"]
            _send(self.sink, {"probing": name})
            self.short_of = ""
            answer = self._probe(self.exercises[name], statements, folder) if statements else ""
            if isinstance(answer, str):
                said = {"outcome": CRASHED, "message": answer, "short_of": self.short_of}
                _send(self.sink, said | known)
            else:
                _send(self.sink, known, answer)
        self._clean(folder)
        if self.isolated and not (self._alone() and _own_settings() == before):
            os._exit(3)
        _send(self.sink, {"end": True, "problem": ""})

    def _import(self, modules: Iterable[str]) -> None:
        """Import modules here, for all submissions; one that cannot be had is missed by whoever uses it."""
        gc.disable()  # a tenth of the time that torch takes
        for module in modules:
            if module not in self.imported:
                self.imported.add(module)
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
        gc.enable()

    def _temporary_folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="submission-")
        os.chmod(folder, 0o777)
        return folder

    def _clean(self, folder: str) -> None:
        """What a submission has left behind goes; a worker that cannot be cleaned ends, and another takes its place."""
        linked = [
            f"{place}/{name}"
            for place, before in self.before.items()
            for name in set(os.listdir(place)) - before
        ]
        for path in [folder, *linked]:
            if os.path.isdir(path) and not os.path.islink(path):
                for here, folders, _ in os.walk(path):
                    with contextlib.suppress(OSError):
                        for name in folders:
                            if not os.path.islink(f"{here}/{name}"):
                                os.chmod(f"{here}/{name}", 0o700)
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        if any(os.path.lexists(path) for path in linked):
            os._exit(3)

    def _read(
        self, data: bytes | bytearray, where: str, only_names: bool = False
    ) -> tuple[str, list[tuple[dict, bytes]], list[str]]:
        """As `unpack_notebook`: why a notebook cannot be read, or its exercises with their statements; from a process under limits."""
        seconds = READING_SECONDS * self.time_factor

        def read(pipe):
            _alone_with(pipe)
            self.probes.clear()
            os.chdir("/")
            confine(self.limits, self.isolated, seconds, self.user)
            known = self.exercises.values(), self.handouts
            try:
                _reply(packed_notebook(bytes(data), where, *known, only_names, self.elsewhere))
            except MemoryError:
                os.kill(os.getpid(), signal.SIGKILL)  # as who watches the memory ends it

        found, _, status = self._in_fork(where, seconds, read)
        if found is not None:
            return unpack_notebook(found)
        why = {
            "memory, as it seems,": f"seems to take more than {self.limits.memory >> 20:,} MiB of memory to read",
            "time": f"takes more than {seconds:g} s to read",
            "memory": f"takes more than {self.limits.memory >> 20:,} MiB of memory to read",
        }.get(self.short_of, f"cannot be read: what reads it ended (exit status {status})")
        return f"{where} {why}.", [], []

    def _probe(self, exercise, statements: bytes, folder: str) -> bytes | str:
        """The packed answer of a process forked for one exercise, or a sentence why there is none."""
        seconds = seconds_for(exercise) * self.time_factor

        def answer(pipe):
            self._answer(exercise, unpack_statements(statements), folder, pipe, seconds)

        data, problem, status = self._in_fork(exercise.name, seconds, answer)
        return data if data is not None else problem or no_answer(exercise.name, status)

    def _in_fork(
        self, what: str, seconds: float, run: Callable[[int], None]
    ) -> tuple[bytes | None, str, int]:
        """What `run` wrote to its pipe in a process of its own; without it a sentence why, where that is known, and the exit status."""
        self.short_of = ""
        ours, theirs = os.pipe()
        self.memory_alone = _memory(os.getpid(), ["status"])  # where it shares nothing, and quick
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                run(theirs)
            os._exit(1)
        os.close(theirs)
        try:
            data, problem = self._receive(what, ours, child, seconds)
            ended_itself = data is None and not problem and _has_ended(child)
        finally:
            os.close(ours)
            status, used = self._end(child)
        if data is None and not problem:
            # Where others take this machine's time, the limit's clock is ahead of the one that is read here.
            if status == -signal.SIGXCPU or status < 0 and used >= seconds:
                used = max(used, seconds)
                self.short_of, problem = "time", too_long(what, seconds, used, used)
            elif not ended_itself and status == -signal.SIGKILL:
                problem = f"{what} closed what it was to answer through."
            elif status in ENDED_FOR_MEMORY:
                self.short_of = "memory, as it seems,"
        return data, problem, status

    def _answer(self, exercise, chosen, folder: str, pipe: int, seconds: float) -> None:
        """Runs in the forked process: nothing in it goes back to the worker but one packed answer."""
        _alone_with(pipe)
        cut = self.probes[exercise.name]
        self.probes.clear()  # what the other exercises ask is none of this one's business
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.environ["TRAINLEAN_WORK"] = f"{folder}/work"
        confine(self.limits, self.isolated, seconds, self.user)
        # Probes ask whether this process was made for one answer; it was.
        multiprocessing.process._parent_process = multiprocessing.process._ParentProcess(  # type: ignore[attr-defined]  # private: nothing public sets it
            "worker", os.getppid(), None
        )

        import torch

        torch.set_num_threads(1)
        probed = load_probe(cut)
        if exercise.name in self.starts_processes or any(
            "run_on_devices" in statement.needs for statement in chosen
        ):
            serve_processes()
        _reply(pack(see_answer(probed, chosen, self.seed)))

    def _receive(
        self, what: str, pipe: int, child: int, seconds: float
    ) -> tuple[bytes | None, str]:
        """The answer, or None with a sentence, or None without one where the process just ended."""
        received, wanted = bytearray(), None
        looked = time.monotonic()
        until = looked + seconds * CLOCK_FACTOR
        while time.monotonic() < until:
            readable = select.select([pipe], [], [], LOOK_SECONDS)[0]
            if time.monotonic() - looked >= LOOK_SECONDS:
                # Twice: they may have become more while they were looked at, and share this one's memory.
                if all(self._memory_in_use(child, until) > self.limits.memory for _ in range(2)):
                    self.short_of = "memory"
                    return (
                        None,
                        f"{what} used more than {self.limits.memory >> 20:,} MiB of memory.",
                    )
                looked = time.monotonic()
            if not readable:
                continue
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return None, ""
            received += piece
            if wanted is None and len(received) >= 8:
                [wanted] = struct.unpack("Q", received[:8])
                if wanted > self.limits.answer:
                    return (
                        None,
                        f"{what} answered with more than {self.limits.answer >> 20:,} MiB.",
                    )
            if wanted is not None and len(received) >= 8 + wanted:
                return bytes(received[8 : 8 + wanted]), ""
        self.short_of = "time"
        computed = sum(psutil.Process(child).cpu_times()[:2])
        return None, too_long(what, seconds, computed, seconds * CLOCK_FACTOR)

    def _memory_in_use(self, child: int, until: float) -> int:
        """Bytes of memory of the submission's processes; of what several share each has its part.

        What they have from this one, which grows with the build of torch, is not theirs: all together, less this one alone.
        Where they leave this one no processor to look at all of them, the look ends when their time does.
        """
        ours = _memory(os.getpid()) - self.memory_alone  # first: it grows when one of them ends
        processes = self._others() if self.isolated else [child]
        return ours + sum(
            _memory(process) + _held_by_sockets(process)
            for process in processes
            if time.monotonic() < until
        )

    def _others(self) -> list[int]:
        """The processes that are neither this one nor the first: a submission's."""
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [process for process in found if process not in (1, os.getpid())]

    def _alone(self) -> bool:
        """Whether nothing of a submission is left, after a while; a worker that is not alone makes room for another."""
        until = time.monotonic() + LEFT_SECONDS
        while self._others():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _end(self, child: int) -> tuple[int, float]:
        """End every process of the submission; returns the exit status and the seconds of processor time of the first."""
        if self.isolated:  # alone in its names of processes (looked at when starting): everything but this and the first
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(
            ChildProcessError
        ):  # children that a submission has made this one's
            while os.waitpid(-1, ALL_CHILDREN | (0 if self.isolated else os.WNOHANG))[0]:
                pass
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _alone_with(pipe: int) -> None:
    """In a forked process: nothing stays open but the pipe, as ANSWER_PIPE."""
    forget_what_is_freed(False)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.dup2(pipe, ANSWER_PIPE)
    os.closerange(ANSWER_PIPE + 1, 65536)
    os.setpgid(0, 0)


def _reply(data: bytes) -> None:
    """Write the one answer of a forked process, and end it."""
    with os.fdopen(ANSWER_PIPE, "wb") as file:
        file.write(struct.pack("Q", len(data)) + data)
    os._exit(0)


def serve_processes() -> None:
    """Make this process's server of new processes (multiprocessing's forkserver) by a fork: it has then imported everything."""
    from multiprocessing import connection, forkserver

    server = forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]  # not in the stubs
        listener.bind(address)
        listener.listen()
        theirs, ours = os.pipe()
        process = os.fork()
        if not process:
            with contextlib.suppress(BaseException):
                os.close(ours)
                os.close(ANSWER_PIPE)
                forkserver.main(listener.fileno(), theirs, [])
            os._exit(0)
        os.close(theirs)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = (  # type: ignore[attr-defined]  # private: nothing public sets them
        address,
        ours,
        process,
    )


def _has_ended(child: int) -> bool:
    """Whether a process that no longer holds its pipe ends by itself, after a while; it stays for `wait`."""
    until = time.monotonic() + LEFT_SECONDS
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _own_settings() -> tuple:
    """This process's limits and how it is scheduled: any process of the same user may set them, and all forks have them."""
    import resource

    kinds = (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
    return (
        [resource.getrlimit(kind) for kind in kinds],
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getaffinity(0),
        psutil.Process().ionice(),
    )


def _memory(process: int, files: Iterable[str] = MEMORY) -> int:
    """Bytes of memory that a process has in use, its part of what it shares; all of that where the parts cannot be seen; 0 where it is gone."""
    for file in files:
        try:
            lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
        except OSError:
            continue
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(MEMORY[file]))
    return 0


def _held_by_sockets(process: int) -> int:
    """Bytes that the system may hold for a process's sockets: no file tells how many it does, and hundreds of full ones are gigabytes."""
    folder, sockets = f"/proc/{process}/fd", 0
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                sockets += os.readlink(f"{folder}/{name}").startswith("socket:")
    return sockets * SOCKET_BYTES


if __name__ == "__main__":
    main()
