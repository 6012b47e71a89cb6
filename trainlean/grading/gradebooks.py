"""What a class is handed back: the gradebook, the forms that Canvas, Moodle and Gradescope read, and a page for each learner."""

import csv
import html
import importlib.util
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.feedback import OUTCOME_COLOURS
from trainlean.exercises.verdicts import NOT_ATTEMPTED, RIGHT, Verdict
from trainlean.grading.plan import Graded
from trainlean.grading.submissions import Submission
from trainlean.workspace import CourseError, write_whole

MANUAL = (
    "adjustment",
    "comment",
)  # the instructor's columns: read before the gradebook is written again


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
        return round(self.counted + _number(self.manual.get("adjustment", "")), 4)


# ---------------------------------------------------------------- rows


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


# ---------------------------------------------------------------- the gradebook


def read_manual(path: Path) -> dict[str, dict[str, str]]:
    """The instructor's own columns of an existing gradebook, by learner: adjustment, comment, and any that were added."""
    if not Path(path).exists():
        return {}
    table = _read_csv(path)
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
        _number(values.get("adjustment", ""), f"{path}: adjustment of {values.get('learner', '')}")
        kept[_plain_cell(values.get("learner", ""))] = {
            name: _plain_cell(values.get(name, "")) for name in own
        }
    return kept


def write_gradebook(
    path: Path, rows: list[Row], exercises: list[Exercise], manual: dict[str, dict[str, str]]
) -> None:
    """A row per learner. `rows` get their manual columns, and a row more for each learner of the earlier gradebook who has
    some of those and handed in nothing this time."""
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
    table = [
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
    _write_csv(path, table)


def _number(text: str, where: str = "") -> float:
    text = str(text).strip().replace(",", ".")
    try:
        return float(text) if text else 0.0
    except ValueError:
        if where:
            raise CourseError(f"{where} is {text!r}; expected a number or nothing.") from None
        return 0.0


def _read_csv(path: Path) -> list[list[str]]:
    """The lines of a CSV file as spreadsheets write it: with a mark of its encoding, and semicolons where commas are decimal."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise CourseError(f"There is no {path}; check the path.") from None
    except (UnicodeDecodeError, OSError) as error:
        raise CourseError(
            f"{path} cannot be read as UTF-8 text ({type(error).__name__}); save it as CSV UTF-8."
        ) from None
    first = text.split("\n", 1)[0]
    delimiter = (
        ";"
        if first.count(";") > first.count(",")
        else "\t"
        if first.count("\t") > first.count(",")
        else ","
    )
    table = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    if not table:
        raise CourseError(f"{path} is empty.")
    return table


def _write_csv(path: Path, table: list[list], safe: bool = True) -> None:
    """A table as a CSV file. `safe`: without cells that a spreadsheet would take for formulas; a form of another system keeps its own."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [[_safe_cell(cell) if safe else cell for cell in line] for line in table]
    )
    write_whole(path, out.getvalue())


def _safe_cell(cell: object) -> object:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    text = str(cell)
    if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not re.fullmatch(
        r"[+-]?\d+([.,]\d+)?", text
    ):
        return f"'{text}"
    return cell


def _plain_cell(text: str) -> str:
    return text[1:] if text[:2] in ("'=", "'+", "'-", "'@") else text


# ---------------------------------------------------------------- Canvas, Moodle, Gradescope


def fill_canvas(
    export: Path, target: Path, rows: list[Row], possible: float, column: str | None = None
) -> list[str]:
    """Canvas's exported gradebook with the assignment's column filled in; returns the learners that are not in it."""
    table = _read_csv(export)
    header = table[0]
    assignments = [name for name in header if re.search(r"\(\d+\)$", name)]
    matching = (
        [name for name in assignments if column and column.casefold() in name.casefold()]
        if column
        else assignments
    )
    if len(matching) != 1:
        raise CourseError(
            f"{export}: which column is the assignment? Name one with --canvas-column: {', '.join(assignments) or 'there is none'}."
        )
    place = header.index(matching[0])
    points_line = next(
        (line for line in table[1:4] if line and line[0].strip() == "Points Possible"), None
    )
    out_of = _number(points_line[place]) if points_line and points_line[place].strip() else possible
    missing = _fill(
        table,
        rows,
        lambda values: (
            values.get("ID", "").strip(),
            [values.get("SIS Login ID", ""), values.get("Student", "")],
        ),
        lambda line, row: line.__setitem__(place, _scaled(row.total, possible, out_of)),
    )
    _write_csv(target, table, safe=False)
    return missing


def fill_moodle(worksheet: Path, target: Path, rows: list[Row], possible: float) -> list[str]:
    """Moodle's grading worksheet with grades and, where there is none yet, feedback; returns the learners that are not in it."""
    table = _read_csv(worksheet)
    header = table[0]
    if "Identifier" not in header or "Grade" not in header:
        raise CourseError(
            f"{worksheet} is no grading worksheet; download it from the assignment: View all submissions > Download grading worksheet."
        )
    places = {name: header.index(name) for name in header}

    def write(line, row):
        if "Grade can be changed" in places and line[
            places["Grade can be changed"]
        ].strip().casefold() in ("no", "nein", "non"):
            return
        out_of = _number(line[places["Maximum grade"]]) if "Maximum grade" in places else possible
        line[places["Grade"]] = _scaled(row.total, possible, out_of or possible)
        if "Feedback comments" in places and not line[places["Feedback comments"]].strip():
            line[places["Feedback comments"]] = _feedback_line(row)

    missing = _fill(
        table,
        rows,
        lambda values: (
            re.sub(r"\D", "", values.get("Identifier", "")),
            [values.get("Email address", ""), values.get("Full name", "")],
        ),
        write,
    )
    _write_csv(target, table, safe=False)
    return missing


def _fill(table: list[list[str]], rows: list[Row], keys: Callable, write: Callable) -> list[str]:
    header = table[0]
    by_number = {row.user: [row] for row in rows if row.user}
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(_keys(row.learner)[0], []).append(row)
    found = set()
    for line in table[1:]:
        line += [""] * (len(header) - len(line))
        values = dict(zip(header, line, strict=False))
        if values.get("Student", "").strip() == "Points Possible":
            continue
        number, names = keys(values)
        called = (
            [row for key in _keys(name) if key for row in by_name.get(key, [])] for name in names
        )
        matches = by_number.get(number) or next(filter(None, called), [])
        if len(matches) == 1:
            write(line, matches[0])
            found.add(matches[0].learner)
    return [row.learner for row in rows if row.learner not in found]


def _keys(text: str) -> list[str]:
    """A name without what differs between systems: case, accents, punctuation, an address behind @.

    "Last, First" becomes lastfirst, as Canvas names files, and firstlast, as people name folders.
    """
    if "," in text:
        last, first = text.split(",", 1)
        return [
            *_keys(f"{last}{first.replace(',', '')}"),
            *_keys(f"{first.replace(',', '')}{last}"),
        ]
    letters = unicodedata.normalize("NFKD", text.split("@")[0])
    return ["".join(letter for letter in letters.casefold() if letter.isalnum())]


def _scaled(points: float, possible: float, out_of: float) -> str:
    return f"{round(points * out_of / possible, 2) if possible else 0:g}"


def _feedback_line(row: Row) -> str:
    lines = [
        f"{verdict.exercise}: {verdict.outcome}, {verdict.points} of {verdict.possible} points."
        for verdict in row.verdicts.values()
    ]
    return " ".join([*lines, *row.reasons, row.manual.get("comment", "")]).strip()


def write_gradescope(folder: Path, rows: list[Row], exercises: list[Exercise], footer: str) -> None:
    """results.json as Gradescope's autograder wants it: directly in the folder for one learner, in a folder each for several.

    `footer` says what protected the run, as on the learners' pages.
    """
    for row, place in zip(rows, _places(rows), strict=True):
        tests = [
            _gradescope_test(exercise, row.verdicts.get(exercise.name)) for exercise in exercises
        ]
        said = " ".join(filter(None, [*row.reasons, row.manual.get("comment", ""), footer]))
        result = {
            "score": row.total,
            "max_score": sum(exercise.points for exercise in exercises),
            "output": said,
            "tests": tests,
        }
        where = Path(folder) if len(rows) == 1 else Path(folder) / place
        write_whole(where / "results.json", json.dumps(result, indent=1, ensure_ascii=False))


def _gradescope_test(exercise: Exercise, verdict: Verdict | None) -> dict:
    outcome = verdict.outcome if verdict else NOT_ATTEMPTED
    test = {
        "name": exercise.name,
        "score": verdict.points if verdict else 0,
        "max_score": exercise.points,
        "status": "passed" if outcome == RIGHT else "failed",
    }
    return test | {"output": str(verdict) if verdict else "There is no readable answer."}


# ---------------------------------------------------------------- a page for each learner

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 760px; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.05rem; margin: 1.6rem 0 .4rem }}
.exercise {{ border-left: 4px solid; padding: .3rem .9rem; margin: .7rem 0 }} .exercise p {{ margin: .2rem 0 }}
pre {{ background: #f3f4f6; padding: .5rem; overflow-x: auto; white-space: pre-wrap }} summary {{ cursor: pointer }} footer {{ color: #6b7280; margin-top: 2rem; font-size: .85rem }}
</style>
<h1>{title}</h1>
{body}
<footer>{footer}</footer></html>
"""


def write_feedback(folder: Path, rows: list[Row], exercises: list[Exercise], footer: str) -> None:
    """An HTML page for each learner, whole in itself: message, what was seen, why, a hint; no tests' source."""
    for row, place in zip(rows, _places(rows), strict=True):
        write_whole(Path(folder) / f"{place}.html", feedback_page(row, exercises, footer))


def feedback_page(row: Row, exercises: list[Exercise], footer: str = "") -> str:
    """The page of one learner."""
    possible = sum(exercise.points for exercise in exercises)
    parts = [f"<p><b>{row.total:g} of {possible} points</b></p>"]
    if row.counted != row.points:
        parts.append(
            f"<p>{row.points:g} points were earned; {row.counted:g} count after the late policy.</p>"
        )
    if _number(row.manual.get("adjustment", "")):
        parts.append(
            f"<p>Adjustment by the instructor: {_number(row.manual['adjustment']):+g}.</p>"
        )
    if row.manual.get("comment"):
        parts.append(f"<p>Comment: {html.escape(row.manual['comment'])}</p>")
    parts += [f"<p>{html.escape(reason)}</p>" for reason in row.reasons]
    for lesson in dict.fromkeys(exercise.notebook for exercise in exercises):
        parts.append(f"<h2>{html.escape(lesson)}</h2>")
        parts += [
            _exercise_part(exercise, row.verdicts.get(exercise.name))
            for exercise in exercises
            if exercise.notebook == lesson
        ]
    return PAGE.format(
        title=html.escape(row.learner), body="\n".join(parts), footer=html.escape(footer)
    )


def _exercise_part(exercise: Exercise, verdict: Verdict | None) -> str:
    outcome = verdict.outcome if verdict else NOT_ATTEMPTED
    colour = OUTCOME_COLOURS[outcome]
    points = verdict.points if verdict else 0
    lines = [
        f'<p><b style="color:{colour}">{outcome.capitalize()}</b> · {exercise.name} · {points} of {exercise.points} points</p>'
    ]
    if verdict and outcome != RIGHT:
        lines.append(f"<p>{html.escape(verdict.message)}</p>")
        if verdict.mistake:
            lines.append(
                f"<p><b>{html.escape(verdict.mistake.capitalize())}.</b> {html.escape(verdict.why)}</p>"
            )
        if outcome != NOT_ATTEMPTED:
            folded = {
                "A hint": html.escape(verdict.hint),
                "Where it was raised": _pre(verdict.traceback),
                "What your answer printed": _pre(verdict.printed[-2000:]),
            }
            lines += [
                f"<details><summary>{title}</summary>{text}</details>"
                for title, text in folded.items()
                if text
            ]
    return f'<div class="exercise" style="border-color:{colour}">{"".join(lines)}</div>'


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""


def _places(rows: list[Row]) -> list[str]:
    """A file name for each learner: letters as they are, everything that a file system or shell minds as _; no two alike."""
    names: dict[str, str] = {}
    for row in rows:
        name = plain = re.sub(r"[^\w .@-]", "_", row.learner).strip(" .")[:80] or "learner"
        number = 1
        while name.casefold() in names:
            number += 1
            name = f"{plain}_{number}"
        names[name.casefold()] = name
    return list(names.values())
