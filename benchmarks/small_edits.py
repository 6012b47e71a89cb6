"""Every small edit of a piece of Python, made on its syntax tree: what `mutants.py` puts to the checks."""

import ast
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: [ast.LtE, ast.Gt, ast.NotEq],
    ast.LtE: [ast.Lt, ast.GtE, ast.Eq],
    ast.Gt: [ast.GtE, ast.Lt, ast.NotEq],
    ast.GtE: [ast.Gt, ast.LtE, ast.Eq],
    ast.Eq: [ast.NotEq, ast.LtE, ast.GtE],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
OPERATORS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div, ast.Add],
    ast.Div: [ast.Mult, ast.FloorDiv],
    ast.FloorDiv: [ast.Div, ast.Mod],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
}
TWINS = {
    "min": "max",
    "ceil": "floor",
    "any": "all",
    "argmin": "argmax",
    "mean": "sum",
    "zip_longest": "zip",
    "parameters": "buffers",
    "get_rank": "get_world_size",
    "train": "eval",
}
TWINS |= {other: one for one, other in TWINS.items()}
TWINS |= {"int": "round"}
ONLY_METHODS = {"sum", "mean", "train", "eval", "zip"}  # `sum(...)` alone has no twin
IN_PLACE = {"abs", "add", "clamp", "clip", "detach", "div", "lerp", "mul", "neg", "round", "sqrt"}
CONSUMERS = (
    "sum",
    "min",
    "max",
    "all",
    "any",
    "list",
    "tuple",
    "dict",
    "set",
    "sorted",
)
COMPOUND = (ast.For, ast.While, ast.If, ast.With)
ORDERS = ((None, None, -1), (None, -1, None), (1, None, None))  # bounds and step of other turns
TWICE_IS_ONCE = ("zero_grad", "train", "set_rng_state", "copy_", "add")
BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"


@dataclass(frozen=True)
class Edit:
    """An edited source, with the lines that differ before and after."""

    source: str
    old: str
    new: str


def small_edits(source: str) -> list[Edit]:
    """The edits of `source` between its marks of a solution, or anywhere where it has none; each text once.

    Raises SyntaxError where `source` is no Python.
    """
    tree = ast.parse(source)
    before = ast.unparse(tree)
    inside = _solution_lines(source)
    found: dict[str, Edit] = {}
    for change in _changes(tree, inside):
        undo = change()
        after = ast.unparse(ast.fix_missing_locations(tree))
        undo()
        if after != before and after not in found and _is_python(after):
            found[after] = Edit(after, *_changed_lines(before, after))
    return list(found.values())


def _solution_lines(source: str) -> set[int]:
    lines, inside, marked = set(), False, BEGIN in source
    for number, line in enumerate(source.splitlines(), 1):
        if "BEGIN/" in line or not marked or inside:
            lines.add(number)
        inside = (inside or BEGIN in line) and END not in line
    return lines


def _is_python(text: str) -> bool:
    try:
        compile(text, "<edit>", "exec")
    except (SyntaxError, ValueError):  # such as `return` outside a function
        return False
    return True


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, with no more indentation than they share; of a line that was moved far, where it went."""
    old, new = before.splitlines(), after.splitlines()
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    longer = len(new) - len(old)
    if longer > 0 and old[same:] == new[same + longer :]:
        same = max(0, same - 1)  # what is only added is told by the line that it stands behind
    old, new = old[same:], new[same:]
    while old and new and old[-1] == new[-1] and (len(old) > 1 or len(new) == 1):
        old, new = old[:-1], new[:-1]
    if min(len(old), len(new)) > 2 and old[0] == new[-1]:
        return old[0].strip(), f"{old[0].strip()}  # after: {new[-2].strip()}"
    if min(len(old), len(new)) > 2 and old[-1] == new[0]:
        return new[0].strip(), f"{new[0].strip()}  # before: {new[1].strip()}"
    shared = textwrap.dedent("\n".join([*old, *new])).splitlines()
    return "\n".join(shared[: len(old)]), "\n".join(shared[len(old) :])


def _changes(tree: ast.AST, inside: set[int]) -> Iterator[Callable]:
    """Each change as a function that makes it and returns one that takes it back."""
    mixed_up = _mixed_up(tree, inside)
    given = {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}

    def others(node: ast.expr, parent: ast.AST) -> Iterator[ast.expr]:
        yield from _instead(node, parent)
        yield from mixed_up.get(id(node), ())

    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from (_set(parent, field, block) for block in _blocks(value, inside, given))
            elif isinstance(value, list):
                for index, node in enumerate(value):
                    if getattr(node, "lineno", 0) in inside and isinstance(node, ast.expr):
                        yield from (_put(value, index, other) for other in others(node, parent))
            elif isinstance(value, ast.expr) and value.lineno in inside:
                yield from (_set(parent, field, other) for other in others(value, parent))
        if getattr(parent, "lineno", 0) in inside:
            yield from _of_node(parent)


def _set(node: ast.AST, field: str, new: object) -> Callable:
    def change():
        old = getattr(node, field)
        setattr(node, field, new)
        return lambda: setattr(node, field, old)

    return change


def _put(values: list, index: int, new: object) -> Callable:
    def change():
        old, values[index] = values[index], new
        return lambda: values.__setitem__(index, old)

    return change


def _mixed_up(tree: ast.AST, inside: set[int]) -> dict[int, list[ast.expr]]:
    """{id of a name, an attribute or a text: those that stand nearest to it in the source}."""
    found: dict[int, list[ast.expr]] = {}
    nodes = [node for node in ast.walk(tree) if getattr(node, "lineno", 0) in inside]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # a docstring
    texts = [
        node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts = [node for node in texts if id(node) not in parts]
    for node in texts:
        around = _nearest(node.value, [text.value for text in texts])
        found[id(node)] = [ast.Constant(value) for value in around]
    attributes = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    for node in attributes:
        of_it = [other.attr for other in attributes if other.value.id == node.value.id]
        found[id(node)] = [_like(node, attr=name) for name in _nearest(node.attr, of_it)]
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
        own = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        own.sort(key=lambda node: (node.lineno, node.col_offset))
        names += [node.id for node in own if isinstance(node.ctx, ast.Store)]
        called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        for node in own:
            if isinstance(node.ctx, ast.Load) and node.id in names and id(node) not in called:
                found[id(node)] = [_like(node, id=name) for name in _nearest(node.id, names)]
    return found


def _nearest(one: str, all_of_them: list[str]) -> list[str]:
    different = list(dict.fromkeys(all_of_them))
    index = different.index(one)
    return [*different[max(0, index - 1) : index], *different[index + 1 : index + 2]]


# ---------------------------------------------------------------- statements


def _blocks(block: list[ast.stmt], inside: set[int], given: set[str]) -> Iterator[list[ast.stmt]]:
    """The same block with one statement dropped, moved, repeated, written otherwise, unwrapped, or moved into or out of a loop, `if` or `with`."""
    for index, one in enumerate(block):
        if one.lineno not in inside or isinstance(one, ast.FunctionDef | ast.ClassDef):
            continue
        before, after = block[:index], block[index + 1 :]
        yield before + after or [ast.Pass()]
        if after and after[0].lineno in inside and not _apart(one, after[0]):
            yield [*before, after[0], one, *after[1:]]
        yield from ([*before, *instead, *after] for instead in _written_otherwise(one, given))
        if index and isinstance(one, ast.Expr) and before[0].lineno in inside:
            yield [one, *before, *after]
            yield [*before, *after, one]
        if not isinstance(one, COMPOUND):
            continue
        body = one.body
        yield before + body + after
        if isinstance(one, ast.If) and one.orelse:
            yield before + one.orelse + after
        first, last = body[0], body[-1]
        if len(body) > 1:
            yield [*before, first, _with_body(one, body[1:]), *after]
            yield [*before, _with_body(one, body[:-1]), last, *after]
        if after and after[0].lineno in inside:
            yield [*before, _with_body(one, [*body, after[0]]), *after[1:]]
        if before and before[-1].lineno in inside:
            yield [*before[:-1], _with_body(one, [before[-1], *body]), *after]


def _written_otherwise(one: ast.stmt, given: set[str]) -> Iterator[list[ast.stmt]]:
    """What stands in place of a statement: twice of it, `=` for `+=` and back, in place what was not, fewer turns of a loop."""
    if isinstance(one, ast.AugAssign):
        yield [one, one]
        target = _like(one.target, ctx=ast.Load())
        yield [_assign(one.target, one.value, one)]
        if isinstance(one.target, ast.Name) and not isinstance(one.op, ast.Add | ast.Sub):
            yield [_assign(one.target, ast.BinOp(target, one.op, one.value), one)]
    elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
        if _name(one.value.func) not in TWICE_IS_ONCE:
            yield [one, one]
    elif isinstance(one, ast.Assign):
        target, value = one.targets[0], one.value
        if isinstance(value, ast.BinOp | ast.Call | ast.Subscript):
            yield [_assign(target, _called(value, "detach"), one)]
        if isinstance(value, ast.BinOp) and ast.unparse(target) == ast.unparse(value.left):
            yield [ast.copy_location(ast.AugAssign(target, value.op, value.right), one)]
    elif isinstance(one, ast.Return) and (changed := _changes_what_it_was_given(one)):
        yield changed
    elif isinstance(one, ast.If) and not isinstance(one.body[-1], ast.Return):
        yield [_with_body(one, [*one.body, ast.Break()])]
    elif isinstance(one, ast.With) and len(one.items) > 1:
        for index in range(len(one.items)):
            yield [_like(one, items=_without(one.items, index))]
    elif isinstance(one, ast.For):
        yield [_with_body(one, [*one.body, ast.Break()])]
        inner = one.body[0]
        if len(one.body) == 1 and isinstance(inner, ast.For):
            yield [_with_body(inner, [_with_body(one, inner.body)])]
        for part in ast.walk(one.iter):
            if isinstance(part, ast.Name) and part.id in given:  # left as by `pop(0)` in each turn
                call = ast.Call(ast.Attribute(part, "clear", ast.Load()), [], [])
                yield [one, ast.copy_location(ast.Expr(call), one)]


def _assign(target: ast.expr, value: ast.expr, where: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Assign([target], value), where)


def _changes_what_it_was_given(one: ast.Return) -> list[ast.stmt]:
    """`return given | more` and `return {**given, ...}` as an update of what was given."""
    value = one.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        given, more = value.left, value.right
    elif isinstance(value, ast.Dict) and value.keys and value.keys[0] is None:
        given, more = value.values[0], _like(value, keys=value.keys[1:], values=value.values[1:])
    else:
        return []
    update = ast.Call(ast.Attribute(given, "update", ast.Load()), [more], [])
    return [ast.copy_location(ast.Expr(update), one), _like(one, value=given)]


def _apart(one: ast.stmt, other: ast.stmt) -> bool:
    """Whether both only make values, and neither uses what the other makes: then their order does not matter."""
    if not (isinstance(one, ast.Assign) and isinstance(other, ast.Assign)):
        return False
    if _does_something(one) and _does_something(other):
        return False
    return not (_names(one, ast.Store) & _names(other) or _names(other, ast.Store) & _names(one))


def _does_something(node: ast.AST) -> bool:
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(_name(call.func) not in ("len", "min", "max", "int", "range") for call in calls)


def _names(node: ast.AST, kind: type = ast.expr_context) -> set[str]:
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, kind)
    }


def _with_body(node: ast.stmt, body: list[ast.stmt]) -> ast.stmt:
    return _like(node, body=body)


def _like(node, **changes):
    fields = dict(ast.iter_fields(node)) | changes
    return ast.copy_location(type(node)(**fields), node)


def _of_node(node: ast.AST) -> Iterator[Callable]:
    """What is no expression put for another: operators of an assignment, conditions of a comprehension, a tuple's order."""
    if isinstance(node, ast.AugAssign):
        for other in OPERATORS.get(type(node.op), ()):
            yield _set(node, "op", other())
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _set(node, "test", _negated(node.test))
    if isinstance(node, ast.For):
        yield from (_set(node, "iter", other) for other in _other_turns(node.iter, ORDERS))
    for generator in getattr(node, "generators", ()):
        orders = ORDERS if isinstance(node, ast.ListComp) else ORDERS[1:]
        yield from (
            _set(generator, "iter", other) for other in _other_turns(generator.iter, orders)
        )
        for index, condition in enumerate(generator.ifs):
            yield _set(generator, "ifs", _without(generator.ifs, index))
            yield _put(generator.ifs, index, _negated(condition))


def _other_turns(turns: ast.expr, orders: tuple) -> Iterator[ast.expr]:
    """What is looped over, backwards and without its first or last element."""
    counted = isinstance(turns, ast.Call) and _name(turns.func) == "enumerate" and turns.args
    inner = turns.args[0] if counted else turns
    for lower, upper, step in orders:
        bounds = (None if one is None else ast.Constant(one) for one in (lower, upper, step))
        held = ast.Call(ast.Name("list", ast.Load()), [inner], [])
        other = ast.copy_location(ast.Subscript(held, ast.Slice(*bounds), ast.Load()), turns)
        yield _like(turns, args=[other, *turns.args[1:]]) if counted else other


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


# ---------------------------------------------------------------- expressions


def _instead(node: ast.expr, parent: ast.AST) -> Iterator[ast.expr]:
    """What a slip of the hand or of thought puts where this expression stands."""
    ways = WAYS.get(type(node))
    if (
        isinstance(node, ast.GeneratorExp | ast.ListComp)
        and _name(getattr(parent, "func", parent)) in CONSUMERS
    ):
        return  # read once, to its end: a list or a generator is the same there
    alone = isinstance(parent, ast.Expr)  # its value is not used
    for other in ways(node) if ways else ():
        if not alone or isinstance(other, ast.Call):
            yield other
    bound = isinstance(parent, ast.Slice) or (
        isinstance(parent, ast.Call) and _name(parent.func) == "range"
    )
    if bound and not isinstance(node, ast.Constant | ast.Slice | ast.Starred):
        yield ast.BinOp(node, ast.Add(), ast.Constant(1))
        yield ast.BinOp(node, ast.Sub(), ast.Constant(1))


def _name(node: ast.expr) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _without(values: list, index: int) -> list:
    return values[:index] + values[index + 1 :]


def _swaps(values: list) -> Iterator[list]:
    for index in range(len(values) - 1):
        yield [*values[:index], values[index + 1], values[index], *values[index + 2 :]]


def _constant(node):
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int) or isinstance(node.value, float) and node.value.is_integer():
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node.value, float):
        yield ast.Constant(node.value * 10)
        yield ast.Constant(node.value / 10)
    elif isinstance(node.value, str) and node.value in ("sum", "mean"):
        yield ast.Constant(TWINS[node.value])


def _operation(node):
    if not isinstance(node.op, ast.Add | ast.Mult):
        yield _like(node, left=node.right, right=node.left)
    yield from (_like(node, op=other()) for other in OPERATORS.get(type(node.op), ()))
    yield node.left
    yield node.right
    if isinstance(node.op, ast.FloorDiv):  # rounded up
        negative = ast.BinOp(ast.UnaryOp(ast.USub(), node.left), ast.FloorDiv(), node.right)
        yield ast.copy_location(ast.UnaryOp(ast.USub(), negative), node)
    for side in ("left", "right") if isinstance(node.op, ast.Mult | ast.Div) else ():
        operand = getattr(node, side)
        if isinstance(operand, ast.Name | ast.Call):
            yield _like(node, **{side: _called(operand, "item")})


def _called(node: ast.expr, method: str) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Attribute(node, method, ast.Load()), [], []), node)


def _sign(node):
    yield node.operand


def _comparison(node):
    for index, one in enumerate(node.ops):
        for other in COMPARISONS[type(one)]:
            if (
                other is ast.LtE
                and isinstance(node.left, ast.BinOp)
                and isinstance(node.left.op, ast.Mod)
            ):
                continue  # no remainder is less than 0
            yield _like(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])
    yield _negated(node)
    if isinstance(node.ops[0], ast.Is):  # as if nothing that is there were false
        yield _negated(node.left)
    elif isinstance(node.ops[0], ast.IsNot):
        yield node.left


def _boolean(node):
    yield _like(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if len(node.values) == 2:
        yield from node.values
    else:
        for index in range(len(node.values)):
            yield _like(node, values=_without(node.values, index))


def _choice(node):
    yield node.body
    yield node.orelse


def _call(node):
    name = _name(node.func)
    key = "id" if isinstance(node.func, ast.Name) else "attr"
    renamed = [TWINS[name]] if name in TWINS else []
    if key == "id" and name in ONLY_METHODS:
        renamed = []
    if key == "attr" and name.removesuffix("_") != name:
        renamed.append(name.removesuffix("_"))  # what is no longer done in place is lost
    elif key == "attr" and name in IN_PLACE:
        renamed.append(f"{name}_")
    for other in renamed:
        yield _like(node, func=_like(node.func, **{key: other}))
    if name == "enumerate" and len(node.args) + len(node.keywords) == 1:
        yield _like(node, args=[*node.args, ast.Constant(1)])
    if name not in ("min", "max"):
        yield from (_like(node, args=args) for args in _swaps(node.args))
    for index in range(len(node.args)):
        yield _like(node, args=_without(node.args, index))
    for index in range(len(node.keywords)):
        yield _like(node, keywords=_without(node.keywords, index))
    # A missing .detach(), .item(), .clone(), int(), max(): what it was called on or with remains.
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
    yield from (one.value if isinstance(one, ast.Starred) else one for one in node.args)


def _slice(node):
    for bound in ("lower", "upper", "step"):
        if getattr(node, bound):
            yield _like(node, **{bound: None})


def _subscript(node):
    if isinstance(node.ctx, ast.Load):
        yield node.value


def _attribute(node):
    if isinstance(node.ctx, ast.Load):
        yield node.value


def _elements(node):
    yield from (_like(node, elts=elements) for elements in _swaps(node.elts))
    if isinstance(node.ctx, ast.Load):
        for index in range(len(node.elts)):
            yield _like(node, elts=_without(node.elts, index))


def _entries(node):
    for index in range(len(node.keys)):
        yield _like(node, keys=_without(node.keys, index), values=_without(node.values, index))
    for values in _swaps(node.values):
        yield _like(node, values=values)


def _list_to_generator(node):
    yield ast.copy_location(ast.GeneratorExp(node.elt, node.generators), node)


def _generator_to_list(node):
    yield ast.copy_location(ast.ListComp(node.elt, node.generators), node)


WAYS = {
    ast.Constant: _constant,
    ast.BinOp: _operation,
    ast.UnaryOp: _sign,
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.IfExp: _choice,
    ast.Call: _call,
    ast.Slice: _slice,
    ast.Subscript: _subscript,
    ast.Attribute: _attribute,
    ast.Tuple: _elements,
    ast.List: _elements,
    ast.Dict: _entries,
    ast.ListComp: _list_to_generator,
    ast.GeneratorExp: _generator_to_list,
}
