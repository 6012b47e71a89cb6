"""Every exercise of the course, found in exercises_tests by its name."""

import importlib
import sys
from dataclasses import replace
from difflib import get_close_matches
from functools import cache

from trainlean.exercises.exercise import Exercise
from trainlean.notebooks.course import read_head
from trainlean.notebooks.notebook import Place
from trainlean.workspace import COURSE, CourseError

PACKAGE = "exercises_tests"


@cache
def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by its name, in course order. CourseError: two of one name."""
    if str(COURSE) not in sys.path:
        sys.path.insert(0, str(COURSE))  # exercises_tests is no part of the installed package
    found: dict[str, Exercise] = {}
    root = COURSE / PACKAGE
    for path in sorted(root.glob("[0-9]*/[0-9]*/exercises.py")):
        notebook = path.parent.relative_to(root).as_posix()
        package = f"{PACKAGE}.{notebook.replace('/', '.')}"
        module = importlib.import_module(f"{package}.exercises")
        for exercise in module.EXERCISES:
            if exercise.name in found:
                raise CourseError(
                    f"Two exercises are named {exercise.name}: in {found[exercise.name].notebook} and {notebook}; rename one."
                )
            found[exercise.name] = placed(exercise, notebook, package)
    return found


def placed(exercise: Exercise, notebook: str, package: str) -> Exercise:
    """The exercise, knowing the lesson that it belongs to and the package in which it is written."""
    return replace(exercise, notebook=notebook, package=package)


@cache
def names_in(notebook: str) -> tuple[str, ...]:
    """The exercises of a lesson in its order, by the text of its source: to read that as a notebook takes a second. None of another's."""
    place = Place(notebook)
    return tuple(name for name, _ in read_head(place).exercises) if place.authored.exists() else ()


def place_in_lesson(exercise: Exercise) -> str:
    """`exercise 2 of 3`; empty where its lesson is none of the course."""
    names = names_in(exercise.notebook)
    if exercise.name not in names:
        return ""
    return f"exercise {names.index(exercise.name) + 1} of {len(names)}"


def find_exercise(name: str) -> Exercise:
    """The exercise of that name. CourseError, with the nearest names, when there is none."""
    exercises = all_exercises()
    if name not in exercises:
        near = " or ".join(get_close_matches(str(name), exercises, n=2, cutoff=0))
        raise CourseError(
            f"There is no exercise named {name!r}; the nearest is {near}, and `trainlean progress` lists all."
        )
    return exercises[name]
