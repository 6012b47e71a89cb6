"""What a learner has got right so far."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from trainlean.exercises.finding import all_exercises
from trainlean.exercises.verdicts import CANNOT, CRASHED, NOT_ATTEMPTED, RIGHT, Verdict
from trainlean.workspace import keep_record, read_records


def is_an_outcome(verdict: Verdict) -> bool:
    """Whether progress has it; what was not attempted or cannot be checked has no outcome."""
    return verdict.outcome not in (NOT_ATTEMPTED, CANNOT)


def record_verdict(verdict: Verdict) -> str:
    """Keep an outcome; where it could not be kept, why, else an empty string."""
    if not is_an_outcome(verdict):
        return ""
    kept = {
        key: getattr(verdict, key)
        for key in ("notebook", "exercise", "outcome", "mistake", "points")
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return keep_record("progress", kept | {"created": now})


@dataclass(frozen=True)
class Standing:
    """Where a learner stands with an exercise: the last outcome, the mistake's name where it has one, the best points, whether it was right once."""

    outcome: str = NOT_ATTEMPTED
    mistake: str = ""
    points: float = 0
    right: bool = False

    def of(self, possible: float) -> float:
        """The points that count, of so many. An exercise may have given others when it was recorded: right is right."""
        return possible if self.right else max(0, min(self.points, possible))


def standings() -> dict[str, Standing]:
    """By its name, every exercise that was ever answered. Right stays right, whatever crashes later."""
    found: dict[str, Standing] = {}
    for record in read_records("progress", exercise=str, outcome=str, points=float):
        before = found.get(record["exercise"], Standing())
        points = max(before.points, record["points"])
        # A crash says nothing of the answer that was right: another call, or another notebook, may have led to it.
        if record["outcome"] == CRASHED and before.outcome == RIGHT:
            found[record["exercise"]] = replace(before, points=points)
        else:
            found[record["exercise"]] = Standing(
                record["outcome"],
                str(record.get("mistake") or ""),
                points,
                before.right or record["outcome"] == RIGHT,
            )
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
        right += mine.right
        points += mine.of(exercise.points)
        table.add_row(
            exercise.notebook,
            exercise.name,
            mine.outcome + (f": {mine.mistake}" if mine.mistake else ""),
            f"{mine.of(exercise.points)} of {exercise.points}",
        )
    console = Console()
    console.print(table)
    answered = read_records("questions", kind=str, name=str)
    first = [record.get("right") is True for record in answered if record.get("first")]
    if first:
        console.print(f"{sum(first)} of {len(first)} questions right at the first try.")
    console.print(
        f"{right} of {len(exercises)} exercises right, {points} of {sum(exercise.points for exercise in exercises)} points."
    )
