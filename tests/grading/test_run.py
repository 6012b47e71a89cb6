"""What failed for want of processes, memory or time is probed again alone, and only then counts."""

import dataclasses
import errno
import json
import os
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.seeing import Seen, pack, see
from trainlean.exercises.verdicts import CRASHED, RIGHT
from trainlean.grading import classroom, cluster, run, sandbox
from trainlean.grading.formats.canvas import Canvas
from trainlean.grading.log import Log, last_run, log_path, read_log
from trainlean.grading.options import GradeOptions
from trainlean.grading.plan import Answers, Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import UNPROTECTED
from trainlean.grading.submissions import File, Submission
from trainlean.grading.workers import WorkerProcess
from trainlean.workspace import CourseError

EXERCISE = Exercise(
    "numbers",
    2,
    lambda answer, seed: {"the numbers": answer(seed)},
    lambda seed: {"the numbers": np.arange(5) + seed},
    mistakes=(),
    hints=("Which?", "These."),
    also_right=(),
    notebook="1_unit/1_a",
)
PLAN = Plan({"numbers": EXERCISE}, 7, UNPROTECTED)
PLAN_OF_NOTHING = Plan({}, 7, UNPROTECTED)
GOOD = ({"cells": [1]}, pack(see(EXERCISE, lambda seed: np.arange(5) + seed, 7)))
STARVED = {
    "processes": ({"cells": [1]}, pack(Seen({"raised": "RuntimeError: can't start new thread"}))),
    "memory": ({"outcome": CRASHED, "message": "Killed.", "short_of": "memory"}, b""),
    "time": ({"outcome": CRASHED, "message": "Too long.", "short_of": "time"}, b""),
    "its worker": ({"outcome": CRASHED, "message": "Ended.", "short_of": "its worker"}, b""),
}


def graded(*rounds, **more):
    """The class of ada and bob, whose answers are those of each round in turn; and who was collected in it."""
    submissions = [
        Submission(name, [File(f"{name}/a.ipynb", None, lambda: b"{}")]) for name in ("ada", "bob")
    ]
    told = []

    def collect(tasks):
        answers = rounds[len(told)]
        told.append([])
        for number, _, where in tasks:
            told[-1].append(where)
            name = where.split("/")[0]
            yield number, Answers("", ("numbers",), {"numbers": answers[name]}), 0.1

    found = {one.learner: one for one in grade_all(submissions, PLAN, collect=collect, **more)}
    return found, told


@pytest.mark.parametrize("what", STARVED)
def test_it_is_probed_again_and_the_gradebook_says_so(what):
    found, told = graded({"ada": STARVED[what], "bob": GOOD}, {"ada": GOOD})
    assert told == [["ada/a.ipynb", "bob/a.ipynb"], ["ada/a.ipynb"]]
    assert [found[name].verdicts[0].outcome for name in ("ada", "bob")] == [RIGHT, RIGHT]
    assert found["bob"].notes == () and f"for want of {what}" in found["ada"].notes[0]


def test_the_second_time_counts_as_it_is():
    found, told = graded({"ada": STARVED["time"], "bob": GOOD}, {"ada": STARVED["time"]})
    assert len(told) == 2 and found["ada"].verdicts[0].outcome == CRASHED


@pytest.mark.parametrize("what", ["its worker", "time"])
def test_with_one_worker_only_its_own_end_is_a_reason_to_probe_again(monkeypatch, what):
    """Nobody else is at work, so that time and memory were its own; its worker may have been killed from outside."""
    rounds = [STARVED[what], GOOD]

    @contextmanager
    def workers(plan, count):
        yield lambda tasks, **_: (
            (number, Answers("", ("numbers",), {"numbers": rounds.pop(0)}), 0.1)
            for number, *_ in tasks
        )

    monkeypatch.setattr(run, "local_workers", workers)
    ada = Submission("ada", [File("ada/a.ipynb", None, lambda: b"{}")])
    (found,) = grade_all([ada], PLAN, workers=1)
    again = what == "its worker"
    assert found.verdicts[0].outcome == (RIGHT if again else CRASHED)
    assert len(found.notes) == again


def test_it_is_probed_again_alone(monkeypatch):
    """With several workers, of which one is at it."""
    rounds, at_work = [STARVED["time"], GOOD], []

    @contextmanager
    def workers(plan, count):
        def collect(tasks, at_once=count):
            at_work.append(at_once)
            for number, *_ in tasks:
                yield number, Answers("", ("numbers",), {"numbers": rounds.pop(0)}), 0.1

        yield collect

    monkeypatch.setattr(run, "local_workers", workers)
    ada = Submission("ada", [File("ada/a.ipynb", None, lambda: b"{}")])
    (found,) = grade_all([ada], PLAN, workers=2)
    assert at_work == [2, 1] and found.verdicts[0].outcome == RIGHT


def test_a_learner_s_hundred_loops_take_nobody_s_day():
    """Each answer that never comes is waited for; after some the learner's others come last, and are not waited for for ever."""
    files = [File(f"eve/{number:02}.ipynb", None, lambda: b"{}") for number in range(60)]
    late = [File(f"zoe/{number:02}.ipynb", None, lambda: b"{}") for number in range(60)]
    told = []

    def collect(tasks):
        told.append([])
        for number, data, where in tasks:
            busy = where.startswith("zoe") and len(told) == 1  # others took what she needed
            answer = STARVED["time"] if where.startswith("eve") or busy else GOOD
            told[-1] += [where] if data else []
            yield (
                number,
                Answers("", ("numbers",), {"numbers": answer}) if data else Answers(where),
                0.1,
            )

    class_ = [Submission("bob", [File("bob/a.ipynb", None, lambda: b"{}")])]
    class_ = [Submission("eve", files), *class_, Submission("zoe", late)]
    found = list(grade_all(class_, PLAN, collect=collect))
    waited = [sum(where.startswith("eve") for where in one) for one in told]
    assert len(found) == 121 and max(waited) < 30
    problems = {one.where: one.problem for one in found}
    assert "was not graded" in problems["eve/59.ipynb"] and not problems["eve/00.ipynb"]
    assert all(one.verdicts[0].outcome == RIGHT for one in found if one.learner != "eve")


def test_a_notebook_s_answers_have_one_limit_together(monkeypatch):
    """A notebook may belong to every lesson, and what it answers is in memory until it is judged."""
    names = [f"number_{place}" for place in range(70)]
    exercises = {name: dataclasses.replace(EXERCISE, name=name) for name in names}
    worker = WorkerProcess(dataclasses.replace(PLAN, exercises=exercises), {"seed": 7})
    most = PLAN.limits.answer
    frames = [({"exercises": names}, b""), ({"exercise": names[0]}, bytes(1 << 10))]
    frames += [({"exercise": name, "cells": [3]}, bytes(most // 3)) for name in names[1:-1]]
    frames += [({"exercise": names[-1]}, bytes(1 << 10)), ({"end": True}, b"")]
    waiting = iter(frames)
    monkeypatch.setattr(worker, "start", lambda: None)
    monkeypatch.setattr(worker, "_send", lambda head, blob: None)
    monkeypatch.setattr(worker, "_receive", lambda until: next(waiting))
    answers = worker.collect(b"{}", "eve/a.ipynb")
    assert list(answers.given) == names
    assert sum(len(blob) for _, blob in answers.given.values()) <= most
    head, blob = answers.given[names[-2]]
    assert not blob and head["outcome"] == CRASHED and head["cells"] == [3]
    assert "more than 32 MiB together" in head["message"]
    assert all(answers.given[name][1] for name in (*names[:3], names[-1]))


def test_nothing_is_probed_again_without_need():
    wrong = ({"cells": [1]}, pack(Seen({"raised": "ValueError: no"})))
    found, told = graded({"ada": wrong, "bob": GOOD})
    assert len(told) == 1 and found["ada"].notes == ()


# ---------------------------------------------------------------- what a class of thousands needs


def a_class(folder, size=3):
    for number in range(size):
        place = folder / "class" / f"learner {number}"
        place.mkdir(parents=True)
        (place / "a.ipynb").write_bytes(b"{}")
    return GradeOptions(folder / "class", folder / "out" / "g.csv", seed=7, trust_submissions=True)


@pytest.fixture
def without_workers(monkeypatch):
    """Classes of one exercise, whose answers come at once."""

    def given(name):
        return Answers("", ("numbers",), {"numbers": GOOD if name else STARVED["time"]})

    @contextmanager
    def workers(plan, count):
        yield lambda tasks, **_: ((number, given(where), 0.1) for number, _, where in tasks)

    monkeypatch.setattr(run, "local_workers", workers)
    monkeypatch.setattr(classroom, "exercises_with", lambda overlay=None: {"numbers": EXERCISE})
    monkeypatch.setattr(classroom, "Plan", lambda *_, **__: PLAN)
    monkeypatch.setattr(Plan, "fingerprint", lambda self: "the same")


def test_a_disk_that_is_full_is_a_sentence_and_the_same_command_goes_on(
    tmp_path, without_workers, monkeypatch, capsys
):
    """The disk is full after the first notebook, in the middle of the second one's line. Nobody named a seed: the first run's goes on."""
    options, written = dataclasses.replace(a_class(tmp_path), seed=None), []

    def add(self, line):
        if line["event"] == "notebook":
            written.append(line)
        if len(written) == 2:
            self.file.write('{"event": "noteb')
            self.file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, line)

    real = Log.add
    monkeypatch.setattr(Log, "add", add)
    with pytest.raises(CourseError, match="No space left on device.* the same command goes on"):
        classroom.grade_class(options)
    monkeypatch.setattr(Log, "add", real)
    assert classroom.grade_class(options) == 0
    said = capsys.readouterr().out
    assert "1 notebooks are graded already" in said
    log = list(read_log(log_path(options.output)))
    [seed] = [line["seed"] for line in log if line["event"] == "run"]
    assert re.findall(r"--seed (\d+)", said) == [str(seed)] * 2
    lines = [line["where"] for line in log if "where" in line]
    assert sorted(lines) == [f"learner {number}/a.ipynb" for number in range(3)]
    assert options.output.read_text().count("\n") == 4


@pytest.mark.parametrize("lessons", [(), ("1_unit/1_a",)])
def test_what_counts_as_due_is_asked_where_nobody_named_it(
    tmp_path, without_workers, capsys, lessons
):
    assert classroom.grade_class(dataclasses.replace(a_class(tmp_path), lessons=lessons)) == 0
    asked = "1_unit/1_a (3 of 3). Is that right? If not, name what is due with --lesson."
    assert (asked in capsys.readouterr().out) == (not lessons)


def test_whom_a_form_does_not_list_is_told(tmp_path, without_workers, capsys):
    form = tmp_path / "canvas.csv"
    form.write_text(
        "Student,ID,SIS Login ID,Homework (1)\nlearner 0,7,x,\nlearner 2,8,y,\n", encoding="utf-8"
    )
    options = dataclasses.replace(a_class(tmp_path), formats=(Canvas(form),))
    assert classroom.grade_class(options) == 0
    assert f"No line of {form} was filled in for: learner 1.\n" in capsys.readouterr().out


def test_two_runs_into_one_gradebook_do_not_meet(tmp_path, without_workers, monkeypatch):
    """The second is refused with a sentence while the first is at work, and may go on once that has ended, in whatever way."""
    options = a_class(tmp_path)
    other = dataclasses.replace(options, seed=8)

    def meanwhile(*_):
        for second in (options, other):
            with pytest.raises(CourseError, match="Another run is writing to .*g.jsonl"):
                classroom.grade_class(second)
        raise CourseError("it fails")

    real = classroom.write_everything
    monkeypatch.setattr(classroom, "write_everything", meanwhile)
    with pytest.raises(CourseError, match="it fails"):
        classroom.grade_class(options)
    monkeypatch.setattr(classroom, "write_everything", real)
    assert classroom.grade_class(options) == 0
    starts = [line["seed"] for line in read_log(log_path(options.output)) if "seed" in line]
    assert starts == [7] and classroom.grade_class(other) == 0


@pytest.mark.parametrize("taken", ["out", "out/g_feedback"])
def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, without_workers, taken):
    """A file stands where a folder is to be made: before the run, and after it."""
    options = a_class(tmp_path)
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("a file")
    with pytest.raises(CourseError, match=f"{taken}.* could not be written"):
        classroom.grade_class(options)
    (tmp_path / taken).unlink()
    assert classroom.grade_class(options) == 0


@pytest.mark.parametrize(
    "line",
    [
        {"event": "run"},
        {"event": "notebook", "learner": 1},
        {"event": "notebook", "learner": "a", "where": "b", "sha256": "", "problem": "", "verdicts": [{"of": 1}]},
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_log_of_another_version_is_no_end(tmp_path, without_workers, line):
    options = a_class(tmp_path)
    run = {"event": "run", "seed": 7, "fingerprint": "another", "exercises": []}
    log_path(options.output).parent.mkdir()
    text = line if isinstance(line, str) else json.dumps(line)
    log_path(options.output).write_text(f"{json.dumps(run)}\n{text}\n")
    assert classroom.grade_class(options) == 0


def test_what_was_seen_is_in_the_log_and_not_in_memory(tmp_path, without_workers, monkeypatch):
    """Neither while a class is graded nor when its log is read again."""

    def rows(submissions, graded, *more):
        held.extend(one.seen for one in graded)
        return real(submissions, graded, *more)

    options, held, real = a_class(tmp_path), [], classroom.rows_of
    monkeypatch.setattr(classroom, "rows_of", rows)
    assert classroom.grade_class(options) == 0 and held == [{}] * 3
    lines = list(read_log(log_path(options.output)))
    assert all(line["seen"] for line in lines if line["event"] == "notebook")
    assert [one.seen for one in last_run(lines)[1]] == [{}] * 3


class OneEngine:
    """A client of a cluster of one engine, where what it is asked runs here. After some answers it is lost: the engine, or the controller."""

    def __init__(self, answers=99, lost="engine"):
        self.answers, self.lost, self.gone = answers, lost, threading.Event()

    @property
    def ids(self):
        return () if self.lost == "engine" and not self.answers else (0,)

    def __getitem__(self, engine):
        return self

    def apply_async(self, function, *arguments):
        self.asked = function, arguments
        return self

    def ready(self):
        return self.answers > 0

    def get(self, timeout):
        self.answers -= 1
        try:
            return self.asked[0](*self.asked[1])
        except CourseError as error:
            error.ename, error.evalue = "CourseError", str(error)  # as a RemoteError has them
            raise

    def queue_status(self):
        if not self.ready():
            self.gone.wait(30)

    def close(self):
        self.gone.set()


@pytest.mark.parametrize(
    "lost, says", [("engine", "No engine of"), ("controller", "The controller of")]
)
def test_a_cluster_that_is_lost_is_a_sentence_and_the_same_command_goes_on(
    tmp_path, without_workers, monkeypatch, capsys, lost, says
):
    """To the gradebook of a run that lost nothing. A controller's engines are still listed, and what they were asked never comes back."""
    ada, eve = Answers("", ("numbers",), {"numbers": GOOD}), Answers("", ("numbers",), {})
    monkeypatch.setattr(
        cluster,
        "collect_on_engine",
        lambda settings, trust, data, where: (eve if "1" in where else ada, 0.1),
    )
    monkeypatch.setattr(Plan, "settings", lambda self: {})
    monkeypatch.setattr(cluster, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    clients = [OneEngine(), OneEngine(2, lost), OneEngine(1, lost), OneEngine()]
    monkeypatch.setattr(cluster, "_connect", lambda *_: (clients.pop(0), None))
    options = dataclasses.replace(a_class(tmp_path, 5), cluster="default")
    whole = dataclasses.replace(options, output=tmp_path / "whole" / "g.csv")
    assert classroom.grade_class(whole) == 0
    for _ in range(2):
        with pytest.raises(CourseError, match=f"{says} .* same command to go on"):
            classroom.grade_class(options)
    assert classroom.grade_class(options) == 0
    assert "with the run that was interrupted: 3 notebooks" in capsys.readouterr().out
    assert options.output.read_text() == whole.output.read_text()


@pytest.mark.parametrize(
    "name, answers, done",
    [
        (f"{cluster.STARTED_HERE}-{2**22 + 7}", True, "stopped"),  # no process has such a number
        (f"{cluster.STARTED_HERE}-{2**22 + 7}", False, "forgotten"),
        (f"{cluster.STARTED_HERE}-{os.getpid()}", True, None),
        (f"trainlean-another machine-{2**22 + 7}", True, None),
        (f"{cluster.STARTED_HERE}-mine", True, None),
        ("", True, None),  # the user's own
    ],
    ids=["killed", "killed and gone", "at work", "another machine's", "named so", "the user's"],
)
def test_clusters_that_a_killed_run_has_left_are_stopped(name, answers, done):
    """Those of runs that live, of other machines and of others stay."""
    ended = []

    class Left:
        cluster_id = name

        def connect_client_sync(self, timeout):
            if not answers:
                raise TimeoutError
            return self

        def close(self):
            pass

        def stop_cluster_sync(self):
            ended.append("stopped")

        def remove_cluster_file(self):
            ended.append("forgotten")

    class Manager:
        def load_clusters(self, profile):
            return {name: Left()}

    cluster._stop_left(Manager(), "default")
    assert ended == [done] * bool(done)


def test_an_engine_without_isolation_refuses(monkeypatch):
    """Unless the submissions are trusted it says so and runs nothing."""
    monkeypatch.setattr(sandbox, "try_isolation", lambda kind: "it does not work here")
    monkeypatch.setattr(cluster, "collect_timed", lambda *_: (Answers("it ran"), 0.1))
    tasks = [(0, b"{}", "x")]
    with pytest.raises(CourseError, match="^Engine 0: Nothing here keeps"):
        list(cluster.on_engines(OneEngine(), PLAN_OF_NOTHING, iter(tasks), False))
    monkeypatch.setattr(cluster, "_workers_here", {})
    assert list(cluster.on_engines(OneEngine(), PLAN_OF_NOTHING, iter(tasks), True)) == [
        (0, Answers("it ran"), 0.1)
    ]
