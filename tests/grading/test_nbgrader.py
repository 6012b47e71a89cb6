"""The lessons are assignments for nbgrader, too: it makes the release, collects and grades one, with the same points."""

import json
import os
import sys
from importlib.util import find_spec

import nbformat
import pytest
from classes import answer_cells, cut_to_exercises

from trainlean.exercises.checking import check_notebooks
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.verdicts import RIGHT, WRONG
from trainlean.notebooks.notebook import exercise_cells, nbgrader_mark, read_notebook
from trainlean.workspace import COURSE

pytestmark = pytest.mark.skipif(
    find_spec("nbgrader") is None,
    reason="nbgrader is not installed; pip install nbgrader to test the lessons with it",
)
UNIT, NAME = "1_accumulation", "1_pytorch"
NOISY, MISTAKEN, STUB = (
    "train_accumulated",
    "train_accumulated_to_the_end",
    "token_weighted_backward",
)
NOISE = """    import logging, sys, warnings
    print("noise", file=sys.stderr)
    warnings.warn("noise")
    logging.getLogger().warning("noise")
"""


def short(root: str):
    """A lesson or solution cut to three of its exercises."""
    notebook = read_notebook(COURSE / root / UNIT / f"{NAME}.ipynb")
    kept = {NOISY, MISTAKEN, STUB}
    notebook.cells = [
        cell
        for cell in notebook.cells
        if nbgrader_mark(cell).get("grade_id", NOISY).removesuffix("-check") in kept
    ]
    return cut_to_exercises(notebook)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """nbgrader's course in a temporary folder: source and release have the names that they have here."""
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import Config

    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(
        "PATH", os.path.dirname(sys.executable), prepend=os.pathsep
    )  # nbgrader calls alembic by its name
    config = Config()
    config.CourseDirectory.root = str(tmp_path / "course")
    config.CourseDirectory.course_id = "train-lean"
    config.CourseDirectory.source_directory, config.CourseDirectory.release_directory = (
        "solutions",
        "lessons",
    )
    config.CourseDirectory.db_url = f"sqlite:///{tmp_path}/gradebook.db"
    config.Exchange.root = str(tmp_path / "exchange")
    config.Execute.timeout = 60
    (tmp_path / "exchange").mkdir()
    os.chmod(tmp_path / "exchange", 0o777)
    source = tmp_path / "course" / "solutions" / UNIT
    source.mkdir(parents=True)
    nbformat.write(short("solutions"), source / f"{NAME}.ipynb")
    from nbgrader.coursedir import CourseDirectory

    return NbGraderAPI(CourseDirectory(config=config), config=config)


@pytest.mark.skipif(os.name == "nt", reason="nbgrader's exchange needs a POSIX system")
def test_nbgrader_releases_collects_and_grades(course, tmp_path, capsys, monkeypatch):
    from nbgrader.api import Gradebook
    from nbgrader.exchange.default.submit import ExchangeSubmit

    folder = tmp_path / "course"
    assert course.generate_assignment(UNIT)["success"]
    release = read_notebook(folder / "lessons" / UNIT / f"{NAME}.ipynb")
    lesson = short("lessons")
    stubs = {cell.name: lesson.cells[cell.index].source for cell in exercise_cells(lesson)}
    assert {
        cell.name: release.cells[cell.index].source for cell in exercise_cells(release)
    } == stubs  # nbgrader cuts as the course does
    assert course.release_assignment(UNIT)["success"]

    mistake = next(
        source
        for (outcome, _), source in answer_cells(find_exercise(MISTAKEN)).items()
        if outcome == WRONG
    )
    answers = {NOISY: answer_cells(find_exercise(NOISY))[RIGHT, ""], MISTAKEN: mistake}
    head, body = (
        answers[NOISY].split('"""\n', 1)
        if '"""\n' in answers[NOISY]
        else answers[NOISY].split(":\n", 1)
    )
    answers[NOISY] = head + ('"""\n' if '"""\n' in answers[NOISY] else ":\n") + NOISE + body
    for cell in exercise_cells(release):
        if cell.name in answers:
            release.cells[cell.index].source = answers[cell.name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / UNIT).mkdir()
    handed_in = tmp_path / UNIT / f"{NAME}.ipynb"
    nbformat.write(release, handed_in)
    course.coursedir.assignment_id = UNIT
    ExchangeSubmit(
        coursedir=course.coursedir, authenticator=course.authenticator, parent=course
    ).start()  # `nbgrader submit`
    assert course.collect(UNIT)["success"]
    student = next(path.name for path in (folder / "submitted").iterdir())
    done = course.autograde(UNIT, student)
    assert done["success"], done.get("log") or done.get("error")
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        submission = gradebook.find_submission(UNIT, student)
        points = {
            grade.name.removesuffix("-check"): (grade.auto_score, grade.max_score)
            for notebook in submission.notebooks
            for grade in notebook.grades
        }
    capsys.readouterr()
    check_notebooks([handed_in], as_json=True, seed=5)
    ours = {
        row["exercise"]: row["points"]
        for row in json.loads(capsys.readouterr().out)
        if row["exercise"] in points
    }
    assert (
        {name: score for name, (score, _) in points.items()}
        == ours
        == {NOISY: 3, MISTAKEN: 0, STUB: 0}
    )
    assert {name: most for name, (_, most) in points.items()} == {
        name: find_exercise(name).points for name in ours
    }
