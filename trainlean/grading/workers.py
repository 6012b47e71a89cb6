"""Workers, seen from outside: told to collect a notebook's answers, watched, ended and started again."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from trainlean.exercises.checking import no_answer, seconds_for
from trainlean.exercises.verdicts import CRASHED
from trainlean.grading.cgroups import entering, memory_group, remove
from trainlean.grading.judging import TEXT_LIMIT, WORKER
from trainlean.grading.plan import Answers, Plan
from trainlean.grading.sandbox import NONE, environment, run_here, users_of_a_worker
from trainlean.grading.worker import CLOCK_FACTOR
from trainlean.workspace import CourseError

START_SECONDS = (
    180  # for a worker to start, and again to import what answers use, on a busy machine
)
READ_SECONDS = 60  # for a worker to read a notebook
OWN_MEMORY = 1 << 30  # bytes that a worker may use beside what it runs
LINE_LIMIT = 1 << 20  # bytes of a frame's first line


class WorkerEnded(Exception):
    """A worker that ended, or was silent for too long."""


def _process_names() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class WorkerProcess:
    """An isolated worker process; started when first needed, and again whenever a submission has brought it down."""

    def __init__(self, plan: Plan, settings: dict | None = None):
        self.plan = plan
        self.settings = (settings or plan.settings()) | {
            "isolated": plan.isolation.kind != NONE,
            "process_names": _process_names(),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.group: Path | None = None
        self.buffer, self.starts, self.over = bytearray(), 0, False

    def collect(self, data: bytes, where: str) -> Answers:
        """The answers to every exercise that a notebook belongs to; a worker that ends blames the exercise that it was probing."""
        return self._collect(data, where)

    def lessons_in(self, data: bytes, where: str) -> tuple[str, tuple[str, ...]]:
        """Why a notebook cannot be read, and the lessons that it belongs to; nothing of it is run."""
        read = self._collect(data, where, only_names=True)
        lessons = dict.fromkeys(self.plan.exercises[name].notebook for name in read.exercises)
        return read.problem, tuple(lessons) or tuple(f"{one}, not due" for one in read.not_due)

    def _not_due(self, head: dict) -> tuple[str, ...]:
        known, said = set(self.plan.elsewhere.values()), head.get("not_due")
        return tuple(one for one in known if one in said) if isinstance(said, list) else ()

    def _collect(self, data: bytes, where: str, only_names: bool = False) -> Answers:
        given: dict[str, tuple[dict, bytes]] = {}
        exercises: tuple[str, ...] = ()
        for _ in range(len(self.plan.exercises) + 1):
            probing = None
            try:
                self.start()
                self._send({"where": where, "done": list(given), "only_names": only_names}, data)
                seconds: float = READ_SECONDS
                while True:
                    head, blob = self._receive(time.monotonic() + seconds)
                    if head.get("end"):
                        problem = str(head.get("problem", ""))[:TEXT_LIMIT]
                        short_of = str(head.get("short_of", ""))
                        return Answers(problem, exercises, given, short_of, self._not_due(head))
                    if "exercises" in head:
                        exercises = tuple(
                            name for name in head["exercises"] if name in self.plan.exercises
                        )
                        seconds = READ_SECONDS
                    elif "importing" in head:
                        seconds = START_SECONDS
                    elif "probing" in head and head["probing"] in exercises:
                        probing = head["probing"]
                        seconds = (
                            seconds_for(self.plan.exercises[probing])
                            * self.plan.time_factor
                            * (CLOCK_FACTOR + 1)
                            + 10
                        )
                    elif head.get("exercise") in exercises:
                        given[head["exercise"]] = self._bounded(head, blob, given)
                        probing, seconds = None, READ_SECONDS
            except WorkerEnded as error:
                self.stop()
                if not exercises:
                    return Answers(
                        f"{where} could not be read: the process that read it ended ({error}).",
                        short_of=WORKER,
                    )
                waiting = [name for name in exercises if name not in given]
                blamed = probing or next(iter(waiting), None)
                if blamed is None:
                    return Answers("", exercises, given)
                given[blamed] = (
                    {
                        "exercise": blamed,
                        "cells": [],
                        "outcome": CRASHED,
                        "message": no_answer(blamed, error),
                        "short_of": WORKER,
                    },
                    b"",
                )
        return Answers("", exercises, given)

    def _bounded(
        self, head: dict, blob: bytes, given: dict[str, tuple[dict, bytes]]
    ) -> tuple[dict, bytes]:
        """An answer, or why it is left out: all of a notebook's are kept until it is judged, and a notebook may have all exercises."""
        most = self.plan.limits.answer
        if sum(len(other) for _, other in given.values()) + len(blob) <= most:
            return head, blob
        message = f"{head['exercise']} and the answers before it came to more than {most >> 20:,} MiB together."
        return head | {"outcome": CRASHED, "message": message}, b""

    def start(self) -> None:
        """Bring the process up where it is not. CourseError where it cannot start, WorkerEnded where the run is over."""
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        if self.over:
            raise WorkerEnded("the run is over")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `stop`
        command = self.plan.isolation.command(
            run_here("from trainlean.grading.worker import main; main()"), self.plan.limits
        )
        if self.plan.isolation.kind != NONE:
            limits = self.plan.limits
            self.group = memory_group(limits.memory + 2 * limits.disk + OWN_MEMORY)
            command = entering(self.group, command)
        own = environment()
        if self.plan.isolation.kind == NONE:
            theirs = {name: kept for name, kept in os.environ.items() if name[:6] != "PYTHON"}
            own = {
                **theirs,
                **own,
                "HOME": os.environ.get("HOME", "/tmp"),
                "TMPDIR": tempfile.gettempdir(),
            }
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=own,
            start_new_session=True,
        )
        self.starts += 1
        os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]  # it is a pipe
        self.buffer = bytearray()
        try:
            own = self.settings | {"users": users_of_a_worker()}
            self._write(json.dumps(own).encode() + b"\n")
            self._receive(time.monotonic() + START_SECONDS)
        except WorkerEnded as error:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()[-1:] or [
                str(error)
            ]
            self.stop()
            raise CourseError(f"A worker did not start: {said[0]}") from None

    def _send(self, head: dict, blob: bytes) -> None:
        self._write(json.dumps(head | {"bytes": len(blob)}).encode() + b"\n" + blob)

    def _write(self, data: bytes) -> None:
        until, view = time.monotonic() + READ_SECONDS, memoryview(data)
        pipe = self.process.stdin.fileno()  # type: ignore[union-attr]  # `start` came before
        while view:
            if time.monotonic() > until:
                raise WorkerEnded("it took nothing in")
            if select.select([], [pipe], [], 1)[1]:
                try:
                    view = view[os.write(pipe, view[: 1 << 16]) :]
                except OSError:
                    raise WorkerEnded(self._status()) from None

    def _receive(self, until: float) -> tuple[dict, bytes]:
        while (end := self.buffer.find(b"\n")) < 0:
            if len(self.buffer) > LINE_LIMIT:
                raise WorkerEnded("it wrote what nobody asked for")
            self._more(until)
        try:
            head = json.loads(self.buffer[:end])
            size = int(head["bytes"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise WorkerEnded("it wrote what nobody asked for") from None
        if not 0 <= size <= self.plan.limits.answer + LINE_LIMIT:
            raise WorkerEnded("it wrote too much")
        while len(self.buffer) < end + 1 + size:
            self._more(until)
        blob = bytes(self.buffer[end + 1 : end + 1 + size])
        del self.buffer[: end + 1 + size]
        return head, blob

    def _more(self, until: float) -> None:
        pipe = self.process.stdout.fileno()  # type: ignore[union-attr]  # `start` came before
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise WorkerEnded("it was silent for too long")
        piece = os.read(pipe, 1 << 18)
        if not piece:
            raise WorkerEnded(self._status())
        self.buffer += piece

    def _status(self) -> str:
        try:
            return str(self.process.wait(5))  # type: ignore[union-attr]  # `start` came before
        except subprocess.TimeoutExpired:
            return "none"

    def close(self) -> None:
        """End the worker for good."""
        self.over = True
        self.stop()

    def stop(self) -> None:
        """End the worker and everything in it."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(
                self.process.pid, signal.SIGKILL
            )  # of its own session; what it isolates ends with it
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # all three are there with the process
        self.process = None
        remove(self.group)
        self.group = None


def collect_timed(worker: WorkerProcess, data: bytes | None, where: str) -> tuple[Answers, float]:
    """A notebook's answers, and how many seconds they took; without data `where` is the sentence why there is none."""
    start = time.monotonic()
    answers = Answers(where) if data is None else worker.collect(data, where)
    return answers, time.monotonic() - start


@contextlib.contextmanager
def local_workers(plan: Plan, count: int) -> Iterator[Callable]:
    """Workers of this machine, each fed by a thread: a function that collects with all of them, or with `at_once` of them.

    Workers and threads live as long as the context: a start costs seconds, and a worker ends with the thread that started it.
    """
    settings = plan.settings()
    workers = [WorkerProcess(plan, settings) for _ in range(count)]
    inboxes: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in workers]
    finished: queue.SimpleQueue = queue.SimpleQueue()

    def serve(place):
        while (task := inboxes[place].get()) is not None:
            number, data, where = task
            try:
                finished.put((place, (number, *collect_timed(workers[place], data, where))))
            except BaseException as error:
                finished.put((place, error))

    def end():
        for worker in workers:
            worker.close()

    def collect(
        tasks: Iterator[tuple[int, bytes, str]], at_once: int = count
    ) -> Iterator[tuple[int, Answers, float]]:
        idle, tasks, more = list(range(at_once)), iter(tasks), True
        try:
            while True:
                while more and idle:
                    task = next(tasks, None)
                    if task is None:
                        more = False
                    else:
                        inboxes[idle.pop(0)].put(task)
                if len(idle) == at_once:
                    return
                place, result = finished.get()
                idle.append(place)
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            if len(idle) < at_once:  # given up: what is at work is ended
                end()

    for place in range(count):
        threading.Thread(target=serve, args=(place,), daemon=True).start()
    try:
        yield collect
    finally:
        end()
        for inbox in inboxes:
            inbox.put(None)
