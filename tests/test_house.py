"""The library's rooms: imports run one way, downwards, and everything that the course imports of them is there."""

import ast
import importlib
from pathlib import Path

import pytest

import trainlean

LIBRARY = Path(trainlean.__file__).parent
# From the top floor down. A file on its own, such as cli.py, is a room too.
ROOMS = [
    "cli",
    "doctor",
    "site",
    "pages",
    "grading",
    "table",
    "audit",
    "exercises",
    "notebooks",
    "pictures",
    "plan",
    "devices",
    "recordings",
    "costs",
    "models",
    "model_list",
    "reviews",
    "setup",
    "processes",
    "collector",
    "kernel",
    "arguments",
    "workspace",
]
# What each room imports of itself runs one way, too: found by the order in which its files can be written.
FILES = sorted(path for path in LIBRARY.rglob("*.py") if path.name != "__init__.py")


def imported(path):
    """The modules of this library that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("trainlean.")
        ):
            yield from (parts(f"{node.module}.{alias.name}") for alias in node.names)


def parts(name):
    """("room",) or ("room", "file") of a dotted name, without what it takes out of the file."""
    parts, depth = name.split(".")[1:], 1
    while depth < len(parts) and LIBRARY.joinpath(*parts[:depth]).is_dir():
        depth += 1
    return tuple(parts[:depth])


def place(path):
    return path.relative_to(LIBRARY).with_suffix("").parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(place(path)))
def test_imports_run_downwards(path):
    room = ROOMS.index(place(path)[0])
    upwards = [name for name in imported(path) if ROOMS.index(name[0]) < room]
    assert not upwards, f"{'/'.join(place(path))} imports {upwards} of a floor above it"


def test_no_room_imports_in_a_circle():
    below = {
        place(path): {name for name in imported(path) if name != place(path)} for path in FILES
    }
    while ready := [name for name, needs in below.items() if not needs & below.keys()]:
        for name in ready:
            del below[name]
    assert not below, f"in or above a circle: {sorted(below)}"


@pytest.mark.parametrize(
    "folder", ["authoring", "exercises_tests", "benchmarks", "scripts", "data"]
)
def test_what_the_course_imports_is_there(folder):
    """Also what is imported within a function, and in a lesson that nobody has built since a file was renamed."""
    missing = []
    for path in sorted((LIBRARY.parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "trainlean"
            ):
                missing += [
                    f"{path.relative_to(LIBRARY.parent)}:{node.lineno}: {node.module}.{alias.name}"
                    for alias in node.names
                    if not _is_there(node.module, alias.name)
                ]
    assert not missing


def _is_there(module, name):
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ImportError:
        return False


@pytest.mark.parametrize("name", trainlean.__all__)
def test_what_notebooks_import_is_there(name):
    assert getattr(trainlean, name) is not None
