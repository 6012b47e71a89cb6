"""What every format of a learning management system (LMS) is made of."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trainlean.grading.names import name_keys
from trainlean.grading.sheets import Sheet, read_sheet

# The command reads its options off the formats, and must start without numpy.
if TYPE_CHECKING:
    from trainlean.exercises.exercise import Exercise
    from trainlean.grading.rows import Row


@dataclass(frozen=True)
class Results:
    """A class, graded: what everything that is handed back is made from."""

    output: Path  # the gradebook
    rows: "list[Row]"  # of all learners, those of an earlier gradebook last
    submitted: "list[Row]"  # of those who handed in something this time
    exercises: "list[Exercise]"  # that are due
    footer: str  # the seed and what protected the run

    @property
    def possible(self) -> int:
        """The points of all exercises that are due."""
        return sum(exercise.points for exercise in self.exercises)

    def beside(self, ending: str) -> Path:
        """A file or folder that belongs to the gradebook."""
        return self.output.with_name(self.output.stem + ending)


@dataclass(frozen=True)
class Written:
    """What a format has written, and the learners for whom it had no place."""

    path: Path
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format(ABC):
    """What one LMS is handed back. Its fields are its options of `trainlean grade`: `path` is `--OPTION`, another is `--OPTION-FIELD`."""

    name: ClassVar[str]  # as people call the LMS
    option: ClassVar[str]

    path: Path

    def check(self) -> None:
        """CourseError where something it needs is not there; called before anything is run."""
        return

    @abstractmethod
    def write(self, results: Results) -> Written:
        """Write it. CourseError where a file it needs has another form than the LMS gives it."""


@dataclass(frozen=True)
class Form(Format):
    """A table that the LMS exports, with a line for each learner, filled in as `grades_OPTION.csv`."""

    def check(self) -> None:
        """CourseError where the exported table is not there, or is none of this LMS."""
        self.writer(self._read().table, 1)

    def write(self, results: Results) -> Written:
        """Write the filled in table beside the gradebook. CourseError where it is none of this LMS."""
        target = results.beside(f"_{self.option}.csv")
        return Written(target, self.fill(target, results.rows, results.possible))

    def fill(self, target: Path, rows: "list[Row]", possible: float) -> tuple[str, ...]:
        """Write the table, as its file was written, with the rows' points out of `possible`; returns the learners that are not in it."""
        sheet = self._read()
        write_line = self.writer(sheet.table, possible)
        found = set()
        for line, row in match(sheet.table, rows, self.keys):
            write_line(line, row)
            found.add(row.learner)
        sheet.write(target, safe=False)
        return tuple(row.learner for row in rows if row.learner not in found)

    def _read(self) -> Sheet:
        # Excel's usual ones: a number finds a learner whose name is read wrongly, and what is written back is what was read.
        sheet = read_sheet(self.path, ("cp1252", "latin-1"))
        width = len(sheet.table[0])
        sheet.table = [line + [""] * (width - len(line)) for line in sheet.table]  # some are short
        return sheet

    @abstractmethod
    def writer(self, table: list[list[str]], possible: float) -> "Callable[[list[str], Row], None]":
        """What fills in a learner's line. CourseError where the table is none of this LMS."""

    @abstractmethod
    def keys(self, values: dict[str, str]) -> tuple[str, list[str]]:
        """The number by which the LMS knows the learner of a line, and names that a folder may have in its place."""


def match(table: list[list[str]], rows: "list[Row]", keys: Callable) -> "list[tuple[list, Row]]":
    """(line, row) for every line of a table, its header left out, that is exactly one learner's.

    The LMS's number decides. A name does only for learners of whom no line has the number, where it is the name of one line
    and one learner; a number that two learners carry decides nothing.
    """
    header, *lines = table
    by_number: dict[str, list[Row]] = {}
    for row in rows:
        by_number.setdefault(row.user, []).append(row)
    known = [keys(dict(zip(header, line, strict=False))) for line in lines]
    numbers = {number for number, _ in known if number}
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if not row.user or row.user not in numbers:
            by_name.setdefault(name_keys(row.learner)[0], []).append(row)
    found = []
    for line, (number, names) in zip(lines, known, strict=True):
        called = (
            [row for key in name_keys(name) if key for row in by_name.get(key, [])]
            for name in names
        )
        matches = number and by_number.get(number) or next(filter(None, called), [])
        if len(matches) == 1:
            found.append((line, matches[0]))
    times = Counter(id(row) for _, row in found)
    return [(line, row) for line, row in found if times[id(row)] == 1]


def scaled(points: float, possible: float, out_of: float) -> str:
    """Points of an exercise sheet of `possible` as points of an assignment `out_of` so many."""
    return f"{round(points * out_of / possible, 2) if possible else 0:g}"
