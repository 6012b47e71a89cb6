"""Docstrings name what a public function raises itself, so that a caller knows what to catch."""

import ast
from pathlib import Path

import pytest

import trainlean

LIBRARY = Path(trainlean.__file__).parent
EVERY = "Exception"
COMMANDS = {"cli"}  # their docstrings are their help; what they raise is printed as a sentence


def public_functions(path):
    """(name, function) of all functions and methods of a file that no name on the way marks as private."""
    return _public(ast.parse(path.read_text(encoding="utf-8")), "")


def _public(node, prefix):
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _public(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child


def raised(node, caught=frozenset()):
    """Names of the errors that the statements below a node raise, less those that they catch themselves."""
    names = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Raise):
            names |= set() if EVERY in caught else {_error(child.exc)} - caught - {None}
        elif isinstance(child, ast.Try):
            here = {_error(one) for handler in child.handlers for one in _caught(handler)}
            for part in child.body:
                names |= raised(ast.Module([part], []), caught | here)
            for part in [*child.handlers, *child.orelse, *child.finalbody]:
                names |= raised(ast.Module([part], []), caught)
        else:
            names |= raised(child, caught)
    return names


def _caught(handler):
    if handler.type is None:
        return [ast.Name(EVERY)]
    return handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]


def _error(node):
    """The class's name in `raise Name(...)`; None in `raise` and `raise error`, which pass on what somebody else raised."""
    if isinstance(node, ast.Call):
        node = node.func
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name if name[:1].isupper() else None


def test_what_is_raised_is_found():
    [function] = ast.parse(
        "def f():\n"
        "    try:\n"
        "        raise KeyError\n"
        "    except (KeyError, OSError) as error:\n"
        "        raise module.Broken('why') from error\n"
        "    else:\n"
        "        raise ValueError('what')\n"
        "    def inner():\n"
        "        raise TypeError\n"
        "    try:\n"
        "        raise OSError\n"
        "    except Exception:\n"
        "        raise error\n"
    ).body
    assert raised(function) == {"Broken", "ValueError"}


def room(path):
    return path.relative_to(LIBRARY).with_suffix("").parts[0]


@pytest.mark.parametrize("name", sorted({room(path) for path in LIBRARY.rglob("*.py")} - COMMANDS))
def test_docstrings_name_what_is_raised(name):
    missing = [
        f"{path.relative_to(LIBRARY)}:{function.lineno}: {called} raises {error}"
        for path in sorted(LIBRARY.rglob("*.py"))
        if room(path) == name
        for called, function in public_functions(path)
        for error in sorted(raised(function))
        if error not in (ast.get_docstring(function) or "")
    ]
    assert not missing, "the docstring does not say so:\n" + "\n".join(missing)
