"""An instructor's private folder of exercises and mistakes, laid over the course's own."""

import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from trainlean.exercises.exercise import Exercise, Mistake
from trainlean.exercises.finding import PACKAGE, all_exercises, placed
from trainlean.workspace import COURSE, CourseError


def exercises_with(overlay: Path | None = None) -> dict[str, Exercise]:
    """The exercises of the course by name; those of a private folder take the place of public ones of the same name.

    A folder in the overlay (or the overlay itself) is like one in exercises_tests: `exercises.py` with `EXERCISES`, whose
    probes stand in `probes.py` beside it, and which may import what else is there. A file `mistakes.py` on its own has
    `MISTAKES`: {exercise name: (Mistake, ...)}, which are added. Raises CourseError for an overlay without either.
    """
    found = dict(all_exercises())
    if overlay is None:
        return found
    overlay = Path(overlay)
    folders = sorted({path.parent for path in overlay.rglob("*.py")})
    files = [_first(folder, "exercises.py", "mistakes.py") for folder in folders]
    if not any(files):
        raise CourseError(
            f"{overlay} holds neither an exercises.py nor a mistakes.py; an overlay is a folder of folders like those in exercises_tests."
        )
    for number, path in enumerate(filter(None, files)):
        package = f"{PACKAGE}.overlay_{number}"
        module = _load(path, package)
        exercises, mistakes = getattr(module, "EXERCISES", ()), getattr(module, "MISTAKES", {})
        if not (_all_are(Exercise, exercises) and isinstance(mistakes, dict)) or not (
            exercises or mistakes
        ):
            raise CourseError(
                f"{path} has neither EXERCISES nor MISTAKES of the right form; end exercises.py with `EXERCISES = (...)`, or mistakes.py with `MISTAKES = {{exercise: (Mistake(...),)}}`."
            )
        for exercise in exercises:
            known = found.get(exercise.name)
            notebook = known.notebook if known else path.parent.relative_to(overlay).as_posix()
            found[exercise.name] = placed(exercise, notebook, package)
        for name, added in mistakes.items():
            if name not in found or not _all_are(Mistake, added):
                raise CourseError(
                    f"{path}: MISTAKES[{name!r}] must be a tuple of Mistake for an exercise of the course."
                )
            found[name] = replace(found[name], mistakes=found[name].mistakes + tuple(added))
    return found


def _all_are(kind: type, many: object) -> bool:
    return isinstance(many, tuple | list) and all(isinstance(one, kind) for one in many)


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


def _load(path: Path, package: str):
    """A module of the overlay, its folder being a package, so that it can import its probes by `from . import probes`."""
    if str(COURSE) not in sys.path:
        sys.path.insert(0, str(COURSE))
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]  # of another overlay
    spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
    parent = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # None only where a loader is asked, and there is none
    parent.__path__ = [str(path.parent)]
    sys.modules[package] = parent
    try:
        return importlib.import_module(f"{package}.{path.stem}")
    except (Exception, SystemExit) as error:
        raise CourseError(f"{path} cannot be loaded: {type(error).__name__}: {error}.") from None
