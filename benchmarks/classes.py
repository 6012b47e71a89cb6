"""Made-up classes to grade: notebooks cut to their exercises, with solutions, stubs and known mistakes as answers."""

import ast
import random

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from trainlean.exercises.checking import needed_for, statement, statements
from trainlean.exercises.exercise import NOT_ATTEMPTED, RIGHT, WRONG, Exercise, all_exercises
from trainlean.grading import probes
from trainlean.notebooks.notebook import exercise_cells, nbgrader_mark, read_notebook
from trainlean.workspace import COURSE


def cut_to_exercises(notebook):
    """The notebook without the lesson: exercises, their check cells, and the cells on which these rest."""
    found, _ = statements(notebook)
    names = [exercise.name for exercise in exercise_cells(notebook)]
    kept = {one.cell for name in [*names, "check"] for one in needed_for(name, found)}
    cells = [
        cell
        for number, cell in enumerate(notebook.cells, 1)
        if number in kept or nbgrader_mark(cell)
    ]
    return nbformat.from_dict(notebook | {"cells": cells})


def answer_cells(exercise: Exercise) -> dict[tuple[str, str], str]:
    """The code of a cell for each way of answering: {(outcome, mistake): source}; of each mistake the first way of writing it."""
    cells = {}
    for root, outcome in (("solutions", RIGHT), ("lessons", NOT_ATTEMPTED)):
        notebook = read_notebook(COURSE / root / f"{exercise.notebook}.ipynb")
        found, _ = statements(notebook)
        numbers = sorted({one.cell for one in needed_for(exercise.name, found)})
        cells[outcome, ""] = "\n".join(notebook.cells[number - 1].source for number in numbers)
    path = probes.file_of(exercise)
    found, _ = probes._read(path)
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(call, ast.Call)
            and getattr(call.func, "id", "") == "Exercise"
            and _named(call) == exercise.name
        ):
            [mistakes] = [keyword.value for keyword in call.keywords if keyword.arg == "mistakes"]
            for mistake in getattr(
                mistakes, "elts", ()
            ):  # what is computed in another way is left out
                if (
                    isinstance(mistake, ast.Call)
                    and isinstance(mistake.args[0], ast.Constant)
                    and not isinstance(mistake.args[1], ast.Starred)
                ):
                    cells[WRONG, mistake.args[0].value] = _cell(
                        exercise.name, mistake.args[1], found, path
                    )
    return cells


def _named(call: ast.Call) -> str:
    return next((keyword.value.value for keyword in call.keywords if keyword.arg == "name"), "")


def _cell(name: str, expression: ast.expr, found: list, path) -> str:
    """A cell that assigns an answer of the exercise files to the exercise's name, with everything that it needs."""
    assignment = ast.fix_missing_locations(
        ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], expression), expression)
    )
    others = [(one, node) for one, node in found if name not in one.binds or one.defines]
    everything = [*others, (statement(0, assignment, str(path)), assignment)]
    chosen = probes._chosen(name, everything)
    modules = probes._with_imports(probes._imports_of_the_course(everything, chosen))
    lines = [*modules.values(), probes._source(everything, chosen)]
    return "\n".join(
        line
        for text in lines
        for line in text.splitlines()
        if not line.startswith("from exercises_tests")
    )


def make_class(
    lessons: list[str], size: int, seed: int = 0
) -> list[tuple[str, bytes, dict[str, tuple[str, str]]]]:
    """`size` submissions over the lessons: (file name, notebook, {exercise: (outcome, mistake)} that must come out)."""
    choose = random.Random(seed)
    by_lesson = {
        lesson: [exercise for exercise in all_exercises().values() if exercise.notebook == lesson]
        for lesson in lessons
    }
    cells = {
        exercise.name: answer_cells(exercise) for group in by_lesson.values() for exercise in group
    }
    made = []
    for number in range(size):
        lesson = lessons[number % len(lessons)]
        notebook, expected = new_notebook(), {}
        for exercise in by_lesson[lesson]:
            ways = cells[exercise.name]
            mistakes = [way for way in ways if way[0] == WRONG]
            way = choose.choice(
                [
                    (RIGHT, ""),
                    (NOT_ATTEMPTED, ""),
                    *(choose.choices(mistakes, k=2) if mistakes else ()),
                ]
            )
            cell = new_code_cell(
                ways[way],
                metadata={
                    "nbgrader": {
                        "grade_id": exercise.name,
                        "solution": True,
                        "grade": False,
                        "locked": False,
                        "schema_version": 3,
                        "task": False,
                    }
                },
            )
            notebook.cells.append(cell)
            expected[exercise.name] = way
        made.append(
            (
                f"learner {number:03}/{lesson.replace('/', '_')}.ipynb",
                nbformat.writes(notebook).encode(),
                expected,
            )
        )
    return made
