"""What a public function says of arguments that it cannot use: one sentence, in place of an error deep within the library."""

import functools
import inspect
import numbers
import sysconfig
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path

from trainlean.workspace import CourseError

LIBRARY = str(Path(__file__).parent)
OTHERS = (
    "<frozen",
    "<string>",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
# What wrong arguments lead to; of another error they are the cause only where one is not what the function takes.
MISUSES = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    ArithmeticError,
    StopIteration,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)


class WrongArgument(CourseError, TypeError):
    """A call with an argument too many, missing, or of another kind than the function takes."""


@functools.cache
def explained(function: Callable) -> Callable:
    """The function; where it fails at its arguments, a WrongArgument says which, and what it takes.

    What a function given to it raises, and what the library raises in words of its own, pass through.
    """

    @functools.wraps(function)
    def call(*args, **named):
        try:
            return function(*args, **named)
        except Exception as error:
            if sentence := _sentence(function, args, named, error):
                raise WrongArgument(sentence) from error
            raise

    call.__module__ = "trainlean"  # where pickle finds it
    return call


def explained_class(kind: type) -> type:
    """The class itself, which now answers a wrong construction as an `explained` function does."""
    made = kind.__init__  # type: ignore[misc]
    if hasattr(made, "__wrapped__"):
        return kind

    @functools.wraps(made)
    def construct(self, *args, **named):
        try:
            made(self, *args, **named)
        except Exception as error:
            # A subclass has arguments of its own.
            if type(self) is kind and (sentence := _sentence(kind, args, named, error)):
                raise WrongArgument(sentence) from error
            raise

    kind.__init__ = construct  # type: ignore[misc]
    return kind


def _sentence(function, args, named, error: Exception) -> str:
    """What was wrong with a call that failed; empty where its error is not about its arguments."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if not all(file.startswith((LIBRARY, *OTHERS)) for file in files) or says_itself(error):
        return ""  # the caller's own function raised it, or it is a sentence of the library
    name, takes = function.__name__, f"`{function.__name__}?` shows what it takes."
    try:
        bound = inspect.signature(function).bind(*args, **named)
    except TypeError as missing:
        what = str(missing).replace("keyword-only ", "")  # a word of Python 3.12 and later
        return f"{name}: {what}. {name} takes {', '.join(_parameters(function))}; {takes}"
    wanted = _annotations(function)
    for argument, value in bound.arguments.items():
        if argument in wanted and not fits(value, wanted[argument]):
            return f"{name}: {argument} is {shown(value)}; it must be {described(wanted[argument])}. {takes}"
    if not isinstance(error, MISUSES):
        return ""
    given = ", ".join(f"{key} = {shown(value)}" for key, value in bound.arguments.items())
    return f"{name} cannot work with {given or 'this'} ({type(error).__name__}: {error}). {takes}"


def says_itself(error: BaseException) -> bool:
    """Whether this library has raised the error, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(LIBRARY) and (last.line or "").startswith("raise ")


def _parameters(function) -> list[str]:
    """The names of the parameters as one would write a call, those first that have to be given."""
    return [
        f"{p.name}=..." if p.kind is p.KEYWORD_ONLY else p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ] or ["no argument that has to be given"]


@functools.cache
def _annotations(function) -> dict:
    parameters = inspect.signature(function).parameters.values()
    # What *args and **named hold is annotated one by one, and is nothing to be told.
    collecting = {p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    try:
        called = vars(function)["__init__"] if isinstance(function, type) else function
        hints = typing.get_type_hints(called)
    except NameError:  # an annotation that is only there for mypy
        return {}
    return {name: hint for name, hint in hints.items() if name not in collecting}


def fits(value: object, wanted) -> bool:
    """Whether a value can be what an annotation says; when in doubt it can."""
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if wanted in (None, types.NoneType):
        return value is None
    if wanted in (int, float):
        kind = numbers.Integral if wanted is int else numbers.Real
        # Of a tensor, too, a number can be made.
        return isinstance(value, kind | wanted) and not isinstance(value, bool) or _is_tensor(value)
    if origin is typing.Literal:
        return value in parts
    kind = origin or wanted
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if issubclass(kind, Iterable) and kind not in (str, bytes) and origin:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        if getattr(value, "ndim", 1) == 0:  # a tensor of one number, which only seems to have items
            return False
        if kind is tuple or not isinstance(value, Sized) or len(parts) != 1:
            return True  # an iterator is not used up here
        return all(fits(item, parts[0]) for item in value)
    return isinstance(value, kind)


def _is_tensor(value) -> bool:
    return hasattr(value, "detach") and getattr(value, "ndim", None) == 0


def described(wanted) -> str:
    """An annotation in words: `Sequence[Run] | None` is "a list (of Run) or None"."""
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(described(part) for part in parts)
    if wanted in (None, types.NoneType):
        return "None"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
    if wanted in words:
        return words[wanted]
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    kind = origin or wanted
    if not isinstance(kind, type):
        return str(wanted)
    if kind is Mapping or origin and issubclass(kind, Mapping):
        return "a dictionary"
    if kind in (Iterable, Sequence) or origin and issubclass(kind, Iterable):
        inner = getattr(parts[0], "__name__", "") if len(parts) == 1 else ""
        return f"a list of {inner}" if inner else "a list"
    if kind.__name__ == "Callable":
        return "a function"
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def shown(value: object) -> str:
    """A value within a sentence: as Python writes it, or its beginning and its type."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:50]}... (a {type(value).__name__})"
