"""Grade a class: questions put to every submission in isolation, verdicts given here, nothing lost on the way.

The run log, JSON lines beside the gradebook, gets a line for each notebook as soon as it is judged. It is what a run that was
interrupted goes on from, and what the gradebook is written from; the same seed gives the same lines again.
"""

import contextlib
import hashlib
import io
import json
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from trainlean.exercises.checking import judge_seen, no_answer, seconds_for
from trainlean.exercises.exercise import CRASHED, NOT_ATTEMPTED, Exercise, Observation, Seen, Verdict, cannot_check, see_oracle, unpack
from trainlean.exercises.probes import cut_probe, exercise_without_probe, file_of
from trainlean.grading.sandbox import NONE, Isolation, Limits, environment, find_isolation, run_here
from trainlean.grading.submissions import Submission, Unread
from trainlean.grading.worker import IDLE
from trainlean.workspace import COURSE, CourseError

START_SECONDS = 180  # for a worker to import everything, on a busy machine
READ_SECONDS = 60  # for a worker to read a notebook
LINE_LIMIT = 1 << 20  # bytes of a frame's first line
TEXT_LIMIT = 4000  # letters of a message, traceback or print that are kept
NUMBERS_KEPT = 64  # of an array, in the run log
NAMES_KEPT = 5000  # of an observation


class WorkerEnded(Exception):
    """A worker that ended, or was silent for too long."""


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Plan:
    """What is the same for all submissions of a run, and goes to every worker."""

    exercises: dict[str, Exercise]
    seed: int
    isolation: Isolation
    limits: Limits = Limits()
    patience: float = 1.0  # times the usual seconds per exercise

    def settings(self) -> dict:
        """What a worker reads first; probes only, no oracle and no mistake."""
        return {
            "probes": {name: cut_probe(exercise) for name, exercise in self.exercises.items()},
            "seed": self.seed,
            "limits": asdict(self.limits),
            "patience": self.patience,
        }

    def fingerprint(self) -> str:
        """Changes with the exercises' tests, so that a run is not gone on with under others."""
        files = {file_of(exercise) for exercise in self.exercises.values()} | {path for path in (COURSE / "exercises_tests").glob("*.py")}
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:16]


def _process_names() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


@dataclass(frozen=True)
class Answers:
    """What a worker brought of one notebook: a problem, or for each exercise what was seen (packed) or an outcome without it."""

    problem: str = ""
    exercises: tuple[str, ...] = ()
    given: dict[str, tuple[dict, bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class Graded:
    """One notebook, judged: as it stands in the run log."""

    learner: str
    where: str
    sha256: str
    problem: str
    verdicts: tuple[Verdict, ...]
    submitted: str | None = None
    seconds: float = 0.0
    seen: dict = field(default_factory=dict)

    @property
    def lessons(self) -> list[str]:
        """The lessons whose exercises the notebook belongs to."""
        return list(dict.fromkeys(verdict.notebook for verdict in self.verdicts))


# ---------------------------------------------------------------- a worker, seen from outside


class WorkerProcess:
    """An isolated worker process; started when first asked, and again whenever a submission has brought it down."""

    def __init__(self, plan: Plan, settings: dict | None = None):
        self.plan = plan
        self.settings = (settings or plan.settings()) | {"isolated": plan.isolation.kind != NONE, "process_names": _process_names()}
        self.process, self.errors, self.buffer, self.memory, self.starts, self.over = None, None, bytearray(), 0, 0, False

    def grade(self, data: bytes, where: str) -> Answers:
        """Put the questions of every exercise that a notebook belongs to; a worker that ends blames the exercise that it was asking."""
        given: dict[str, tuple[dict, bytes]] = {}
        exercises: tuple[str, ...] = ()
        for _ in range(len(self.plan.exercises) + 1):
            asking = None
            try:
                self._start()
                self._send({"where": where, "done": list(given)}, data)
                seconds = READ_SECONDS
                while True:
                    head, blob = self._receive(time.monotonic() + seconds)
                    if head.get("end"):
                        return Answers(str(head.get("problem", ""))[:TEXT_LIMIT], exercises, given)
                    if "exercises" in head:
                        exercises = tuple(name for name in head["exercises"] if name in self.plan.exercises)
                        seconds = READ_SECONDS
                    elif "asking" in head and head["asking"] in exercises:
                        asking = head["asking"]
                        seconds = seconds_for(self.plan.exercises[asking]) * self.plan.patience * (IDLE + 1) + 10
                    elif head.get("exercise") in exercises:
                        given[head["exercise"]] = (head, blob)
                        asking, seconds = None, READ_SECONDS
            except WorkerEnded as error:
                self.stop()
                if not exercises:
                    return Answers(f"{where} could not be read: the process that read it ended ({error}).")
                waiting = [name for name in exercises if name not in given]
                blamed = asking or next(iter(waiting), None)
                if blamed is None:
                    return Answers("", exercises, given)
                given[blamed] = ({"exercise": blamed, "cells": [], "outcome": CRASHED, "message": no_answer(blamed, error)}, b"")
        return Answers("", exercises, given)

    def _start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        if self.over:
            raise WorkerEnded("the run is over")
        self.errors = tempfile.TemporaryFile()
        command = self.plan.isolation.command(run_here("from trainlean.grading.worker import main; main()"), self.plan.limits)
        own = environment() if self.plan.isolation.kind != NONE else {**os.environ, **environment(), "HOME": os.environ.get("HOME", "/tmp"), "TMPDIR": tempfile.gettempdir()}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=own, start_new_session=True)
        self.starts += 1
        os.set_blocking(self.process.stdin.fileno(), False)
        self.buffer = bytearray()
        try:
            self._write(json.dumps(self.settings).encode() + b"\n")
            head, _ = self._receive(time.monotonic() + START_SECONDS)
        except WorkerEnded as error:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            self.stop()
            raise CourseError(f"A worker did not start: {said[0]}") from None
        self.memory = int(head.get("memory", 0))

    def _send(self, head: dict, blob: bytes) -> None:
        self._write(json.dumps(head | {"bytes": len(blob)}).encode() + b"\n" + blob)

    def _write(self, data: bytes) -> None:
        until, view = time.monotonic() + READ_SECONDS, memoryview(data)
        pipe = self.process.stdin.fileno()
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
        pipe = self.process.stdout.fileno()
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise WorkerEnded("it was silent for too long")
        piece = os.read(pipe, 1 << 18)
        if not piece:
            raise WorkerEnded(self._status())
        self.buffer += piece

    def _status(self) -> str:
        try:
            return str(self.process.wait(5))
        except subprocess.TimeoutExpired:
            return "none"

    def stop(self) -> None:
        """End the worker and everything in it."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # of its own session; what it isolates ends with it
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process = None


# ---------------------------------------------------------------- judging


def judge_answers(answers: Answers, plan: Plan, memory: dict) -> tuple[list[Verdict], dict[str, Observation]]:
    """The verdicts, and what was seen. Every judgement of a run happens in one thread: probes draw from torch's one random state."""
    verdicts, observations = [], {}
    for name in answers.exercises:
        exercise = plan.exercises[name]
        head, blob = answers.given.get(name, ({}, b""))
        if blob:
            _ask_oracle(exercise, plan.seed, memory)
        cells = [cell for cell in head.get("cells", []) if isinstance(cell, int)][:20] if isinstance(head.get("cells"), list) else []
        try:
            if blob:
                with zipfile.ZipFile(io.BytesIO(blob)) as archive:
                    if sum(member.file_size for member in archive.infolist()) > plan.limits.answer:
                        raise ValueError("an archive that grows")
                answer = trusted_form(unpack(blob), plan.limits)
                observations[name] = answer.observation
            else:
                outcome = NOT_ATTEMPTED if head.get("outcome") == NOT_ATTEMPTED else CRASHED
                answer = Verdict(name, exercise.notebook, outcome, 0, exercise.points, clean_text(head.get("message", "")), hint=exercise.hints[0])
            judged = cannot_check(exercise) or judge_seen(exercise, answer, cells, plan.seed, memory)
        except Exception as error:  # whatever a forged answer leads to, it is no answer
            message = f"{name} answered with something that is no observation ({clean_text(type(error).__name__)})."
            judged = Verdict(name, exercise.notebook, CRASHED, 0, exercise.points, message, hint=exercise.hints[0])
        verdicts.append(judged)
    return verdicts, observations


def _ask_oracle(exercise: Exercise, seed: int, memory: dict) -> None:
    """Have the oracle's observation in memory; where it fails (twice: a busy machine is forgiven), no learner is to blame."""
    key = (exercise.name, seed, "oracle")  # as `verdict` keeps it
    for attempt in (1, 2):
        try:
            if key not in memory:
                memory[key] = see_oracle(exercise, seed)
            return
        except Exception as error:
            if attempt == 2:
                raise CourseError(f"The oracle of {exercise.name} failed on this machine ({type(error).__name__}: {error}); the same command goes on from here.") from None


def trusted_form(seen: Seen, limits: Limits) -> Seen:
    """The same with nothing in it but numbers, short text and arrays of numbers; ValueError when it holds anything else."""
    if len(seen.observation) > NAMES_KEPT:
        raise ValueError("more than any probe names")
    plain = {}
    for name, value in seen.observation.items():
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf" or value.nbytes > limits.answer:
                raise ValueError("an array of something else")
        elif isinstance(value, str):
            value = clean_text(value)
        elif not isinstance(value, bool | int | float | None):
            raise ValueError("neither number nor text")
        plain[clean_text(name)] = value
    return Seen(plain, bool(seen.attempted), clean_text(seen.traceback), clean_text(seen.printed))


def clean_text(text: object) -> str:
    """Text as it may be shown: no more than a page, nothing that steers a terminal."""
    kept = str(text)[-TEXT_LIMIT:] if len(str(text)) > TEXT_LIMIT else str(text)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in kept)


def noted(observation: Observation) -> dict:
    """An observation for the run log: long arrays by their shape and first numbers."""

    def one(value):
        if not isinstance(value, np.ndarray):
            return value
        first = value.ravel()[:NUMBERS_KEPT].tolist()
        return first if value.ndim == 1 and value.size <= NUMBERS_KEPT else {"shape": list(value.shape), "first": first}

    return {name: one(value) for name, value in observation.items()}


# ---------------------------------------------------------------- the run log


def log_path(output: Path) -> Path:
    """The run log that belongs to a gradebook."""
    return Path(output).with_suffix(".jsonl")


def read_log(path: Path) -> list[dict]:
    """The lines of a run log, oldest first; a line that was cut off is passed over."""
    lines = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def last_run(lines: list[dict]) -> tuple[dict | None, list[Graded], bool]:
    """The first line of the last run, what it has graded, and whether it came to its end."""
    starts = [number for number, line in enumerate(lines) if line.get("event") == "run"]
    if not starts:
        return None, [], True
    run = lines[starts[-1] :]
    graded = [from_line(line) for line in run if line.get("event") == "notebook"]
    return run[0], graded, any(line.get("event") == "end" for line in run)


def to_line(graded: Graded) -> dict:
    return {"event": "notebook"} | asdict(graded)


def from_line(line: dict) -> Graded:
    fields = {name: value for name, value in line.items() if name in Graded.__dataclass_fields__}
    return Graded(**fields | {"verdicts": tuple(Verdict(**verdict) for verdict in line["verdicts"])})


class Log:
    """Adds lines to a run log; each is on disk before the next submission is judged."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self.file = open(path, "a", encoding="utf-8")
        if broken:
            self.file.write("\n")  # an interrupted write left half a line

    def add(self, line: dict) -> None:
        self.file.write(json.dumps(line, default=str) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


# ---------------------------------------------------------------- the run


def grade_all(submissions: Iterable[Submission], plan: Plan, *, workers: int = 1, done: Iterable[Graded] = (), asked: Callable | None = None) -> Iterator[Graded]:
    """Every notebook of every submission, judged, in the order in which they come; what `done` holds already is passed over.

    `asked(tasks)` may put the questions elsewhere: it takes (number, bytes, where) and yields (number, Answers, seconds).
    """
    known = {(graded.learner, graded.where): graded.sha256 for graded in done}
    tasks, read = [], {}
    for submission in submissions:
        for file in submission.notebooks:
            tasks.append((submission, file))
    memory: dict = {}

    def to_ask() -> Iterator[tuple[int, bytes, str]]:
        for number, (submission, file) in enumerate(tasks):
            try:
                data = file.read()
            except Unread as error:
                problem = f"{file.where} {error}"
                digest = hashlib.sha256(problem.encode()).hexdigest()
                data = None
            else:
                digest = hashlib.sha256(data).hexdigest()
            if known.get((submission.learner, file.where)) == digest:
                continue
            read[number] = digest
            yield number, data, problem if data is None else file.where

    ask = asked or with_workers(plan, workers)
    for number, answers, seconds in ask(to_ask()):
        submission, file = tasks[number]
        verdicts, observations = judge_answers(answers, plan, memory)
        seen = {name: noted(observation) for name, observation in observations.items()}
        when = file.submitted.isoformat(timespec="seconds") if file.submitted else None
        yield Graded(submission.learner, file.where, read[number], clean_text(answers.problem), tuple(verdicts), when, round(seconds, 3), seen)


def ask_one(worker: WorkerProcess, data: bytes | None, where: str) -> tuple[Answers, float]:
    """A notebook's answers, and how many seconds they took; without data `where` is the sentence why there is none."""
    start = time.monotonic()
    answers = Answers(where) if data is None else worker.grade(data, where)
    return answers, time.monotonic() - start


def with_workers(plan: Plan, count: int) -> Callable:
    """Workers of this machine, each fed by a thread."""

    def ask(tasks: Iterator[tuple[int, bytes, str]]) -> Iterator[tuple[int, Answers, float]]:
        waiting: queue.Queue = queue.Queue(maxsize=count)
        finished: queue.Queue = queue.Queue()
        settings = plan.settings()
        running = [WorkerProcess(plan, settings) for _ in range(count)]

        def serve(worker):
            while (task := waiting.get()) is not None:
                number, data, where = task
                try:
                    finished.put((number, *ask_one(worker, data, where)))
                except BaseException as error:
                    finished.put(error)
                    return

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in running]
        for thread in threads:
            thread.start()
        open_tasks = 0
        try:
            tasks = iter(tasks)
            more = True
            while more or open_tasks:
                while more and not waiting.full():
                    task = next(tasks, None)
                    if task is None:
                        more = False
                        break
                    waiting.put(task)
                    open_tasks += 1
                if not open_tasks:
                    break
                result = finished.get()
                if isinstance(result, BaseException):
                    raise result
                open_tasks -= 1
                yield result
        finally:
            for worker in running:
                worker.over = True
                worker.stop()
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for _ in threads:
                waiting.put(None)

    return ask


# ---------------------------------------------------------------- many machines

TASK_SECONDS = 600  # for one notebook on an engine, its worker's start included
_workers_here: dict[str, WorkerProcess] = {}


def with_cluster(plan: Plan, profile: str, count: int, trust: bool = False) -> Callable:
    """The engines of an ipyparallel profile: those that run, or `count` started from it. Each has a worker in isolation of its own."""

    def ask(tasks: Iterator[tuple[int, bytes, str]]) -> Iterator[tuple[int, Answers, float]]:
        import ipyparallel

        client, started = _connect(ipyparallel, profile, count)
        try:
            yield from on_engines(client, plan, tasks, trust)
        finally:
            client.close()
            if started is not None:
                started.stop_cluster_sync()

    return ask


def _connect(ipyparallel, profile: str, count: int):
    try:
        client = ipyparallel.Client(profile=profile, timeout=10)
        client.wait_for_engines(1, timeout=30, interactive=False)
        return client, None
    except Exception:
        pass
    cluster = ipyparallel.Cluster(profile=profile, n=count, log_level=100)
    try:
        return cluster.start_and_connect_sync(n=count), cluster
    except Exception as error:
        with contextlib.suppress(Exception):
            cluster.stop_cluster_sync()
        raise CourseError(f"The cluster of the profile {profile} did not come up ({type(error).__name__}); try `ipcluster start --profile={profile}` by itself.") from None


def on_engines(client, plan: Plan, tasks: Iterator[tuple[int, bytes, str]], trust: bool) -> Iterator[tuple[int, Answers, float]]:
    """One notebook at a time to each engine; what an engine was at when it ended is given to another."""
    settings = json.dumps(plan.settings())
    busy: dict[int, tuple] = {}  # engine: (task, result, when it was sent)
    again: list[tuple] = []
    lost: set[int] = set()
    tasks, more = iter(tasks), True
    while more or again or busy:
        for engine in sorted(set(client.ids) - lost - set(busy)):
            task = again.pop() if again else next(tasks, None) if more else None
            if task is None:
                more = False
                break
            busy[engine] = (task, client[engine].apply_async(ask_here, settings, trust, task[1], task[2]), time.monotonic())
        if busy and not set(busy) - lost or not busy and (again or more) and not set(client.ids) - lost:
            raise CourseError("No engine of the cluster is left; start it again, then run the same command to go on.")
        for engine, (task, result, sent) in list(busy.items()):
            gone = engine not in client.ids or time.monotonic() - sent > TASK_SECONDS
            if not gone and not result.ready():
                continue
            del busy[engine]
            try:
                if gone and not result.ready():
                    raise WorkerEnded("the engine is gone")
                problem, exercises, given, seconds = result.get(timeout=1)
            except Exception as error:
                if getattr(error, "ename", "") == "CourseError":
                    raise CourseError(f"Engine {engine}: {error.evalue}") from None
                lost.add(engine)
                again.append(task)
                continue
            yield task[0], Answers(problem, tuple(exercises), given), seconds
        time.sleep(0.01)


def ask_here(settings: str, trust: bool, data: bytes | None, where: str) -> tuple[str, tuple, dict, float]:
    """Runs on an engine: a notebook's answers from this engine's own worker."""
    if settings not in _workers_here:
        content = json.loads(settings)
        exercises = {name: exercise_without_probe(cut) for name, cut in content["probes"].items()}
        plan = Plan(exercises, content["seed"], find_isolation(trust), Limits(**content["limits"]), content["patience"])
        for worker in _workers_here.values():
            worker.stop()
        _workers_here.clear()
        _workers_here[settings] = WorkerProcess(plan, content)
    answers, seconds = ask_one(_workers_here[settings], data, where)
    return answers.problem, answers.exercises, answers.given, seconds
