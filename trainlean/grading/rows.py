"""A row for each learner: the verdicts that count, why anything is missing, and what the late policy leaves."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainlean.exercises.exercise import Exercise, Verdict
from trainlean.grading.plan import Graded
from trainlean.grading.sheets import number
from trainlean.grading.submissions import Submission
from trainlean.workspace import CourseError


@dataclass
class Row:
    """A learner's line: the verdict that counts for each exercise, and why anything is missing."""

    learner: str
    user: str = ""
    submitted: datetime | None = None
    marked_late: bool = False
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    points: float = 0.0  # as earned
    counted: float = 0.0  # after the late policy
    manual: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """What counts: the points after the late policy, and the instructor's adjustment."""
        return round(self.counted + number(self.manual.get("adjustment", "")), 4)


def rows_of(
    submissions: Iterable[Submission],
    graded: Iterable[Graded],
    exercises: dict[str, Exercise],
    late: Callable | None = None,
) -> list[Row]:
    """One row for each learner; of several notebooks for one lesson the newest counts, and the row says so."""
    by_learner: dict[str, list[Graded]] = {}
    for one in graded:
        by_learner.setdefault(one.learner, []).append(one)
    rows = []
    due = {
        verdict.exercise
        for group in by_learner.values()
        for one in group
        for verdict in one.verdicts
    }
    lessons = list(
        dict.fromkeys(exercise.notebook for name, exercise in exercises.items() if name in due)
    )
    for submission in submissions:
        row = Row(
            submission.learner,
            submission.user,
            submission.submitted,
            submission.marked_late,
            reasons=list(submission.problems),
        )
        chosen: dict[str, Graded] = {}
        names = {file.where for file in submission.notebooks}
        for one in sorted(
            by_learner.get(submission.learner, []), key=lambda one: (one.submitted or "", one.where)
        ):
            if one.where not in names:
                continue
            if one.problem:
                row.reasons.append(one.problem)
            for lesson in one.lessons:
                if lesson in chosen:
                    row.reasons.append(
                        f"{chosen[lesson].where} was replaced by {one.where}: both hold {lesson}, and the newer one counts."
                    )
                chosen[lesson] = one
        for lesson in lessons:
            if lesson not in chosen:
                row.reasons.append(f"There is no readable notebook of {lesson}.")
        for lesson, one in chosen.items():
            row.verdicts |= {
                verdict.exercise: verdict for verdict in one.verdicts if verdict.notebook == lesson
            }
        row.points = row.counted = sum(verdict.points for verdict in row.verdicts.values())
        if late is not None:
            row.counted = _after_policy(late, row)
        rows.append(row)
    return rows


def graded_exercises(rows: list[Row], exercises: dict[str, Exercise]) -> list[Exercise]:
    """The exercises that anybody was asked, in course order; all others are not due."""
    asked = {name for row in rows for name in row.verdicts}
    return [exercise for name, exercise in exercises.items() if name in asked]


def load_late_policy(path: Path | None) -> Callable | None:
    """The function `late(points, submission)` of an instructor's file; `submission` has learner, submitted and marked_late."""
    if path is None:
        return None
    if not Path(path).is_file():
        raise CourseError(
            f"There is no {path}; a late policy is a Python file with a function late(points, submission)."
        )
    spec = importlib.util.spec_from_file_location("late_policy", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CourseError(f"{path} cannot be loaded: {type(error).__name__}: {error}.") from None
    if not callable(getattr(module, "late", None)):
        raise CourseError(f"{path} has no function late(points, submission).")
    return module.late


def _after_policy(late: Callable, row: Row) -> float:
    try:
        points = late(row.points, row)
    except Exception as error:
        raise CourseError(
            f"The late policy failed for {row.learner}: {type(error).__name__}: {error}."
        ) from None
    if (
        isinstance(points, bool)
        or not isinstance(points, int | float)
        or not 0 <= points <= row.points
    ):
        raise CourseError(
            f"The late policy gave {points!r} for {row.learner}; expected a number from 0 to {row.points:g}."
        )
    return round(float(points), 4)
