"""What a learner has got right so far."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from trainlean.exercises.finding import all_exercises
from trainlean.exercises.verdicts import CANNOT, CRASHED, NOT_ATTEMPTED, RIGHT, Verdict
from trainlean.workspace import append_record, read_records


def record_verdict(verdict: Verdict) -> None:
    """Keep an outcome; what was not attempted or cannot be checked has none."""
    if verdict.outcome in (NOT_ATTEMPTED, CANNOT):
        return
    kept = {
        key: getattr(verdict, key)
        for key in ("notebook", "exercise", "outcome", "mistake", "points")
    }
    append_record("progress", kept | {"created": datetime.now(UTC).isoformat(timespec="seconds")})


@dataclass(frozen=True)
class Standing:
    """Where a learner stands with an exercise: the last outcome, the mistake's name where it has one, the best points."""

    outcome: str = NOT_ATTEMPTED
    mistake: str = ""
    points: float = 0


def standings() -> dict[str, Standing]:
    """By its name, every exercise that was ever answered. Right stays right, whatever crashes later."""
    found: dict[str, Standing] = {}
    for record in read_records("progress"):
        before = found.get(record["exercise"], Standing())
        points = max(before.points, record["points"])
        # A crash says nothing of the answer that was right: another call, or another notebook, may have led to it.
        if record["outcome"] == CRASHED and before.outcome == RIGHT:
            found[record["exercise"]] = replace(before, points=points)
        else:
            found[record["exercise"]] = Standing(record["outcome"], record["mistake"] or "", points)
    return found


def show_progress() -> None:
    """Print each exercise's last outcome and best points, the lessons' questions, and the total over the whole course."""
    found = standings()
    exercises = all_exercises().values()
    table = Table("lesson", "exercise", "last outcome", "best points")
    right = 0
    points: float = 0
    for exercise in exercises:
        mine = found.get(exercise.name, Standing())
        right += mine.points == exercise.points
        points += mine.points
        table.add_row(
            exercise.notebook,
            exercise.name,
            mine.outcome + (f": {mine.mistake}" if mine.mistake else ""),
            f"{mine.points} of {exercise.points}",
        )
    console = Console()
    console.print(table)
    first = [record["right"] for record in read_records("questions") if record.get("first")]
    if first:
        console.print(f"{sum(first)} of {len(first)} questions right at the first try.")
    console.print(
        f"{right} of {len(exercises)} exercises right, {points} of {sum(exercise.points for exercise in exercises)} points."
    )
