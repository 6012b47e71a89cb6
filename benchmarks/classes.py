"""Made-up classes to grade: notebooks cut to their exercises, with solutions, stubs and known mistakes as answers."""

import random

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.finding import all_exercises
from trainlean.exercises.solutions import edited_solution, standalone
from trainlean.exercises.verdicts import NOT_ATTEMPTED, RIGHT, WRONG
from trainlean.notebooks.notebook import cut, exercise_cells, nbgrader_mark
from trainlean.notebooks.statements import needed_for, statements


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
    """The code of a cell for each way of answering: {(outcome, mistake): source}; of each mistake its first edit."""
    stub = edited_solution(exercise, {})
    cells = {
        (RIGHT, ""): standalone(exercise, {}),
        (NOT_ATTEMPTED, ""): standalone(exercise, {stub: cut(stub)}),
    }
    for mistake in exercise.mistakes:
        edits = [answer for answer in mistake.answers if isinstance(answer, dict)]
        if edits:
            cells[WRONG, mistake.name] = standalone(exercise, edits[0])
    return cells


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
