"""What a learner has got right so far."""

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


def show_progress() -> None:
    """Print each exercise's last outcome (right stays, whatever crashes later) and best points, the lessons' questions, and the total over the whole course."""
    last: dict[str, str] = {}
    best: dict[str, float] = {}
    for record in read_records("progress"):
        name = record["exercise"]
        # A crash says nothing of the answer that was right: another call, or another notebook, may have led to it.
        if not (record["outcome"] == CRASHED and last.get(name) == RIGHT):
            last[name] = record["outcome"] + (f": {record['mistake']}" if record["mistake"] else "")
        best[name] = max(best.get(name, 0), record["points"])
    exercises = all_exercises().values()
    table = Table("lesson", "exercise", "last outcome", "best points")
    for exercise in exercises:
        table.add_row(
            exercise.notebook,
            exercise.name,
            last.get(exercise.name, NOT_ATTEMPTED),
            f"{best.get(exercise.name, 0)} of {exercise.points}",
        )
    right = sum(best.get(exercise.name, 0) == exercise.points for exercise in exercises)
    points = sum(best.get(exercise.name, 0) for exercise in exercises)
    console = Console()
    console.print(table)
    first = [record["right"] for record in read_records("questions") if record.get("first")]
    if first:
        console.print(f"{sum(first)} of {len(first)} questions right at the first try.")
    console.print(
        f"{right} of {len(exercises)} exercises right, {points} of {sum(exercise.points for exercise in exercises)} points."
    )
