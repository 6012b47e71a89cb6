"""Moodle: its grading worksheet, filled in to be uploaded again."""

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trainlean.grading.formats.format import Form, scaled
from trainlean.grading.sheets import number, safe_cell
from trainlean.workspace import CourseError


@dataclass(frozen=True)
class Moodle(Form):
    """Moodle's grading worksheet with grades and, where there is none yet, feedback."""

    name = "Moodle"
    option = "moodle"

    path: Annotated[Path, typer.Option(help="Moodle's grading worksheet, to fill in")]

    def writer(self, table, possible):
        """What writes grade and feedback, where Moodle lets them be changed. CourseError for a table without those columns."""
        places = {name: place for place, name in enumerate(table[0])}
        if "Identifier" not in places or "Grade" not in places:
            raise CourseError(
                f"{self.path} is no grading worksheet in English, with columns Identifier and Grade; download it from the assignment, with Moodle in English: View all submissions > Download grading worksheet."
            )

        def write(line, row):
            if "Grade can be changed" in places and line[
                places["Grade can be changed"]
            ].strip().casefold() in ("no", "nein", "non"):
                return
            out_of = (
                number(line[places["Maximum grade"]]) if "Maximum grade" in places else possible
            )
            line[places["Grade"]] = scaled(row.total, possible, out_of or possible)
            if "Feedback comments" in places and not line[places["Feedback comments"]].strip():
                line[places["Feedback comments"]] = _feedback(row)

        return write

    def keys(self, values):
        """The digits of Moodle's identifier, then address and name."""
        return re.sub(r"\D", "", values.get("Identifier", "")), [
            values.get("Email address", ""),
            values.get("Full name", ""),
        ]


def _feedback(row) -> str:
    lines = [
        f"{verdict.exercise}: {verdict.outcome}, {verdict.points} of {verdict.possible} points."
        for verdict in row.verdicts.values()
    ]
    text = " ".join([*lines, *row.reasons, row.manual.get("comment", "")]).strip()
    return safe_cell(html.escape(text, quote=False))  # type: ignore[return-value]  # text for text; Moodle takes the column for HTML
