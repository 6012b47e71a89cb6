"""Canvas: its exported gradebook, filled in to be imported again."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trainlean.grading.formats.format import Form, scaled
from trainlean.grading.sheets import number
from trainlean.workspace import CourseError

POINTS_LINE = (
    "Points Possible"  # the line before the learners', which tells the assignments' points
)


@dataclass(frozen=True)
class Canvas(Form):
    """Canvas's exported gradebook with the assignment's column filled in."""

    name = "Canvas"
    option = "canvas"

    path: Annotated[Path, typer.Option(help="the gradebook exported from Canvas, to fill in")]
    column: Annotated[str | None, typer.Option(help="the assignment's column in it")] = None

    def writer(self, table, possible):
        """What writes the points into the assignment's column. CourseError where not exactly one column may be it."""
        assignments = [name for name in table[0] if re.search(r"\(\d+\)$", name)]
        matching = (
            [name for name in assignments if self.column.casefold() in name.casefold()]
            if self.column
            else assignments
        )
        if len(matching) != 1:
            raise CourseError(
                f"{self.path}: which column is the assignment? Name one with --canvas-column: {', '.join(assignments) or 'there is none'}."
            )
        place = table[0].index(matching[0])
        points = next(
            (line for line in table[1:4] if line and line[0].strip() == POINTS_LINE), None
        )
        out_of = number(points[place]) if points and points[place].strip() else possible
        return lambda line, row: line.__setitem__(place, scaled(row.total, possible, out_of))

    def keys(self, values):
        """Canvas's ID, then login and name; nothing for the line of the points possible."""
        if values.get("Student", "").strip() == POINTS_LINE:
            return "", []
        return values.get("ID", "").strip(), [
            values.get("SIS Login ID", ""),
            values.get("Student", ""),
        ]
