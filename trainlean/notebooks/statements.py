"""A notebook's code cut apart: its top-level statements, and those on which one name rests."""

import ast
import contextlib
import dis
import io
import linecache
import types
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a notebook: its code, where it stands, the names that it binds and those that it needs."""

    cell: int
    code: types.CodeType
    binds: frozenset[str]  # "*" stands for any name, after `from x import *`
    needs: frozenset[str]
    defines: bool  # a function or class: only the last one of a name counts


def statements(notebook) -> tuple[list[Statement], dict[int, str]]:
    """The top-level statements of all code cells in order, and a sentence for each cell (by number) that Python cannot read."""
    found, problems = [], {}
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        try:
            found += cell_statements(number, cell.source)
        except SyntaxError as error:
            problems[number] = f"cell {number} is not Python: {error.msg} in line {error.lineno}"
    return found, problems


def cell_statements(number: int, source: str) -> list[Statement]:
    """The top-level statements of one code cell; raises SyntaxError when Python cannot read it.

    Magics are passed over; the body of a `%%px` cell counts like any other, since it may define an exercise's function.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        if not first.startswith("%%px"):
            return []
        source = "#\n" + rest  # keeps the line numbers; an empty line would be taken away
    filename = f"<cell {number}>"
    source = TransformerManager().transform_cell(source)
    tree = ast.parse(source, filename)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return [statement(number, node, filename) for node in tree.body]


def statement(cell: int, node: ast.stmt, filename: str) -> Statement:
    """A statement of a syntax tree, compiled under `filename` (for tracebacks), with the names that it uses."""
    code = compile(ast.Module([node], type_ignores=[]), filename, "exec")
    binds = {name for kind, name in _name_uses(code, inside=False) if kind == "STORE_NAME"}
    if any(
        isinstance(part, ast.ImportFrom) and part.names[0].name == "*" for part in ast.walk(node)
    ):
        binds.add("*")  # any name
    needs = {
        name for kind, name in _name_uses(code, inside=True) if kind in ("LOAD_NAME", "LOAD_GLOBAL")
    }
    defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return Statement(cell, code, frozenset(binds), frozenset(needs), defines)


def _name_uses(code: types.CodeType, *, inside: bool):
    for instruction in dis.get_instructions(code):
        yield instruction.opname, instruction.argval
    if inside:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _name_uses(constant, inside=True)


def needed_for(name: str, found: list[Statement]) -> list[Statement]:
    """The statements on which `name` rests, in notebook order: so a lesson's measurements do not run, its definitions do.

    Of several definitions of a function the last one counts, and for what runs before it also the one before that.
    """
    bindings: dict[str, list[int]] = {}
    for index, one in enumerate(found):
        for bound in one.binds:
            bindings.setdefault(bound, []).append(index)
    chosen, wanted, done = set(), [(name, len(found))], set()
    while wanted:
        current, user = wanted.pop()
        if (current, user) in done:
            continue
        done.add((current, user))
        binding = sorted({*bindings.get(current, ()), *bindings.get("*", ())})
        if binding and found[binding[-1]].defines:
            itself = user < len(found) and current in found[user].binds
            earlier = [] if itself else [index for index in binding if index < user]
            binding = [*earlier[-1:], binding[-1]]
        for index in set(binding) - chosen:
            chosen.add(index)
            wanted += [(need, index) for need in found[index].needs]
    return [found[index] for index in sorted(chosen)]


def run_statements(chosen: list[Statement]) -> dict:
    """The names after running the statements in a fresh namespace; what they print is dropped."""
    namespace = {"__name__": "__main__"}
    for statement in chosen:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(statement.code, namespace)
    return namespace
