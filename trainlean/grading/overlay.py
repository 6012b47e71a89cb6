"""An instructor's private folder of exercises and mistakes, laid over the course's own."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from trainlean.exercises.exercise import Exercise, Mistake, all_exercises
from trainlean.grading.probes import PACKAGE
from trainlean.workspace import COURSE, CourseError


def exercises_with(overlay: Path | None = None) -> dict[str, Exercise]:
    """The exercises of the course by name; those of a private folder take the place of public ones of the same name.

    A file in the overlay ends with `EXERCISES`, as in exercises_tests, or `MISTAKES`: {exercise name: (Mistake, ...)}, or both.
    """
    found = dict(all_exercises())
    if overlay is None:
        return found
    files = sorted(path for path in Path(overlay).rglob("*.py") if not path.name.startswith("_"))
    if not files:
        raise CourseError(
            f"{overlay} holds no exercise file (.py); an overlay is a folder of files like those in exercises_tests."
        )
    for path in files:
        module = _load(path)
        added = getattr(module, "EXERCISES", ()), getattr(module, "MISTAKES", {})
        if not any(added):
            raise CourseError(
                f"{path} has neither EXERCISES nor MISTAKES; end it with `EXERCISES = (...)` or `MISTAKES = {{exercise: (Mistake(...),)}}`."
            )
        for exercise in added[0]:
            place = (
                found[exercise.name].notebook
                if exercise.name in found
                else path.relative_to(overlay).with_suffix("").as_posix()
            )
            object.__setattr__(exercise, "notebook", place)
            found[exercise.name] = exercise
        for name, mistakes in added[1].items():
            if name not in found or not all(isinstance(mistake, Mistake) for mistake in mistakes):
                raise CourseError(
                    f"{path}: MISTAKES[{name!r}] must be a tuple of Mistake for an exercise of the course."
                )
            found[name] = _with_mistakes(found[name], tuple(mistakes))
    return found


def _with_mistakes(exercise: Exercise, mistakes: tuple) -> Exercise:
    return replace(exercise, mistakes=exercise.mistakes + mistakes)


def _load(path: Path):
    """A module of the overlay under a name of its own, so that its probes can be found again."""
    name = f"{PACKAGE}.overlay_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(COURSE) not in sys.path:
        sys.path.insert(0, str(COURSE))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CourseError(f"{path} cannot be loaded: {type(error).__name__}: {error}.") from None
    return module
