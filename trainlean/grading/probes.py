"""Probes as files to copy: where submissions run there is neither an oracle nor a solution nor a mistake.

A lesson's folder in exercises_tests has its probes in a file of their own. `probe_files` reads that file and those of
exercises_tests/probing, which all probes may import; `load_probe` makes modules of what was sent.
"""

import ast
import importlib
import importlib.abc
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import CodeType

from trainlean import EXPORTS
from trainlean.exercises.checking import HEAVY
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise
from trainlean.exercises.finding import PACKAGE
from trainlean.notebooks.notebook import Place
from trainlean.workspace import COURSE, CourseError

SHARED = COURSE / PACKAGE / "probing"
# What takes long to import, by the names under which it is imported: a worker does it once, when an answer first needs it.
ON_DEMAND = {name: f"trainlean.{file}" for file, names in EXPORTS.items() for name in names}
ON_DEMAND |= HEAVY | {"matplotlib": "matplotlib.pyplot", "pandas": "pandas"}
PACKAGES = ("trainlean", *HEAVY)  # of which parts are imported


def probe_files(exercise: Exercise) -> dict:
    """What `load_probe` needs, as JSON: sources by the names of their modules, and what is known of the exercise.

    Raises CourseError when the probe does not stand in probes.py under the exercise's name.
    """
    name = f"{exercise.package}.probes"
    module = importlib.import_module(name)
    if getattr(module, exercise.name, None) is not exercise.probe:
        raise CourseError(
            f"The probe of {exercise.name} is not sent to where submissions run: bind it to the name "
            f"{exercise.name} in {module.__file__}, and give it to the exercise from there."
        )
    files = {name: Path(str(module.__file__))}
    files |= {f"{PACKAGE}.probing.{path.stem}": path for path in sorted(SHARED.glob("*.py"))}
    known = {
        key: getattr(exercise, key) for key in ("name", "points", "devices", "notebook", "package")
    }
    return {
        "modules": {module: path.read_text(encoding="utf-8") for module, path in files.items()},
        "about": known | {"requires": exercise.requires() if exercise.requires else ""},
    }


def imports_of(sent: dict) -> list[str]:
    """What the probe's own file, and the shared files that it imports, import from elsewhere."""
    found: dict[str, None] = {}
    waiting, seen = [f"{sent['about']['package']}.probes"], set()
    while waiting:
        seen.add(name := waiting.pop())
        for node in ast.walk(ast.parse(sent["modules"][name])):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module in PACKAGES:
                    names += [alias.name for alias in node.names]
            else:
                continue
            waiting += [name for name in names if name in sent["modules"] and name not in seen]
            found |= dict.fromkeys(ON_DEMAND.get(name, name) for name in names)
    return [name for name in found if not name.startswith(PACKAGE)]


def files_of(exercise: Exercise) -> list[Path]:
    """All files in which the exercise is written: its folder's, those that all lessons share, and its solution."""
    folder = Path(str(importlib.import_module(f"{exercise.package}.exercises").__file__)).parent
    authored = [path for path in (Place(exercise.notebook).authored,) if path.exists()]
    shared = [*(COURSE / PACKAGE).glob("*.py"), *SHARED.glob("*.py")]
    return sorted([*folder.glob("*.py"), *shared, *authored])


def compiled(sent: dict) -> dict:
    """The same with code in place of text, for `load_probe`."""
    return sent | {"modules": {name: _code(name, text) for name, text in sent["modules"].items()}}


@cache
def _code(name: str, source: str) -> CodeType:
    # Under a file name of the course, so that tracebacks leave its frames out.
    return compile(source, str(COURSE / PACKAGE / f"{name}.py"), "exec")


def load_probe(sent: dict) -> Exercise:
    """An exercise that can ask but not judge, from what `compiled` gives."""
    sys.meta_path.insert(0, _Sent(sent["modules"]))
    about = sent["about"]
    probes = importlib.import_module(f"{about['package']}.probes")
    return exercise_without_probe(sent, getattr(probes, about["name"]))


class _Sent(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from code that was sent, and the packages above them as empty ones."""

    def __init__(self, modules: dict[str, CodeType]):
        self.modules = modules

    def find_spec(self, fullname, path=None, target=None):
        if fullname in self.modules or self.is_package(fullname):
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def is_package(self, fullname):
        return any(name.startswith(f"{fullname}.") for name in self.modules)

    def get_source(self, fullname):
        return None  # tracebacks show the learner's lines, not those of the course

    def get_code(self, fullname):
        return self.modules.get(fullname) or compile("", "<package>", "exec")


def exercise_without_probe(sent: dict, probe=None) -> Exercise:
    """The exercise as far as it is known where submissions run."""
    missing = sent["about"]["requires"]
    known = sent["about"] | {"requires": lambda: missing}
    return Exercise(probe=probe, oracle=_no_oracle, mistakes=(), hints=(), also_right=(), **known)


def _no_oracle(seed: int) -> Observation:
    raise RuntimeError("the oracle is not here")
