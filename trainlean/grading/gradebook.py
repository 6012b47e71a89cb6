"""The gradebook, a CSV file: a row for each learner, and the instructor's own columns, which are kept."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.grading.names import alike
from trainlean.grading.rows import Row, shortened
from trainlean.grading.sheets import number, plain_cell, read_csv, write_csv
from trainlean.workspace import CourseError

MANUAL = (
    "adjustment",
    "comment",
)  # the instructor's columns: read before the gradebook is written again


def read_manual(path: Path) -> dict[str, dict[str, str]]:
    """The instructor's own columns of an existing gradebook, by learner: adjustment, comment, and any that were added.

    CourseError where the file is no gradebook, an adjustment is no number, or two lines of one learner do not say the same.
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
    kept: dict[str, dict[str, str]] = {}
    for line in table[1:]:
        values = dict(zip(header, line, strict=False))
        number(values.get("adjustment", ""), f"{path}: adjustment of {values.get('learner', '')}")
        # As learners' names are written here: spreadsheets and people leave blanks, and accents in two forms.
        learner = unicodedata.normalize("NFC", plain_cell(values.get("learner", ""))).strip()
        marks = {name: plain_cell(values.get(name, "")) for name in own}
        before = kept.get(learner, {}) if learner else {}
        if any(before.values()) and any(marks.values()) and marks != before:
            raise CourseError(
                f"{path} has two lines of {learner} that do not say the same; leave one of them."
            )
        if not any(before.values()):
            kept[learner] = marks
    return kept


def _names(row: Row) -> set[str]:
    """What a row's learner may be called in an earlier gradebook: beside learners of nearly the same name, or without them."""
    called = row.called or row.learner
    return {row.learner, called, f"{called} {row.user}".strip()}


# From the nearest to the furthest: how a line's name is read, and the names that a row has when it is read so.
READINGS: tuple[tuple[Callable[[str], str], Callable[[Row], set[str]]], ...] = (
    (str, lambda row: {row.learner}),
    (str, _names),
    (alike, lambda row: set(map(alike, _names(row)))),
)


def _whose(lines: Iterable[str], rows: list[Row]) -> tuple[dict[str, Row], dict[str, list[str]]]:
    """The row that each line of an earlier gradebook is for, by its name; and of those that are nobody's for certain, whose they may be."""
    found: dict[str, Row] = {}
    unsure: dict[str, list[str]] = {}
    left = list(lines)
    for read, names in READINGS:
        taken = {id(row) for row in found.values()}
        by_name: dict[str, list[Row]] = {}
        for row in rows:
            for name in names(row):
                by_name.setdefault(name, []).append(row)
        meant = {line: by_name.get(read(line), []) for line in left}
        wanted = Counter(id(row) for each in meant.values() for row in each)
        for line, each in meant.items():
            if len(each) == 1 and wanted[id(each[0])] == 1 and id(each[0]) not in taken:
                found[line] = each[0]
            elif each:
                unsure[line] = [row.learner for row in each]
        left = [line for line in left if not meant[line]]
    return found, unsure


def write_gradebook(
    path: Path, rows: list[Row], exercises: list[Exercise], manual: dict[str, dict[str, str]]
) -> list[str]:
    """A row per learner; returns a sentence for each line of the earlier gradebook whose learner is written otherwise.

    `rows` get their manual columns, and a row more for each learner of the earlier gradebook who has some of those and
    handed in nothing this time, or may be one of several.
    """
    lessons = list(dict.fromkeys(exercise.notebook for exercise in exercises))
    own = list(dict.fromkeys([*MANUAL, *(name for values in manual.values() for name in values)]))
    found, unsure = _whose(manual, rows)
    told = []
    for name, row in found.items():
        row.manual = manual[name]
        if name != row.learner and any(row.manual.values()):
            row.reasons.append(f'Adjustment and comment stood beside "{name}" in the gradebook.')
            told.append(f"{row.learner}: {row.reasons[-1]}")
    for name in sorted(set(manual) - set(found)):
        if not any(manual[name].values()):
            continue
        reason = "There is no submission this time."
        if name in unsure:
            others = " or ".join(shortened(unsure[name]))
            reason = f"No submission has just this name; if adjustment and comment are for {others}, move them there."
            told.append(f"{name}: {reason}")
        rows.append(Row(name, reasons=[reason], manual=manual[name]))
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
    return told
