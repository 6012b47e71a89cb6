"""Record what a training loop did, line by line, so that it can be replayed."""

import ast
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

MOST_FRAMES = (
    10_000  # a player with more steps than this shows nothing that a shorter run would not
)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
_PARSING = threading.Lock()  # Python 3.11 may raise a SystemError where two threads parse at once


class Frame(NamedTuple):
    """One executed line: its number in the source (1 is the first line) and the watched values after it ran."""

    line: int
    values: dict[str, float | None]


@dataclass(frozen=True)
class Trace:
    """A recorded call: the function's source, a frame per executed line, and what the call returned."""

    source: str
    frames: list[Frame]
    result: Any = None

    def to_dict(self) -> dict:
        """The trace as plain JSON values; a result that JSON cannot hold becomes its text."""
        frames = [frame._asdict() for frame in self.frames]
        return {"source": self.source, "frames": frames, "result": _plain(self.result)}

    @classmethod
    def from_dict(cls, record: dict) -> "Trace":
        """The trace that `to_dict` wrote."""
        return cls(
            record["source"], [Frame(**frame) for frame in record["frames"]], record["result"]
        )


def record(
    function: Callable,
    *args,
    watch: dict[str, Callable[[dict], Any]],
    hook: Callable[[Callable[[], None]], Any] = lambda look: None,
) -> Trace:
    """Call `function(*args)` and record every line of it that is executed; returns the `Trace`.

    `watch` names the values to follow. Each gets the function's local variables as a dictionary and returns a number
    or None; it is asked after every line. Where it fails because a variable is not there yet, the value is None.
    Lines of the functions that `function` calls are not recorded. An exception of `function` passes through.
    `hook` is given a function that adds a frame in the middle of the line that is being executed: for a hook of a model,
    which sees one line call for several micro-batches.
    ValueError: the source cannot be found, a watch never worked, or more than 10,000 lines were executed.
    """
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    try:
        lines, first = inspect.getsourcelines(inner)
    except (OSError, TypeError):
        lines = None
    if code is None or not lines:
        raise ValueError(
            f"record() found no Python source of {function!r}: give it a function defined in a cell or a file."
        )

    frames: list[Frame] = []
    comprehensions = _comprehensions_by_place(lines, first, code)
    errors: dict[str, Exception] = {}
    waiting: list[
        int
    ] = []  # the line that is being executed: its values are known when the next one starts
    executing: list = []  # the frame of the call

    def look():
        if not waiting:
            return
        values = {}
        for name, look_at in watch.items():
            try:
                values[name] = _number(look_at(dict(executing[0].f_locals)))
            except (KeyError, AttributeError, TypeError, IndexError) as error:
                values[name] = None
                errors[name] = error
        frames.append(Frame(waiting[0] - first + 1, values))
        if len(frames) > MOST_FRAMES:
            raise ValueError(
                f"{inner.__name__} executed more than {MOST_FRAMES:,} lines: record a run of a few updates."
            )

    def on_line(frame, event, _):
        line = frame.f_lineno
        if event == "line":
            around = comprehensions.get(frame.f_lasti, range(0))
            if line in around:  # a jump back may leave it
                line = around.start
                if waiting == [line]:
                    return on_line  # one more round
        if event in ("line", "return"):
            look()
            waiting.clear()
        if event == "line":
            waiting.append(line)
        return on_line

    def on_call(frame, event, _):
        if executing or frame.f_code is not code:
            return None
        executing.append(frame)
        return on_line

    hook(look)
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        result = function(*args)
    finally:
        sys.settrace(before)

    for name, error in errors.items():
        if all(frame.values[name] is None for frame in frames):
            raise ValueError(
                f"The watch {name!r} never gave a number; the last time it failed with {type(error).__name__}: {error}."
            ) from error
    return Trace(textwrap.dedent("".join(lines)).rstrip("\n"), frames, result)


def _comprehensions_by_place(lines: list[str], first: int, code: CodeType) -> dict[int, range]:
    """For each place in the code that belongs to a comprehension the lines of that.

    From Python 3.12 on comprehensions run within the function, and each of their rounds is an event of its lines.
    """
    indented = len(lines[0]) - len(lines[0].lstrip())
    try:
        with _PARSING:
            tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:  # a part of a statement, such as a lambda
        return {}
    places = [
        (2 * number, (line, column), (last, to))
        for number, (line, last, column, to) in enumerate(code.co_positions())
        if None not in (line, last, column, to)
    ]
    found: dict[int, range] = {}
    for node in _around_comprehensions(tree):
        above = first - 1
        start = node.lineno + above, node.col_offset + indented
        end = (node.end_lineno or 0) + above, (node.end_col_offset or 0) + indented
        own = range(start[0], end[0] + 1)
        found |= {place: own for place, begin, until in places if start <= begin and until <= end}
    return found


def _around_comprehensions(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Each comprehension, with what stands around it on no other lines."""
    for part in ast.iter_child_nodes(node):
        inside = [one for one in ast.walk(part) if isinstance(one, _COMPREHENSIONS)]
        lines = {(one.lineno, one.end_lineno) for one in inside}
        if (
            isinstance(part, ast.expr | ast.stmt)
            and not hasattr(part, "body")
            and (part.lineno, part.end_lineno) in lines
        ):
            yield part
        elif inside:
            yield from _around_comprehensions(part)


def _number(value) -> float | int | None:
    """`value` as a plain number: one-element tensors and arrays are read, None stays None."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (int, float)):
        return value
    return float(value)


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def contributions(frames) -> list[list[tuple[float | None, float]]]:
    """For every frame, what each micro-batch added to the gradient since it was cleared: (micro-batch, amount)."""
    window: list[tuple[float | None, float]] = []
    before, result = 0.0, []
    for frame in frames:
        gradient, batch = frame.values.get("gradient"), frame.values.get("micro-batch")
        if not gradient:
            window, before = [], 0.0
        elif gradient != before:
            added = gradient - before
            if window and window[-1][0] == batch:
                window = window[:-1] + [(batch, window[-1][1] + added)]
            else:
                window = window + [(batch, added)]
            before = gradient
        result.append(window)
    return result


def updates(frames) -> list[int]:
    """The indices of the frames in which the weight changed."""
    weights = [frame.values.get("weight") for frame in frames]
    return [
        i
        for i in range(1, len(weights))
        if None not in (weights[i], weights[i - 1]) and weights[i] != weights[i - 1]
    ]
