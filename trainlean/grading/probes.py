"""Probes cut out of their exercise files, so that where submissions run there is neither an oracle nor a solution nor a mistake.

An exercise file holds a probe beside everything that knows the right answer. `cut_probe` keeps of it the statements on which
one probe rests, and of the files that these import again only what is needed; `load_probe` makes modules of what was kept.
"""

import ast
import sys
import types
from functools import cache
from pathlib import Path

from trainlean.exercises.checking import Statement, needed_for, statement
from trainlean.exercises.exercise import Exercise, Observation
from trainlean.workspace import COURSE, CourseError

PACKAGE = "exercises_tests"
PROBE = "probe_of_this_exercise"


def cut_probe(exercise: Exercise) -> dict:
    """What `load_probe` needs, as JSON: the sources of the modules in the order of loading, and where the probe is."""
    path = file_of(exercise)
    found, expressions = _read(path)
    if exercise.name not in expressions:
        raise CourseError(
            f"{path}: the probe of {exercise.name} cannot be cut out; write `Exercise(name={exercise.name!r}, probe=...)` with the name as it is."
        )
    found = [
        *found,
        (statement(0, expressions[exercise.name], str(path)), expressions[exercise.name]),
    ]
    chosen = _chosen(PROBE, found)
    modules = _with_imports(_imports_of_the_course(found, chosen))
    return {
        "modules": modules | {f"{PACKAGE}.{PROBE}": _source(found, chosen)},
        "about": _about(exercise),
    }


def _about(exercise: Exercise) -> dict:
    """What of an exercise goes to where submissions run, beside its probe."""
    known = {name: getattr(exercise, name) for name in ("name", "points", "devices", "notebook")}
    return known | {
        "hints": exercise.hints[:1],
        "requires": exercise.requires() if exercise.requires else "",
    }


def file_of(exercise: Exercise) -> Path:
    """The file that lists the exercise (or the one of which it is a copy with more mistakes)."""
    modules = [module for name, module in sys.modules.items() if name.startswith(PACKAGE + ".")]
    return next(
        Path(module.__file__)
        for module in modules
        for item in getattr(module, "EXERCISES", ())
        if item.probe is exercise.probe
    )


@cache
def _read(path: Path) -> tuple[list[tuple[Statement, ast.stmt]], dict[str, ast.stmt]]:
    """The statements of an exercise file (imports one name each), and for each exercise an assignment of its probe."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found, expressions = [], {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            parts = [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
        else:
            parts = [node]
        for part in parts:
            ast.copy_location(part, node)
            ast.fix_missing_locations(part)
            found.append((statement(0, part, str(path)), part))
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Exercise":
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                if isinstance(given.get("name"), ast.Constant) and "probe" in given:
                    target = ast.Name(PROBE, ast.Store())
                    assignment = ast.copy_location(ast.Assign([target], given["probe"]), node)
                    expressions[given["name"].value] = ast.fix_missing_locations(assignment)
    return found, expressions


def _chosen(name: str, found: list) -> set[int]:
    number = {id(item): index for index, (item, _) in enumerate(found)}
    return {number[id(item)] for item in needed_for(name, [item for item, _ in found])}


def _source(found: list, chosen: set[int]) -> str:
    return "\n".join(ast.unparse(found[index][1]) for index in sorted(chosen))


def _imports_of_the_course(found: list, chosen: set[int]) -> dict[str, set[str]]:
    wanted: dict[str, set[str]] = {}
    for index in chosen:
        node = found[index][1]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            wanted.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return wanted


def _with_imports(wanted: dict[str, set[str]]) -> dict[str, str]:
    """The shared modules, each cut to the names that are wanted of it, those that others import first."""
    modules: dict[str, str] = {}
    done: dict[str, set[str]] = {}
    while todo := {name: names for name, names in wanted.items() if done.get(name) != names}:
        for name, names in todo.items():
            done[name] = set(names)
            found, _ = _read(COURSE / (name.replace(".", "/") + ".py"))
            chosen = set().union(*(_chosen(one, found) for one in names))
            modules.pop(name, None)
            modules = {name: _source(found, chosen)} | modules
            for other, more in _imports_of_the_course(found, chosen).items():
                wanted.setdefault(other, set()).update(more)
    return modules


def compiled(cut: dict) -> dict:
    """The same with code in place of text, for `load_probe`."""
    # The name of a file of the course, so that tracebacks leave its frames out.
    return cut | {
        "modules": {
            name: compile(source, str(COURSE / PACKAGE / f"{name}.py"), "exec")
            for name, source in cut["modules"].items()
        }
    }


def load_probe(cut: dict) -> Exercise:
    """An exercise that can ask but not judge, from what `compiled` gives."""
    sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE)).__path__ = []
    for name, code in cut["modules"].items():
        module = sys.modules[name] = types.ModuleType(name)
        exec(code, module.__dict__)
    return exercise_without_probe(cut, getattr(sys.modules[f"{PACKAGE}.{PROBE}"], PROBE))


def exercise_without_probe(cut: dict, probe=None) -> Exercise:
    """The exercise as far as it is known where submissions run."""
    missing = cut["about"]["requires"]
    return Exercise(
        probe=probe,
        oracle=_no_oracle,
        mistakes=(),
        also_right=(),
        **cut["about"] | {"requires": lambda: missing},
    )


def _no_oracle(seed: int) -> Observation:
    raise RuntimeError("the oracle is not here")
