"""The run of a class: outputs, resuming, the same grades for the same seed, private exercises, engines that end."""

import contextlib
import copy
import csv
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from trainlean import cli
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG
from trainlean.grading import classroom, run
from trainlean.grading.classroom import grade_class
from trainlean.grading.cluster import cluster_workers, on_engines
from trainlean.grading.dry_run import show_dry_run
from trainlean.grading.formats.gradescope import Gradescope
from trainlean.grading.judging import judge_answers
from trainlean.grading.log import log_path, read_log
from trainlean.grading.options import GradeOptions, command_parameters
from trainlean.grading.overlay import exercises_with
from trainlean.grading.plan import Answers, Graded, Plan
from trainlean.grading.probes import probe_files
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import Limits, find_isolation
from trainlean.grading.submissions import find_submissions
from trainlean.grading.workers import WorkerProcess, collect_timed
from trainlean.notebooks.notebook import read_notebook
from trainlean.workspace import COURSE, CourseError

LESSON = "1_accumulation/1_pytorch"
ONE, TWO = "train_accumulated", "train_accumulated_to_the_end"
ELSEWHERE = {"run_checkpointed": "2_checkpointing/2_accelerator"}  # what is not due


def isolation():
    """Whatever there is; the submissions of this file are the tests' own."""
    return find_isolation(trust=True)


def source_of(name: str) -> str:
    notebook = read_notebook(COURSE / "solutions" / f"{LESSON}.ipynb")
    return next(
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and f"def {name}(" in cell.source
    )


SOLVED = {name: source_of(name) for name in (ONE, TWO)}
SIGNATURE = f"def {ONE}(model, optimizer, loss_function, micro_batches, accumulation_steps):\n"
NOT_DIVIDED = (
    SIGNATURE
    + """
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss_function(model(inputs), targets).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
)
STUB = SIGNATURE + "    # YOUR CODE HERE\n    raise NotImplementedError()\n"


def notebook_of(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def hand_in(folder: Path, learner: str, notebook) -> None:
    path = folder / learner / "1_pytorch.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(notebook, bytes):
        path.write_bytes(notebook)
    else:
        nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def two_exercises():
    """The course with two of its exercises, so that a test takes seconds."""
    everything = exercises_with()
    return {name: everything[name] for name in (ONE, TWO)}


@pytest.fixture(autouse=True)
def small_course(monkeypatch, two_exercises):
    monkeypatch.setattr(
        classroom,
        "exercises_with",
        lambda overlay=None: (
            two_exercises
            if overlay is None
            else {n: e for n, e in exercises_with(overlay).items() if n in (ONE, TWO)}
        ),
    )


@pytest.fixture(scope="module")
def worker(two_exercises):
    """One worker for the tests that only ask; its start is most of what they cost."""
    process = WorkerProcess(Plan(two_exercises, 11, isolation(), elsewhere=ELSEWHERE))
    yield process
    process.stop()


def outcomes(worker, notebook, plan=None) -> dict[str, tuple[str, str]]:
    data = notebook if isinstance(notebook, bytes) else nbformat.writes(notebook).encode()
    answers = worker.collect(data, "submission.ipynb")
    verdicts, _ = judge_answers(answers, plan or worker.plan, {})
    return (
        {"problem": answers.problem}
        if answers.problem
        else {verdict.exercise: (verdict.outcome, verdict.mistake) for verdict in verdicts}
    )


# ---------------------------------------------------------------- notebooks as they come


def solved():
    return notebook_of(*SOLVED.values())


def test_right_wrong_and_stub(worker):
    assert outcomes(worker, solved()) == {ONE: (RIGHT, ""), TWO: (RIGHT, "")}
    assert outcomes(worker, notebook_of(NOT_DIVIDED)) == {
        ONE: (WRONG, "loss not divided"),
        TWO: (NOT_ATTEMPTED, ""),
    }
    assert outcomes(worker, notebook_of(STUB, SOLVED[TWO])) == {
        ONE: (NOT_ATTEMPTED, ""),
        TWO: (RIGHT, ""),
    }


def test_cells_moved_duplicated_split_and_deleted(worker):
    moved = notebook_of(SOLVED[TWO], "x = 1 / 0", SOLVED[ONE])
    duplicated = notebook_of(STUB, SOLVED[ONE], SOLVED[TWO])
    split = notebook_of(
        "import torch\nSCALE = 1.0",
        "def divided(loss, k):\n    return SCALE * loss / k",
        NOT_DIVIDED.replace(
            "loss_function(model(inputs), targets)",
            "divided(loss_function(model(inputs), targets), accumulation_steps)",
        ),
    )
    assert (
        outcomes(worker, moved)[ONE]
        == outcomes(worker, duplicated)[ONE]
        == outcomes(worker, split)[ONE]
        == (RIGHT, "")
    )
    assert outcomes(worker, split)[TWO] == (NOT_ATTEMPTED, "")


def old_format(version: int) -> bytes:
    if version == 4:
        notebook = solved() | {"nbformat_minor": 0}
        for cell in notebook["cells"]:
            cell.pop("id", None)
        return json.dumps(notebook).encode()
    cells = [
        {
            "cell_type": "code",
            "language": "python",
            "input": source,
            "outputs": [],
            "collapsed": False,
            "metadata": {},
            "prompt_number": 1,
        }
        for source in SOLVED.values()
    ]
    return json.dumps(
        {
            "metadata": {"name": "x"},
            "nbformat": 3,
            "nbformat_minor": 0,
            "worksheets": [{"cells": cells, "metadata": {}}],
        }
    ).encode()


def with_large_outputs() -> bytes:
    notebook = solved()
    for cell in notebook.cells:
        cell.outputs = [new_output("stream", text="x" * 2_000_000)]
    return nbformat.writes(notebook).encode()


def with_nothing_in_a_cell(name):
    """A notebook in which some tool has left null where nobody looks."""
    content = json.loads(nbformat.writes(solved()))
    code = next(cell for cell in content["cells"] if cell["cell_type"] == "code")
    code[name] = None
    return json.dumps(content).encode()


def test_older_formats_and_megabytes_of_output(worker):
    right = {ONE: (RIGHT, ""), TWO: (RIGHT, "")}
    for data in (
        old_format(3),
        old_format(4),
        with_large_outputs(),
        b"\xef\xbb\xbf" + nbformat.writes(solved()).encode(),
        with_nothing_in_a_cell("metadata"),
        with_nothing_in_a_cell("outputs"),
    ):
        assert outcomes(worker, data) == right


DAMAGED = {
    "empty": (b"", "is empty"),
    "truncated": (nbformat.writes(solved()).encode()[:-200], "not JSON"),
    "merge conflict": (
        b'<<<<<<< HEAD\n{"cells": []}\n=======\n>>>>>>> theirs\n',
        "merge conflict marks",
    ),
    "not UTF-8": (nbformat.writes(solved()).encode("utf-16"), "not UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "not UTF-8"),
    "a web page": (b"<html><body>1_pytorch</body></html>", "not JSON"),
    "another JSON": (b'{"cells": 3}', "not a Jupyter notebook"),
    "deep JSON": (b"[" * 100_000, "nested too deeply"),
    "a newer format": (
        b'{"cells": [], "metadata": {}, "nbformat": 9, "nbformat_minor": 0}',
        "notebook format 9",
    ),
    "of another course": (
        nbformat.writes(notebook_of("print('hello')")).encode(),
        "no exercise of this course",
    ),
}


def test_a_notebook_of_a_lesson_that_is_not_due_is_no_other_lessons(worker):
    """`checkpoint` is an exercise, and a name that many lessons' notebooks use; without marks names decide."""
    later = notebook_of(f"def run_checkpointed():\n    return {ONE}")
    assert list(outcomes(worker, later)) == [ONE, TWO]
    later.cells[0].metadata["nbgrader"] = {"grade_id": "run_checkpointed", "solution": True}
    data = nbformat.writes(later).encode()
    lessons = tuple(ELSEWHERE.values())
    assert worker.collect(data, "2_accelerator.ipynb") == Answers(not_due=lessons)
    assert worker.lessons_in(data, "a.ipynb") == ("", (f"{lessons[0]}, not due",))


def test_an_answer_that_closes_its_pipe_is_not_said_to_want_memory(worker):
    closes = f"import os\n{SIGNATURE}    os.closerange(0, 1000)\n    while True: pass"
    answers = worker.collect(nbformat.writes(notebook_of(closes)).encode(), "a.ipynb")
    head, _ = answers.given[ONE]
    assert "closed what it was to answer through" in head["message"] and not head["short_of"]


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_a_reason(worker, name):
    data, says = DAMAGED[name]
    assert says in outcomes(worker, data)["problem"]
    assert worker.process.poll() is None  # and the worker goes on


def test_conflict_marks_and_nonsense_inside_cells(worker):
    found = outcomes(
        worker,
        notebook_of(
            "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> theirs",
            SOLVED[ONE],
            "%%bash\nls",
            "!rm x",
            "(" * 300,
        ),
    )
    assert found[ONE] == (RIGHT, "") and found[TWO][0] == CRASHED


def test_a_cell_that_is_too_deep_leaves_the_others_readable(worker):
    found = outcomes(worker, notebook_of("x = " + "-" * 100_000 + "1", SOLVED[ONE]))
    assert found == {ONE: (RIGHT, ""), TWO: (CRASHED, "")}


def test_reading_a_notebook_costs_the_worker_nothing(worker):
    """Commas without end take a hundred MiB and more to read, and that is given back."""
    assert outcomes(worker, solved())[ONE] == (RIGHT, "")
    before = most_memory(worker)
    commas = "x = [" + "0," * 100_000 + "]"
    assert outcomes(worker, notebook_of(commas, SOLVED[ONE]))[ONE] == (RIGHT, "")
    assert most_memory(worker) - before < 32 * 2**20


def most_memory(worker) -> int:
    """The most bytes that any process of a worker has ever held."""
    import psutil

    first = psutil.Process(worker.process.pid)
    lines = [Path(f"/proc/{one.pid}/status").read_text() for one in [first, *first.children(True)]]
    return max(int(text.split("VmHWM:")[1].split()[0]) * 1024 for text in lines)


def test_a_worker_that_is_killed_costs_one_exercise_of_one_submission(worker, monkeypatch):
    """As where the kernel cannot keep a submission from signalling its worker."""
    assert outcomes(worker, solved())[ONE][0] == RIGHT
    real, starts = worker._receive, worker.starts

    def receive(until):
        head, blob = real(until)
        if head.get("probing") == ONE and worker.starts == starts:
            os.killpg(worker.process.pid, signal.SIGKILL)
        return head, blob

    monkeypatch.setattr(worker, "_receive", receive)
    assert outcomes(worker, solved()) == {ONE: (CRASHED, ""), TWO: (RIGHT, "")}
    assert worker.starts == starts + 1


# ---------------------------------------------------------------- a class


def make_class(folder: Path, size: int = 1) -> Path:
    for number in range(size):
        hand_in(folder, f"right {number}", solved())
        hand_in(folder, f"wrong {number}", notebook_of(NOT_DIVIDED, SOLVED[TWO]))
        hand_in(folder, f"stub {number}", notebook_of(STUB))
    hand_in(folder, "broken", b"{")
    return folder


EXPECTED = {
    "right 0": ("3", "3"),
    "wrong 0": ("0", "3"),
    "stub 0": ("0", "0"),
    "broken": ("0", "0"),
}


def grades(path: Path) -> dict[str, tuple[str, str]]:
    return {
        line["learner"]: (line[ONE], line[TWO])
        for line in csv.DictReader(path.open(encoding="utf-8"))
    }


def without_times(path: Path) -> list[dict]:
    lines = [line for line in read_log(log_path(path)) if line["event"] == "notebook"]
    return sorted(
        ({key: value for key, value in line.items() if key != "seconds"} for line in lines),
        key=lambda line: line["where"],
    )


@pytest.fixture(scope="module")
def first_run(tmp_path_factory, two_exercises):
    """A class graded once, with everything that can be written."""
    folder = tmp_path_factory.mktemp("run")
    make_class(folder / "class")
    output = folder / "out" / "grades.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classroom, "exercises_with", lambda overlay=None: two_exercises)
        status = grade_class(
            GradeOptions(
                folder / "class",
                output,
                seed=11,
                workers=1,
                formats=(Gradescope(folder / "out" / "gradescope"),),
            )
        )
    return folder, output, status


def test_everything_is_written_and_the_status_tells_of_the_broken_one(first_run):
    folder, output, status = first_run
    assert status == 1 and grades(output) == EXPECTED
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "grades.csv",
        "grades.jsonl",
        "grades_feedback",
        "grades_mistakes.csv",
        "grades_mistakes.png",
        "gradescope",
    ]
    page = (output.parent / "grades_feedback" / "wrong 0.html").read_text()
    assert "A known mistake with the same results: <b>Loss not divided.</b>" in page
    assert "Seed 11." in page and "Isolation:" in page
    assert "exercises_tests" not in page and "def probe" not in page
    broken = (output.parent / "grades_feedback" / "broken.html").read_text()
    assert "this is not JSON" in broken
    lines = list(read_log(log_path(output)))
    assert [line["event"] for line in lines] == ["run", *["notebook"] * 4, "end"]
    assert lines[0]["seed"] == 11 and "Isolation" in lines[0]["isolation"]
    assert any("seen" in line and line["seen"] for line in lines)


def test_graded_again_with_the_same_seed_keeps_manual_marks(first_run, worker, monkeypatch):
    """A second run of the same seed, by another worker, gives the same lines, and the instructor's columns stay."""

    @contextlib.contextmanager
    def this_worker(plan, count):
        assert plan.seed == worker.plan.seed and plan.isolation == worker.plan.isolation
        yield lambda tasks, **_: (
            (number, *collect_timed(worker, data, where)) for number, data, where in tasks
        )

    monkeypatch.setattr(run, "local_workers", this_worker)
    folder, output, _ = first_run
    before = without_times(output)
    text = output.read_text().splitlines()
    place = next(number for number, line in enumerate(text) if line.startswith("stub 0"))
    text[place] = text[place].removesuffix(",") + "2,talked about it"
    output.write_text("\n".join(text) + "\n")
    assert grade_class(GradeOptions(folder / "class", output, seed=11, workers=1)) == 1
    again = without_times(output)
    assert len(again) == 2 * len(before) and again[::2] == again[1::2] == before
    row = next(
        line
        for line in csv.DictReader(output.open(encoding="utf-8"))
        if line["learner"] == "stub 0"
    )
    assert (row["total"], row["adjustment"], row["comment"]) == ("2", "2", "talked about it")
    assert grades(output) == EXPECTED


def test_interrupted_from_the_keyboard(tmp_path, monkeypatch, capsys):
    make_class(tmp_path / "class")

    def interrupted(*_, **__):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(classroom, "grade_all", interrupted)
    assert (
        grade_class(
            GradeOptions(tmp_path / "class", tmp_path / "grades.csv", trust_submissions=True)
        )
        == 130
    )
    assert "Nothing is lost" in capsys.readouterr().out


def test_a_changed_submission_is_graded_again_when_resumed(tmp_path):
    hand_in(tmp_path, "ada", solved())
    [submission] = find_submissions(tmp_path)
    done = Graded("ada", "ada/1_pytorch.ipynb", "another digest", "", ())
    assert classroom._still_there([done], [submission]) == []


def test_dry_run_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    make_class(tmp_path / "class")
    hand_in(
        tmp_path / "class",
        "evil",
        notebook_of(f"open({str(tmp_path / 'written')!r}, 'w')", SOLVED[ONE]),
    )
    assert grade_class(GradeOptions(tmp_path / "class", tmp_path / "grades.csv", dry_run=True)) == 1
    out = capsys.readouterr().out
    assert (
        "this is not JSON" in out
        and LESSON in out
        and "5 learners" in out
        and "nothing was run" in out
    )
    assert [path.name for path in tmp_path.iterdir()] == ["class"]


def test_a_dry_run_reads_under_limits(tmp_path, two_exercises, capsys, monkeypatch):
    """12 MB of JSON that are 300 MB in Python; the instructor's own process does not read them."""
    monkeypatch.setenv("COLUMNS", "200")
    hand_in(tmp_path, "ada", solved())
    (tmp_path / "big").mkdir()
    content = b'{"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": {"a": [%s0]}}'
    (tmp_path / "big" / "1_pytorch.ipynb").write_bytes(content % (b"{}," * 4_000_000))
    limits = Limits(memory=128 << 20)
    plan = Plan(two_exercises, 0, find_isolation(trust=True), limits)
    assert show_dry_run(find_submissions(tmp_path), plan) == 1
    out = capsys.readouterr().out
    assert f"ada/1_pytorch.ipynb | {LESSON}" in " ".join(out.replace("│", "|").split())
    assert "128 MiB of memory to read" in " ".join(out.split())


# ---------------------------------------------------------------- a private folder

OVERLAY = """
from trainlean.exercises.exercise import Mistake

MISTAKES = {
    "train_accumulated": (
        Mistake(
            "the private one",
            {"(loss / accumulation_steps).backward()": "(loss / 17).backward()"},
            why="It was seen last year.",
            hint="Seventeen?",
        ),
    )
}
"""
PROBES = """
from exercises_tests.probing.toys import flat


def train_accumulated(answer, seed):
    return {"the sum": answer(seed, 1)}
"""
PRIVATE = """
from trainlean.exercises.exercise import Exercise

from . import probes

SECRET = 42

EXERCISES = (
    Exercise(
        name="train_accumulated",
        points=4,
        probe=probes.train_accumulated,
        oracle=lambda seed: {"the sum": seed + 1 + 0 * SECRET},
        mistakes=(),
        hints=("What?", "That."),
        also_right=(),
    ),
)
"""


def test_an_overlay_adds_private_mistakes_and_replaces_exercises(tmp_path, two_exercises, worker):
    (tmp_path / "mistakes").mkdir()
    (tmp_path / "mistakes" / "mistakes.py").write_text(OVERLAY)
    mine = exercises_with(tmp_path / "mistakes")
    assert [mistake.name for mistake in mine[ONE].mistakes] == [
        *(mistake.name for mistake in two_exercises[ONE].mistakes),
        "the private one",
    ]
    seventeen = (
        SIGNATURE
        + """    for index, (inputs, targets) in enumerate(micro_batches):
        (loss_function(model(inputs), targets) / 17).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    )
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "exercises.py").write_text(PRIVATE)
    (tmp_path / "exercises" / "probes.py").write_text(PROBES)
    replaced = exercises_with(tmp_path / "exercises")[ONE]
    assert (replaced.points, replaced.notebook) == (4, LESSON)
    plan = Plan({"train_accumulated": replaced, TWO: two_exercises[TWO]}, 7, isolation())
    assert "SECRET" not in json.dumps(plan.settings()["probes"])
    private = WorkerProcess(plan)
    try:
        assert outcomes(private, notebook_of("def train_accumulated(a, b):\n    return a + b"))[
            ONE
        ] == (RIGHT, "")
        assert outcomes(private, solved()) == {ONE: (CRASHED, ""), TWO: (RIGHT, "")}
    finally:
        private.stop()
    # Where submissions run nothing is known of mistakes: any worker will do.
    plan = Plan({ONE: mine[ONE], TWO: two_exercises[TWO]}, worker.plan.seed, plan.isolation)
    assert probe_files(mine[ONE]) == probe_files(two_exercises[ONE])
    assert outcomes(worker, notebook_of(seventeen), plan)[ONE] == (WRONG, "the private one")


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "neither EXERCISES nor MISTAKES"),
        ("1 / 0", "cannot be loaded"),
        ("MISTAKES = {'nope': ()}", "MISTAKES"),
        (f"MISTAKES = {{{ONE!r}: 5}}", "must be a tuple of Mistake"),
        ("MISTAKES = [1]", "of the right form"),
        ("EXERCISES = (1,)", "of the right form"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    ],
)
def test_an_overlay_that_does_not_work(tmp_path, text, says):
    (tmp_path / "mistakes.py").write_text(text)
    with pytest.raises(CourseError, match=says):
        exercises_with(tmp_path)
    with pytest.raises(CourseError, match="holds neither an exercises.py nor a mistakes.py"):
        exercises_with(tmp_path / "nowhere")


# ---------------------------------------------------------------- many machines


def test_engines_give_the_same_grades_and_one_may_end(tmp_path, two_exercises, first_run):
    """Two local engines; one is killed while it is at work, and what it was at goes to the other."""
    import ipyparallel
    import psutil

    folder, output, _ = first_run
    make_class(tmp_path / "class", 2)
    submissions = find_submissions(tmp_path / "class")
    plan = Plan(two_exercises, 11, isolation())
    cluster = ipyparallel.Cluster(
        n=2,
        profile_dir=str(tmp_path / "profile"),
        load_profile=False,
        log_level=100,
        delay=0,
        controller_args=["--HeartMonitor.period=200", "--HeartMonitor.max_heartmonitor_misses=10"],
    )
    cluster.start_cluster_sync()
    try:
        client = cluster.connect_client_sync()
        client.wait_for_engines(2, timeout=60, interactive=False)
        victim = client[client.ids[0]].apply_async(os.getpid).get(timeout=60)
        graded = []
        for one in grade_all(
            submissions, plan, collect=lambda tasks: on_engines(client, plan, tasks, True)
        ):
            graded.append(one)
            if len(graded) == 1:
                children = psutil.Process(victim).children(recursive=True)
                os.kill(victim, signal.SIGKILL)
                for child in children:
                    with contextlib.suppress(psutil.NoSuchProcess):  # some end with it
                        child.kill()
        assert len(client.ids) == 1
        client.close()
    finally:
        cluster.stop_cluster_sync()
    known = {
        line["learner"]: line["verdicts"]
        for line in read_log(log_path(output))
        if line["event"] == "notebook"
    }
    assert len(graded) == len(submissions) == 7
    for one in graded:
        learner = one.learner.replace(" 1", " 0")
        assert [verdict.outcome for verdict in one.verdicts] == [
            verdict["outcome"] for verdict in known[learner]
        ]


def test_a_profile_that_is_not_there_is_a_sentence(two_exercises, tmp_path, monkeypatch):
    """IPython would make it, and its engines would be this machine's."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    collect = cluster_workers(Plan(two_exercises, 7, isolation()), "slrum", 1)
    with pytest.raises(CourseError, match="no cluster profile 'slrum'"):
        list(collect(iter([(0, b"", "x")])))
    assert not list(tmp_path.iterdir())


def test_no_engine_left_is_a_sentence(two_exercises):
    class Client:
        ids = ()

    with pytest.raises(CourseError, match="No engine"):
        list(on_engines(Client(), Plan(two_exercises, 7, isolation()), iter([(0, b"", "x")]), True))


# ---------------------------------------------------------------- the command


def test_the_command_hands_over(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(classroom, "grade_class", lambda options: calls.append(options) or 1)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "trainlean",
            "grade",
            "class",
            "--output",
            "g.csv",
            "--seed",
            "3",
            "--lesson",
            "1_accumulation",
            "--dry-run",
        ],
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    [options] = calls
    assert options == GradeOptions(
        Path("class"), Path("g.csv"), ("1_accumulation",), seed=3, dry_run=True
    )


def test_an_option_is_frozen_and_none_is_lost():
    options = GradeOptions("class", lessons=["1_accumulation"])
    assert options.submissions == Path("class") and options.lessons == ("1_accumulation",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 3
    names = {one.name for one in command_parameters()}
    assert set(GradeOptions.__dataclass_fields__) - {"formats"} <= names


@pytest.mark.parametrize(
    "options, says",
    [
        ({"output": Path("grades.xlsx")}, "must end in .csv"),
        ({"lessons": ("9_nothing",)}, "no lesson '9_nothing'"),
        ({"workers": 0}, "--workers is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"seed": 10**30}, "--seed is 1000000"),
        ({"late": Path("no.py")}, "There is no no.py"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(tmp_path, options, says):
    make_class(tmp_path / "class")
    output = options.pop("output", tmp_path / "grades.csv")
    with pytest.raises(CourseError, match=says):
        grade_class(GradeOptions(tmp_path / "class", output, **options))
    assert [path.name for path in tmp_path.iterdir()] == ["class"]


def test_what_is_due_can_be_named():
    everything = exercises_with()
    assert {
        exercise.notebook for exercise in classroom.due(everything, ("1_accumulation",)).values()
    } > {LESSON}
    assert {exercise.notebook for exercise in classroom.due(everything, (LESSON,)).values()} == {
        LESSON
    }
    assert copy.copy(classroom.due(everything, ())) == everything


def test_markdown_and_tags_do_not_matter(worker):
    notebook = new_notebook(cells=[new_markdown_cell("# text"), *solved().cells])
    notebook.cells[1].metadata["nbgrader"] = {"grade_id": ONE, "solution": True, "grade": False}
    assert outcomes(worker, notebook)[ONE] == (RIGHT, "")


def test_an_oracle_that_fails_blames_nobody(two_exercises):
    def fails(seed):
        raise TimeoutError("busy")

    plan = Plan({ONE: dataclasses.replace(two_exercises[ONE], oracle=fails)}, 7, isolation())
    answers = Answers("", (ONE,), {ONE: ({"cells": [1]}, b"anything")})
    with pytest.raises(CourseError, match="oracle of train_accumulated failed on this machine"):
        judge_answers(answers, plan, {})
