"""Docstrings name what a public function or class raises, itself or in its file's private functions, so that a caller knows what to catch."""

import ast
from pathlib import Path

import pytest

import trainlean

LIBRARY = Path(trainlean.__file__).parent
EVERY = "Exception"
COMMANDS = {"cli"}  # their docstrings are their help; what they raise is printed as a sentence


def public_functions(tree):
    """(name, function, docstring) of all functions and methods of a file that no name on the way marks as private.

    How an object is made is told by its class.
    """
    return _public(tree, "")


def _public(node, prefix):
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _public(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef) and child.name in ("__init__", "__post_init__"):
            yield f"{prefix}{child.name}", child, ast.get_docstring(node) or ""
        elif isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child, ast.get_docstring(child) or ""


def private_functions(tree):
    """{name: function} of what stands in a file for its own use."""
    return {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("_")
        and not node.name.endswith("__")
    }


def raised(node, private=(), caught=frozenset()):
    """Names of the errors that the statements below a node raise, less those that they catch themselves.

    A call of one of the `private` functions raises what that raises.
    """
    names = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Raise):
            names |= set() if EVERY in caught else {_error(child.exc)} - caught - {None}
        elif isinstance(child, ast.Try):
            here = {_error(one) for handler in child.handlers for one in _caught(handler)}
            for part in child.body:
                names |= raised(ast.Module([part], []), private, caught | here)
            for part in [*child.handlers, *child.orelse, *child.finalbody]:
                names |= raised(ast.Module([part], []), private, caught)
        else:
            called = _called(child)
            if called in private and EVERY not in caught:
                others = {name: function for name, function in private.items() if name != called}
                names |= raised(private[called], others) - caught
            names |= raised(child, private, caught)
    return names


def _called(node):
    """`name` in `name(...)` and `self.name(...)`."""
    function = getattr(node, "func", None)
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") in ("self", "cls"):
        return function.attr
    return getattr(function, "id", "")


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
    tree = ast.parse(
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
        "    _g()\n"
        "    try:\n"
        "        self._g()\n"
        "    except EOFError:\n"
        "        pass\n"
        "def _g():\n"
        "    _g()\n"
        "    raise EOFError\n"
    )
    function, private = tree.body
    assert raised(function) == {"Broken", "ValueError"}
    assert private_functions(tree) == {"_g": private}
    assert raised(function, {"_g": private}) == {"Broken", "ValueError", "EOFError"}


def room(path):
    return path.relative_to(LIBRARY).with_suffix("").parts[0]


@pytest.mark.parametrize("name", sorted({room(path) for path in LIBRARY.rglob("*.py")} - COMMANDS))
def test_docstrings_name_what_is_raised(name):
    missing = [
        f"{path.relative_to(LIBRARY)}:{function.lineno}: {called} raises {error}"
        for path in sorted(LIBRARY.rglob("*.py"))
        if room(path) == name
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
        for private in [private_functions(tree)]
        for called, function, docstring in public_functions(tree)
        for error in sorted(raised(function, private))
        if error not in docstring
    ]
    assert not missing, "the docstring does not say so:\n" + "\n".join(missing)
