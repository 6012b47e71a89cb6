"""A row for each learner: the verdicts that count, why anything is missing, and what the late policy leaves."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from numbers import Real
from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.verdicts import Verdict
from trainlean.grading.judging import clean_text
from trainlean.grading.plan import Graded
from trainlean.grading.sheets import number
from trainlean.grading.submissions import Submission
from trainlean.workspace import CourseError

REASONS, REASON_LETTERS = 20, 1000  # of a row; a spreadsheet's cell takes 32,767 letters in all
SHOWN_LETTERS = 200  # of what a late policy gave or raised
FAILS = (Exception, SystemExit)  # how an instructor's file may fail without an end of the run


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
    called: str = ""  # the name as it was handed in; `learner` is nobody else's

    @property
    def total(self) -> float:
        """What counts: the points after the late policy, and the instructor's adjustment."""
        return round(self.counted + number(self.manual.get("adjustment", "")), 4)


def lessons_due(
    graded: Iterable[Graded], exercises: dict[str, Exercise], named: bool = False
) -> tuple[list[str], str]:
    """The lessons that count, in course order, and a sentence how that was found out.

    All lessons of the exercises where they were `named`; else those that most learners handed in, so that no learner alone
    makes a lesson due for everybody. Where no lesson has a majority, those that were handed in most often.
    """
    every = list(dict.fromkeys(exercise.notebook for exercise in exercises.values()))
    if named:
        return every, ""
    learners: dict[str, set[str]] = {lesson: set() for lesson in every}
    for one in graded:
        for lesson in one.lessons:
            learners[lesson].add(one.learner)
    total = len(set().union(*learners.values()))
    if not total:
        return [], ""
    counts = {lesson: len(who) for lesson, who in learners.items() if who}
    due = [lesson for lesson, count in counts.items() if 2 * count > total]
    due = due or [lesson for lesson, count in counts.items() if count == max(counts.values())]

    def told(lessons):
        return ", ".join(f"{lesson} ({counts[lesson]} of {total})" for lesson in lessons)

    others = [lesson for lesson in counts if lesson not in due]
    but = f" Not due, and not counted: {told(others)}." if others else ""
    return (
        due,
        f"Due is what most learners handed in: {told(due)}.{but} Is that right? If not, name what is due with --lesson.",
    )


def rows_of(
    submissions: Iterable[Submission],
    graded: Iterable[Graded],
    lessons: list[str],
    late: Callable | None = None,
) -> list[Row]:
    """One row for each learner, over the lessons that are due; of several notebooks for one of them the newest counts, and the row says so."""
    by_learner: dict[str, list[Graded]] = {}
    for one in graded:
        by_learner.setdefault(one.learner, []).append(one)
    rows = []
    for submission in submissions:
        row = Row(
            submission.learner,
            submission.user,
            submission.submitted,
            submission.marked_late,
            reasons=[*submission.notes, *submission.problems],
            called=submission.called,
        )
        chosen: dict[str, Graded] = {}
        ages = {file.where: file.age for file in submission.notebooks}
        mine = [one for one in by_learner.get(submission.learner, []) if one.where in ages]
        for one in sorted(mine, key=lambda one: ages[one.where]):
            if one.problem:
                row.reasons.append(one.problem)
            for lesson in (*one.lessons, *one.not_due):
                if lesson not in lessons:
                    row.reasons.append(
                        f"{one.where} holds {lesson}, which is not due and does not count."
                    )
                    continue
                if lesson in chosen:
                    row.reasons.append(
                        f"{chosen[lesson].where} was replaced by {one.where}: both hold {lesson}, and the newer one counts."
                    )
                chosen[lesson] = one
        for lesson in lessons:
            if lesson not in chosen:
                row.reasons.append(f"There is no readable notebook of {lesson}.")
        counting = {one.where: one.notes for one in chosen.values()}
        row.reasons += [note for notes in counting.values() for note in notes]
        for lesson, one in chosen.items():
            row.verdicts |= {
                verdict.exercise: verdict for verdict in one.verdicts if verdict.notebook == lesson
            }
        row.points = row.counted = sum(verdict.points for verdict in row.verdicts.values())
        if late is not None:
            _apply(late, row)
        row.reasons = shortened(row.reasons)
        rows.append(row)
    return rows


def shortened(reasons: list[str]) -> list[str]:
    """Sentences as they fit into a cell: of many the first and the last, of a long one its beginning and its end."""
    half, few = REASON_LETTERS // 2, REASONS // 2
    if len(reasons) > REASONS:
        left_out = f"({len(reasons) - 2 * few:,} more reasons are left out.)"
        reasons = [*reasons[:few], left_out, *reasons[-few:]]
    return [
        one if len(one) <= REASON_LETTERS else f"{one[:half]} ... {one[-half:]}" for one in reasons
    ]


def exercises_due(exercises: dict[str, Exercise], lessons: list[str]) -> list[Exercise]:
    """The exercises of the lessons that are due, in course order."""
    return [exercise for exercise in exercises.values() if exercise.notebook in lessons]


def load_late_policy(path: Path | None) -> Callable | None:
    """The function `late(points, submission)` of an instructor's file; `submission` has learner, submitted and marked_late.

    CourseError where the file is not there, cannot be loaded or has no such function.
    """
    if path is None:
        return None
    if not Path(path).is_file():
        raise CourseError(
            f"There is no {path}; a late policy is a Python file with a function late(points, submission)."
        )
    spec = importlib.util.spec_from_file_location("late_policy", path)
    if spec is None or spec.loader is None:
        raise CourseError(
            f"{path} does not end in .py; a late policy is a Python file, so rename it."
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FAILS as error:
        said = _in_words(str, error)
        raise CourseError(f"{path} cannot be loaded: {type(error).__name__}: {said}.") from None
    if not callable(getattr(module, "late", None)):
        raise CourseError(f"{path} has no function late(points, submission).")
    return module.late


def _apply(late: Callable, row: Row) -> None:
    """What counts of a row's points; where the policy fails they count in full, and the row says why."""
    try:
        points = late(row.points, row)
    except FAILS as error:
        said = f"failed ({type(error).__name__}: {_in_words(str, error)})"
    else:
        counted = _number(points)
        if counted is not None and 0 <= counted <= row.points:
            row.counted = round(counted, 4)
            return
        said = f"gave {_in_words(repr, points)}, and not a number from 0 to {row.points:g}"
    row.reasons.append(f"The late policy {said} for this row; its points count in full.")


def _number(value: object) -> float | None:
    """A number of any kind (numpy's and decimal's, too) as a float; None for what is none, or is larger than any float."""
    try:
        if isinstance(value, Real | Decimal) and not isinstance(value, bool):
            return float(value)
    except FAILS:  # what a policy gives may refuse whatever is asked of it
        pass
    return None


def _in_words(form: Callable[[object], str], value: object) -> str:
    """`str` or `repr` of anything, as a part of one line; its type where it has no words (10**5000 has too many digits)."""
    try:
        words, half = form(value), SHOWN_LETTERS // 2
    except FAILS:
        return f"a value of type {type(value).__name__}"
    if len(words) > SHOWN_LETTERS:
        words = f"{words[:half]} ... {words[-half:]}"
    return " ".join(clean_text(words).split())
