"""A notebook's code cut apart: its top-level statements, and those on which one name rests.

A learner's notebook holds the lesson's cells and the learner's own. What a name means is what it means when the cells have
run from the first to the answer's: the last statement that binds it there. Of the lesson's cells only what defines things
is ever run (imports, functions, classes, constants), since the others train, measure and start devices.
"""

import ast
import builtins
import contextlib
import dis
import hashlib
import inspect
import io
import linecache
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainlean.notebooks.notebook import Place, cut, nbgrader_mark, read_authored

# Whoever calls these at a lesson's top level makes a value and trains nothing.
MAKERS = frozenset(
    "load_reviews load_tokenizer batches dataset small_bert small_bert_config bert_large_config Link".split()
)
RUN_AS_CODE = (
    "%%px",
    "%%time",
    "%%capture",
)  # what such a cell defines is defined in the notebook, too
PASTED = re.compile(r"^In \[\d+\]: ", re.MULTILINE)  # with its prompt a line can be Python, too
LIBRARIES = frozenset(
    "collections copy dataclasses functools inspect itertools math np numpy operator random re string tempfile torch types typing".split()
)

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@dataclass(frozen=True)
class Handout:
    """A lesson as it was handed out: where each of its cells stands (by a hash of its text), and each of its exercises."""

    cells: dict[str, int] = field(default_factory=dict)
    exercises: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a notebook: its code, where it stands, the names that it binds and those that it needs."""

    cell: int
    code: types.CodeType
    binds: frozenset[str]  # "*" stands for any name, after `from x import *`
    needs_now: frozenset[str]  # while it runs
    needs_later: frozenset[str]  # when a function in it is called
    changes: frozenset[str]  # names whose attributes, items or methods it uses at the top level
    certain: bool  # binds its names whenever it runs
    defines: bool  # only an import, a function, a class or a value made without running anything
    given: int | None = None  # the place in the lesson of a handed out cell; None for the learner's

    @property
    def needs(self) -> frozenset[str]:
        """Every name that it takes from elsewhere, now or later."""
        return self.needs_now | self.needs_later


@dataclass(frozen=True)
class Needed:
    """The statements on which a name rests, in the order in which they run, and the cells of what was left out, by name."""

    statements: tuple[Statement, ...]
    left_out: dict[str, int]

    def __iter__(self) -> Iterator[Statement]:
        return iter(self.statements)


def handout(lessons: Iterable[str]) -> Handout:
    """The lessons of these names as learners get them; what is no lesson of the course adds nothing."""
    return joined(_handout(lesson) for lesson in sorted(lessons))


def joined(handouts: Iterable[Handout]) -> Handout:
    """Lessons handed out together, one after the other."""
    cells: dict[str, int] = {}
    exercises: dict[str, int] = {}
    for one in handouts:
        first = max([-1, *cells.values(), *exercises.values()]) + 1
        cells = {text: first + place for text, place in one.cells.items()} | cells
        exercises = {name: first + place for name, place in one.exercises.items()} | exercises
    return Handout(cells, exercises)


def _handout(lesson: str) -> Handout:
    if not Place(lesson).authored.exists():
        return Handout()  # of an instructor's own exercise
    cells = read_authored(Place(lesson)).cells
    marks = [nbgrader_mark(cell) for cell in cells]
    return Handout(
        {text_hash(cut(cell.source)): place for place, cell in enumerate(cells)},
        {mark["grade_id"]: place for place, mark in enumerate(marks) if mark.get("solution")},
    )


def text_hash(source: str) -> str:
    """A cell's text as a handout knows it; blank space at the ends does not count."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def statements(notebook, handout: Handout | None = None) -> tuple[list[Statement], dict[int, str]]:
    """The top-level statements of all code cells in order, and a sentence for each cell (by number) that Python cannot read."""
    found, problems = [], {}
    known = handout.cells if handout else {}
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        try:
            found += cell_statements(number, cell.source, known.get(text_hash(cell.source)))
        except SyntaxError as error:
            line = f" in line {error.lineno}" if error.lineno else ""
            problems[number] = f"cell {number} is not Python: {error.msg}{line}"
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):X}"
            problems[number] = f"cell {number} is not Python: it holds half a character ({half})"
    return found, problems


def cell_statements(number: int, source: str, given: int | None = None) -> list[Statement]:
    """The top-level statements of one code cell; raises SyntaxError when Python cannot read it.

    Magics are passed over; a cell under one that only runs its body (RUN_AS_CODE) counts like any other.
    """
    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        if first.split()[0] not in RUN_AS_CODE:
            return []
        source = "#\n" + rest  # keeps the line numbers; an empty line would be taken away
    filename = f"<cell {number}>"
    source, tree = _read(source, filename)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return [_statement(number, node, filename, given) for node in tree.body]


def _read(source: str, filename: str) -> tuple[str, ast.Module]:
    """The code of a cell as IPython takes it, and its tree.

    IPython is asked only where it may change something: its reading is slow, and in Python 3.12.1 it takes gigabytes of a
    line with 100,000 tokens.
    """
    source = re.sub(
        r"\A(?:[^\S\n]*\n)+", "", source
    )  # as IPython leaves out what is empty at the top
    source = source if source.endswith("\n") else f"{source}\n"
    if not PASTED.search(source):
        with contextlib.suppress(SyntaxError):
            return source, ast.parse(source, filename)
    from IPython.core.inputtransformer2 import TransformerManager

    source = TransformerManager().transform_cell(source)
    return source, ast.parse(source, filename)


def _statement(cell: int, node: ast.stmt, filename: str, given: int | None) -> Statement:
    code = compile(ast.Module([node], type_ignores=[]), filename, "exec")
    now, later = _parts(code)
    binds = {name for kind, name in _name_uses([code]) if kind == "STORE_NAME"}
    if any(
        isinstance(part, ast.ImportFrom) and part.names[0].name == "*" for part in ast.walk(node)
    ):
        binds.add("*")  # any name
    loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
    functions = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    simple = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.AugAssign
    return Statement(
        cell,
        code,
        frozenset(binds),
        frozenset(name for kind, name in _name_uses(now) if kind in loads),
        frozenset(name for kind, name in _name_uses(later) if kind in loads),
        frozenset() if functions else frozenset(_changed(node)),
        functions or isinstance(node, simple),
        functions or isinstance(node, simple) and all(map(_makes_only, _run_at_once(node))),
        given,
    )


def _parts(code: types.CodeType) -> tuple[list[types.CodeType], list[types.CodeType]]:
    """The code that runs with it (comprehensions, bodies of classes), itself included, and that of functions in it."""
    now, later = [code], []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            a_class = not constant.co_flags & inspect.CO_OPTIMIZED
            inner_now, inner_later = _parts(constant)
            at_once = a_class or constant.co_name in COMPREHENSIONS
            now += inner_now if at_once else []
            later += inner_later if at_once else [*inner_now, *inner_later]
    return now, later


def _name_uses(codes: Iterable[types.CodeType]) -> Iterator[tuple[str, Any]]:
    for code in codes:
        for instruction in dis.get_instructions(code):
            yield instruction.opname, instruction.argval


def _root(node: ast.AST) -> str:
    """The name at the beginning of `a.b[c].d`; empty where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changed(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(
            part.ctx, ast.Store | ast.Del
        ):
            yield _root(part)
        elif (
            isinstance(part, ast.Expr)
            and isinstance(part.value, ast.Call)
            and isinstance(part.value.func, ast.Attribute)
        ):
            yield _root(part.value.func)


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run when it does: not the body of a lambda."""
    yield node
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.Lambda):
            yield from _run_at_once(part)


def _makes_only(part: ast.AST) -> bool:
    """Whether this part of a statement runs nothing of a lesson: no call but of libraries and of what makes values."""
    if not isinstance(part, ast.Call):
        return not isinstance(part, ast.Await | ast.Yield | ast.YieldFrom)
    root = _root(part.func)
    plain = isinstance(part.func, ast.Name) and (root in MAKERS or hasattr(builtins, root))
    return plain or root in LIBRARIES or isinstance(part.func, ast.Attribute) and not root


def needed_for(name: str, found: list[Statement], handout: Handout | None = None) -> Needed:
    """The statements on which `name` rests: so a lesson's measurements do not run, its definitions do.

    A name that is used means what the cells up to the answer's make of it; what runs at once sees what stands before it.
    The learner's own cells below the answer are looked at next, the lesson's never, unless the answer was moved above them.
    """
    bindings: dict[str, list[int]] = {}
    for index, one in enumerate(found):
        for bound in one.binds:
            bindings.setdefault(bound, []).append(index)
    answers = bindings.get(name, [])
    if not answers:
        return Needed((), {})
    own = [index for index in answers if found[index].given is None]
    cell = found[(own or answers)[-1]].cell
    place = handout.exercises.get(name, -1) if handout else -1
    inside = [index for index, one in enumerate(found) if one.cell <= cell]
    limit = inside[-1]

    def candidates(wanted: str, user: int | None) -> Iterator[int]:
        """Where the name may come from, the best place first."""
        all_of_it = sorted({*bindings.get(wanted, ()), *bindings.get("*", ())}, reverse=True)
        before = [index for index in all_of_it if index <= limit and (user is None or index < user)]
        if not before and user is not None:
            before = [index for index in all_of_it if user < index <= limit]  # not in order
        yield from before
        below = [index for index in all_of_it if index > limit]
        yield from (index for index in below if found[index].given is None)
        given = ((index, found[index].given) for index in below)
        yield from (index for index, at in given if at is not None and at < place)

    chosen: set[int] = set()
    left_out: dict[str, int] = {}
    wanted: list[tuple[str, int | None]] = [(name, None)]
    done: set[tuple[str, int | None]] = set()
    while wanted:
        current, user = wanted.pop()
        if (current, user) in done:
            continue
        done.add((current, user))
        for index in candidates(current, user):
            one = found[index]
            if one.given is not None and not one.defines:
                left_out.setdefault(current, one.cell)
                continue
            left_out.pop(current, None)
            if index not in chosen:
                chosen.add(index)
                wanted += [(need, None) for need in one.needs_later]
                wanted += [(need, index) for need in one.needs_now]
            # What the learner does to it in the same cell belongs to it.
            for later in range(index + 1, limit + 1):
                other = found[later]
                if other.cell != one.cell or other.given is not None or later in chosen:
                    continue
                if current in other.changes:
                    chosen.add(later)
                    wanted += [(need, later) for need in other.needs]
            if one.certain and "*" not in one.binds:
                break
    below = [index for index in chosen if index > limit and found[index].given is not None]
    order = [*sorted(below), *sorted(chosen - set(below))]
    return Needed(tuple(found[index] for index in order), left_out)


def run_statements(chosen: Iterable[Statement]) -> dict:
    """The names after running the statements in a fresh namespace; what they print is dropped."""
    namespace = {"__name__": "__main__"}
    for one in chosen:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(one.code, namespace)
    return namespace
