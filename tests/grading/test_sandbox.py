"""What a hostile submission can do: nothing. Every kind of isolation that works here is attacked; the attacks are in hostile.py."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import hostile
import nbformat
import pytest

from trainlean.costs.runs import MiB
from trainlean.exercises.verdicts import CRASHED, RIGHT
from trainlean.grading import sandbox
from trainlean.grading.overlay import exercises_with
from trainlean.grading.plan import Graded, Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import (
    BUBBLEWRAP,
    NAMESPACES,
    Isolation,
    Limits,
    find_isolation,
    try_isolation,
)
from trainlean.grading.submissions import find_submissions
from trainlean.notebooks.notebook import read_notebook
from trainlean.workspace import COURSE, CourseError

SEED = 7
ATTACKED, HONEST = "train_accumulated", "train_accumulated_to_the_end"
LIMITS = Limits(
    memory=200 * MiB,
    address_space=4096 * MiB,
    file_size=16 * MiB,
    disk=32 * MiB,
    answer=8 * MiB,
    processes=24,
)
COMM = f"tl-{os.getpid()}"  # what the daemon of an attack calls itself
FORGED_NAME = f"forged-{os.getpid()}.txt"


@dataclass
class Run:
    """One class, graded: the rows by learner, and what was seen of it outside."""

    places: Path
    attacks: list[str]
    rows: dict[str, Graded] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    seconds: float = 0.0


# A right answer that uses half of the processes that a submission may have, for as long as its neighbour uses nearly all.
WITH_THREADS = (
    "started = []\n"
    + hostile.SIGNATURE
    + """
    import threading, time
    while len(started) < 10:
        started.append(True)
        threads = [threading.Thread(target=time.sleep, args=(0.1,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""
    + hostile.RIGHTLY
)


def isolation_or_skip(kind: str) -> Isolation:
    """That kind of isolation; a skip where it cannot be had, and a failure under CI where it must be."""
    found = try_isolation(kind)
    if isinstance(found, Isolation):
        return found
    said = f"{kind} cannot be had here: {found}"
    if os.environ.get("CI") and must_work(kind):
        return pytest.fail(
            f"{said}. Under CI the attacks must run; without CI set they are skipped."
        )
    return pytest.skip(said)


def must_work(kind: str) -> bool:
    """Whether CI may not go on without that kind: where its command is installed (and works), and where no other kind works either."""
    if kind == BUBBLEWRAP and shutil.which("bwrap"):
        return True
    if kind == NAMESPACES and shutil.which("unshare"):
        command = ["unshare", "--map-root-user", "--mount", "--net", "--ipc", "--pid", "--fork"]
        if not subprocess.run([*command, "true"], capture_output=True).returncode:
            return True
    return not any(
        isinstance(try_isolation(other), Isolation) for other in (BUBBLEWRAP, NAMESPACES)
    )


def solution(answer: str | None = None):
    """The solution of the attacked lesson, cut to its exercises, one of which may be given another answer."""
    notebook = read_notebook(COURSE / "solutions" / "1_accumulation" / "1_pytorch.ipynb")
    cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code"
        and (f"def {ATTACKED}(" in cell.source or f"def {HONEST}(" in cell.source)
    ]
    for cell in cells:
        cell.outputs = []
        if answer is not None and f"def {ATTACKED}(" in cell.source:
            cell.source = answer
    return nbformat.v4.new_notebook(cells=cells)


def outside_world():
    """Listeners on loopback, outside the sandbox."""
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    for listener in (tcp, udp):
        listener.setblocking(False)
    return tcp, udp


@pytest.fixture(scope="module", params=[BUBBLEWRAP, NAMESPACES])
def run(request, tmp_path_factory):
    """Attacks and three honest submissions, graded in one run under one kind of isolation: under the first that works all attacks."""
    isolation = isolation_or_skip(request.param)
    once = request.param != BUBBLEWRAP and isinstance(try_isolation(BUBBLEWRAP), Isolation)
    attacks = [name for name in hostile.NAMES if not (once and name in hostile.INSIDE)]
    places = tmp_path_factory.mktemp("places")
    os.chmod(places, 0o777)  # its rights keep nobody out; the sandbox must
    tcp, udp = outside_world()
    with tcp, udp:
        fill = {
            "PLACES": places,
            "COURSE": COURSE,
            "TCP_PORT": tcp.getsockname()[1],
            "UDP_PORT": udp.getsockname()[1],
            "COMM": COMM,
            "FORGED_NAME": FORGED_NAME,
        }
        class_ = {"honest a": solution(), "honest m": solution(), "zz honest": solution()}
        class_["h sleeping processes, honest neighbour"] = solution(WITH_THREADS)
        for name in attacks:
            code = hostile.cell(name)
            for word, value in fill.items():
                code = code.replace(word, str(value))
            class_[f"h {name}"] = solution(code)
        for learner, notebook in class_.items():
            path = places / "class" / learner / "1_pytorch.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(notebook, path)
        for name in ("grades.csv", "grades.jsonl"):
            (places / name).write_text("as it was")
            os.chmod(places / name, 0o666)
        exercises = {
            name: exercise
            for name, exercise in exercises_with().items()
            if name in (ATTACKED, HONEST)
        }
        plan = Plan(exercises, SEED, isolation, LIMITS, time_factor=0.2)
        result, start = Run(places, attacks), time.monotonic()
        for graded in grade_all(find_submissions(places / "class"), plan, workers=2):
            result.rows[graded.learner] = graded
        result.seconds = time.monotonic() - start
        for listener, receive in ((tcp, lambda: tcp.accept()), (udp, lambda: udp.recv(100))):
            try:
                receive()
                result.heard.append("TCP" if listener is tcp else "UDP")
            except BlockingIOError:
                pass
    return result


def outcomes(graded: Graded) -> dict[str, str]:
    return {verdict.exercise: verdict.outcome for verdict in graded.verdicts}


def test_attacks_earn_nothing_and_spoil_nothing(run):
    failed = {}
    for name in run.attacks:
        seen = {verdict.exercise: verdict for verdict in run.rows[f"h {name}"].verdicts}
        told = seen[ATTACKED].outcome != RIGHT and seen[ATTACKED].message
        # Its other exercise is graded as ever.
        if not told or seen[ATTACKED].points != 0 or seen[HONEST].outcome != RIGHT:
            failed[name] = seen
    assert not failed


def test_there_are_enough_attacks(run):
    assert len(hostile.NAMES) >= 60 and len(run.attacks) >= 30
    assert set(hostile.NAMES) > hostile.INSIDE


def test_every_other_submission_keeps_its_grade(run):
    honest = [graded for learner, graded in run.rows.items() if "honest" in learner]
    assert len(honest) == 4
    assert all(outcomes(graded) == {ATTACKED: RIGHT, HONEST: RIGHT} for graded in honest)


def test_no_neighbour_takes_a_submission_s_processes(run):
    """Each submission is counted by itself: a neighbour need not be probed again for want of them; on a busy machine it may be for time."""
    neighbour = run.rows["h sleeping processes, honest neighbour"]
    assert outcomes(neighbour)[ATTACKED] == RIGHT, neighbour.verdicts
    assert all("for want of time" in note for note in neighbour.notes), neighbour.notes


def test_what_failed_for_want_of_something_was_probed_again_alone(run):
    notes = run.rows["h endless loop"].notes
    assert len(notes) == 1 and "for want of time" in notes[0] and ATTACKED in notes[0]
    assert "for want of memory" in run.rows["h shared memory bomb"].notes[0]


def test_nothing_outside_has_changed(run):
    assert run.heard == []
    assert all(
        (run.places / name).read_text() == "as it was" for name in ("grades.csv", "grades.jsonl")
    )
    assert sorted(path.name for path in run.places.iterdir()) == [
        "class",
        "grades.csv",
        "grades.jsonl",
    ]
    for folder in ("trainlean", "data", "work"):  # into which it is tried
        assert not list((COURSE / folder).rglob(FORGED_NAME))


def test_nothing_outlives_the_run(run):
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            names.append((process / "comm").read_text().strip())
        except OSError:
            continue
    assert COMM not in names


def test_reasons_name_the_limit(run):
    def message(name):
        return next(
            verdict.message
            for verdict in run.rows[f"h {name}"].verdicts
            if verdict.exercise == ATTACKED
        )

    said = {
        # On a busy machine the clock ends it, not the processor.
        "endless loop": "does a loop in it never end|gave no answer within",
        "endless sleep": "gave no answer within",
        "os._exit": "ended without an answer",
        "shared memory bomb": "memory",
        "pickles": "no observation",
    }
    for name in set(said).intersection(run.attacks):
        assert re.search(said[name], message(name)), name


# ---------------------------------------------------------------- finding isolation


def test_under_ci_attacks_that_are_skipped_are_a_failure(monkeypatch):
    """Nothing works: a skip at home, a failure under CI. Another kind works and this one is not installed: a skip."""
    works = Isolation(NAMESPACES, "Isolation: namespaces.")
    for found, ci, ends in (
        ({}, "", "skipped"),
        ({}, "true", "failed"),
        ({NAMESPACES: works}, "true", "skipped"),
    ):
        monkeypatch.setattr(sys.modules[__name__], "try_isolation", found.get)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        monkeypatch.setenv("CI", ci)
        try:
            isolation_or_skip(BUBBLEWRAP)
        except pytest.skip.Exception:
            ended = "skipped"
        except pytest.fail.Exception:
            ended = "failed"
        assert ended == ends
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(pytest.fail.Exception, match="bubblewrap cannot be had"):
        isolation_or_skip(BUBBLEWRAP)
    monkeypatch.setattr(sys.modules[__name__], "try_isolation", {BUBBLEWRAP: works}.get)
    for status, ends in ((0, pytest.fail.Exception), (1, pytest.skip.Exception)):
        done = subprocess.CompletedProcess([], status)
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        with pytest.raises(ends):
            isolation_or_skip(NAMESPACES)
    monkeypatch.setattr(sys.modules[__name__], "try_isolation", lambda kind: works)
    assert isolation_or_skip(NAMESPACES) is works


def test_without_isolation_untrusted_submissions_are_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "try_isolation", lambda kind: "it does not work here")
    with pytest.raises(CourseError, match="--trust-submissions"):
        find_isolation()
    assert "none" in find_isolation(trust=True).sentence


def test_where_nothing_is_forked_nothing_is_graded(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(CourseError, match="grade on Linux, in a container or in WSL"):
        find_isolation(trust=True)


def test_what_helps_depends_on_where_one_is(monkeypatch, tmp_path):
    """In a container installing bubblewrap does not help, since namespaces are forbidden from outside."""
    monkeypatch.setattr(sandbox, "try_isolation", lambda kind: "unshare: not permitted")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(sandbox, "CONTAINER_MARKS", (str(tmp_path / "mark"),))
    monkeypatch.setattr(sandbox, "APPARMOR", str(tmp_path / "apparmor"))
    with pytest.raises(CourseError, match="sudo apt install bubblewrap"):
        find_isolation()
    (tmp_path / "apparmor").write_text("1\n")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(CourseError, match="sysctl"):
        find_isolation()
    (tmp_path / "mark").write_text("")
    with pytest.raises(CourseError, match="--privileged") as raised:
        find_isolation()
    assert "bubblewrap on Linux" not in str(raised.value)


def test_isolation_that_lets_something_through_is_not_trusted(monkeypatch):
    """A bwrap that shows everything is found out by trying."""
    isolation_or_skip(BUBBLEWRAP)
    right = sandbox.command

    def open_house(kind, code, limits=LIMITS):
        return [word for word in right(kind, code, limits) if word != "--unshare-net"][:1] + [
            "--bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--",
            sys.executable,
            "-I",
            "-c",
            code,
        ]

    monkeypatch.setattr(sandbox, "command", open_house)
    found = try_isolation(BUBBLEWRAP)
    assert isinstance(found, str) and "read the exercises' tests" in found


def test_the_first_kind_that_works_is_taken():
    kinds = [
        kind for kind in (BUBBLEWRAP, NAMESPACES) if isinstance(try_isolation(kind), Isolation)
    ]
    if not kinds:
        isolation_or_skip(NAMESPACES)
    found = find_isolation()
    assert found.kind == kinds[0] and "no network but loopback" in found.sentence


def test_no_probe_carries_what_knows_the_answer():
    """Where submissions run there is neither an oracle nor a mistake nor another right answer."""
    import ast

    from trainlean.grading.probes import probe_files

    sources = {
        source
        for one in exercises_with().values()
        for source in probe_files(one)["modules"].values()
    }
    for source in sources:
        nodes = list(ast.walk(ast.parse(source)))
        words = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        words |= {node.id for node in nodes if isinstance(node, ast.Name)}
        assert not {
            word
            for word in words
            if "oracle" in word or word in ("Mistake", "Exercise", "large_batch_training")
        }, source


def test_outcome_of_a_submission_that_cannot_be_asked(run):
    """A crash is told as such, never as a wrong answer."""
    crashes = {"os._exit", "crash of the interpreter", "exits when its cell is run"}
    for name in crashes.intersection(run.attacks):
        assert outcomes(run.rows[f"h {name}"])[ATTACKED] == CRASHED
