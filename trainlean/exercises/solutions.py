"""Answers that are written as edits of an exercise's solution, which stands once, in authoring/."""

import re
from functools import cache
from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.notebooks.notebook import Place, nbgrader_mark, read_authored, read_notebook
from trainlean.notebooks.statements import (
    Handout,
    Needed,
    Statement,
    cell_statements,
    needed_for,
    run_statements,
    statements,
    text_hash,
)
from trainlean.workspace import CourseError


def answer_of(exercise: Exercise, given: object) -> object:
    """The function or value that an answer stands for: `given` itself, or the solution with this edit made.

    Raises CourseError when the edit does not fit the solution or leaves no Python.
    """
    return (
        answer_in(exercise, edited_solution(exercise, given)) if isinstance(given, dict) else given
    )


def answer_in(exercise: Exercise, source: str) -> object:
    """The function or value that the exercise's cell gives when `source` stands in it, among the lesson's other cells.

    Raises CourseError when Python cannot read it, and whatever the cell raises.
    """
    return run_statements(_needed(exercise, source))[exercise.name]


def standalone(exercise: Exercise, edit: dict[str, str]) -> str:
    """One cell with the solution, this edit made, and all cells of the lesson on which it rests.

    Raises CourseError as `edited_solution` does.
    """
    source = edited_solution(exercise, edit)
    _, number = _solution(exercise.notebook, exercise.name)
    cells = sorted({one.cell for one in _needed(exercise, source)})
    texts = [
        source if cell == number else _lesson(exercise.notebook).cells[cell - 1].source
        for cell in cells
    ]
    return "\n".join(re.sub(r"^\s*%%px.*", "#", text) for text in texts)


def _needed(exercise: Exercise, source: str) -> Needed:
    """The statements on which the answer rests when `source` stands in the exercise's cell."""
    _, number = _solution(exercise.notebook, exercise.name)
    try:
        mine = cell_statements(number, source)
    except SyntaxError as error:
        raise CourseError(
            f"An answer to {exercise.name} cannot be read: {error.msg} in line {error.lineno}."
        ) from None
    lesson = _statements(exercise.notebook)
    found = [one for one in lesson if one.cell < number]
    found += [*mine, *(one for one in lesson if one.cell > number)]
    return needed_for(exercise.name, found)


def edited_solution(exercise: Exercise, edit: dict[str, str]) -> str:
    """The solution's cell as a learner would have typed it who made this mistake: each old text replaced by the new one.

    Raises CourseError for an old text that is not there exactly once, or that overlaps with another.
    """
    source, _ = _solution(exercise.notebook, exercise.name)
    places = []
    for old, new in edit.items():
        if (times := source.count(old)) != 1:
            raise CourseError(
                f"The solution of {exercise.name} ({exercise.notebook}) holds {old!r} {times} times; "
                "an edit replaces what stands there once."
            )
        places.append((source.index(old), old, new))
    edited, before = source, len(source)
    for start, old, new in sorted(places, reverse=True):
        if start + len(old) > before:
            raise CourseError(f"Two edits of {exercise.name}'s solution overlap at {old!r}.")
        edited, before = edited[:start] + new + edited[start + len(old) :], start
    return edited


@cache
def _solution(notebook: str, name: str) -> tuple[str, int]:
    """The source of the exercise's cell as its author wrote it, and the cell's number, counted from 1."""
    for number, cell in enumerate(_lesson(notebook).cells, 1):
        mark = nbgrader_mark(cell)
        if mark.get("grade_id") == name and mark["solution"]:
            return cell.source, number
    raise CourseError(
        f"authoring/{notebook}.py has no exercise {name} whose solution could be edited."
    )


@cache
def _statements(notebook: str) -> list[Statement]:
    handed_out = Handout(
        {text_hash(cell.source): n for n, cell in enumerate(_lesson(notebook).cells)}
    )
    return statements(_lesson(notebook), handed_out)[0]


@cache
def _lesson(notebook: str):
    return read_authored(Place(notebook))


def answer_from(path: Path, name: str) -> object:
    """The function or value that a notebook gives to an exercise.

    Raises CourseError when the notebook cannot be read, KeyError when it does not define the name, and whatever a cell raises.
    """
    found, _ = statements(read_notebook(path))
    return run_statements(needed_for(name, found))[name]
