"""The gradebook, a CSV file: a row for each learner, and the instructor's own columns, which are kept."""

from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.grading.rows import Row
from trainlean.grading.sheets import number, plain_cell, read_csv, write_csv
from trainlean.workspace import CourseError

MANUAL = (
    "adjustment",
    "comment",
)  # the instructor's columns: read before the gradebook is written again


def read_manual(path: Path) -> dict[str, dict[str, str]]:
    """The instructor's own columns of an existing gradebook, by learner: adjustment, comment, and any that were added.

    CourseError where the file is no gradebook, or an adjustment is no number.
    """
    if not Path(path).exists():
        return {}
    table = read_csv(path)
    if "learner" not in table[0]:
        raise CourseError(
            f"{path} has no column learner, so it is no gradebook of this course; give another --output."
        )
    header = table[0]
    own = (
        [name for name in header[header.index("reasons") + 1 :] if name]
        if "reasons" in header
        else list(MANUAL)
    )
    kept = {}
    for line in table[1:]:
        values = dict(zip(header, line, strict=False))
        number(values.get("adjustment", ""), f"{path}: adjustment of {values.get('learner', '')}")
        kept[plain_cell(values.get("learner", ""))] = {
            name: plain_cell(values.get(name, "")) for name in own
        }
    return kept


def write_gradebook(
    path: Path, rows: list[Row], exercises: list[Exercise], manual: dict[str, dict[str, str]]
) -> None:
    """A row per learner.

    `rows` get their manual columns, and a row more for each learner of the earlier gradebook who has some of those and
    handed in nothing this time.
    """
    lessons = list(dict.fromkeys(exercise.notebook for exercise in exercises))
    own = list(dict.fromkeys([*MANUAL, *(name for values in manual.values() for name in values)]))
    here = {row.learner for row in rows}
    for row in rows:
        row.manual = manual.get(row.learner, {})
    for learner in sorted(set(manual) - here):
        if any(manual[learner].values()):
            rows.append(
                Row(learner, reasons=["There is no submission this time."], manual=manual[learner])
            )
    possible = sum(exercise.points for exercise in exercises)
    table: list[list] = [
        [
            "learner",
            "submitted",
            *(exercise.name for exercise in exercises),
            *lessons,
            "points",
            "total",
            "possible",
            "reasons",
            *own,
        ]
    ]
    for row in rows:
        earned = {name: verdict.points for name, verdict in row.verdicts.items()}
        by_lesson = [
            sum(
                earned.get(exercise.name, 0)
                for exercise in exercises
                if exercise.notebook == lesson
            )
            for lesson in lessons
        ]
        when = row.submitted.isoformat(sep=" ", timespec="minutes") if row.submitted else ""
        line = [
            row.learner,
            when,
            *(earned.get(exercise.name, 0) for exercise in exercises),
            *by_lesson,
            f"{row.counted:g}",
            f"{row.total:g}",
            possible,
        ]
        table.append([*line, " ".join(row.reasons), *(row.manual.get(name, "") for name in own)])
    write_csv(path, table)
