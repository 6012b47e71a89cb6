"""A made-up class of three that has been graded, for tests of what is handed back."""

import csv
from datetime import datetime

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG, Verdict
from trainlean.grading.gradebook import write_gradebook
from trainlean.grading.plan import Graded
from trainlean.grading.rows import lessons_due, rows_of
from trainlean.grading.submissions import File, Submission


def exercise(name, points, notebook):
    return Exercise(
        name,
        points,
        probe=None,
        oracle=None,
        mistakes=(),
        hints=("Which one?", "This."),
        also_right=(),
        notebook=notebook,
    )


EXERCISES = {
    e.name: e
    for e in (
        exercise("one", 3, "1_unit/1_a"),
        exercise("two", 2, "1_unit/1_a"),
        exercise("three", 5, "1_unit/2_b"),
        exercise("not_due", 9, "2_unit/1_c"),
    )
}


def verdict(name, outcome, **more):
    e = EXERCISES[name]
    return Verdict(
        name,
        e.notebook,
        outcome,
        e.points if outcome == RIGHT else 0,
        e.points,
        f"What was seen of {name}.",
        **more,
    )


def handed_in(
    learner, *outcomes, where="a.ipynb", when=datetime(2026, 11, 20, 12), user="", late=False
):
    """A submission of one notebook, and how it was graded: (exercise, outcome) pairs."""
    submission = Submission(
        learner, [File(f"{learner}/{where}", when, bytes)], user=user, marked_late=late
    )
    verdicts = tuple(item if isinstance(item, Verdict) else verdict(*item) for item in outcomes)
    return submission, Graded(
        learner, f"{learner}/{where}", "", "", verdicts, when and when.isoformat()
    )


def rows_for(*pairs, late=None):
    graded = [one for _, one in pairs]
    lessons, _ = lessons_due(graded, EXERCISES)
    return rows_of([submission for submission, _ in pairs], graded, lessons, late)


def exercises_of(rows):
    """The exercises that anybody has a verdict on."""
    return [e for e in EXERCISES.values() if any(e.name in row.verdicts for row in rows)]


CLASS = (
    handed_in("Ada Lovelace", ("one", RIGHT), ("two", RIGHT), user="11"),
    handed_in(
        "Bob Ünal",
        ("one", RIGHT),
        verdict(
            "two", WRONG, mistake="off by one", why="It starts at 0.", hint="Where does it start?"
        ),
        user="12",
    ),
    handed_in("=1+2", ("one", CRASHED), ("two", NOT_ATTEMPTED), user="13"),
)


def table_of(path):
    return list(csv.DictReader(path.open(encoding="utf-8")))


def book(tmp_path, rows, manual=None):
    path = tmp_path / "grades.csv"
    write_gradebook(path, rows, exercises_of(rows), manual or {})
    return path
