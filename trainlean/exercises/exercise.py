"""What an exercise is, and how an answer is judged.

An exercise is a probe, an oracle and its known mistakes. The probe asks the answer fresh questions drawn from a seed and
returns what it saw: an observation, named numbers and arrays in the order in which they should be looked at. The oracle
says what must be seen, from independent truth. A mistake is a wrong answer with one sentence why. The verdict only
compares observations: equal to the oracle is right, equal to a mistake's is that mistake, anything else is told by the
first place where it parts from the oracle. Nothing here knows how a particular mistake looks.
"""

import contextlib
import importlib
import io
import json
import math
import random
import re
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from trainlean.workspace import COURSE, CourseError

Observation = dict[str, object]  # str -> int, float, bool, str, None or numpy array

NOT_ATTEMPTED, WRONG, CRASHED, RIGHT, CANNOT = OUTCOMES = (
    "not attempted",
    "wrong",
    "crashed",
    "right",
    "cannot be checked here",
)


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer. `answers` are ways of writing it; one of them equal to the learner's is enough."""

    name: str
    why: str
    hint: str
    answers: tuple

    def __init__(self, name: str, *answers, why: str, hint: str):
        for key, value in {"name": name, "why": why, "hint": hint, "answers": answers}.items():
            object.__setattr__(self, key, value)


@dataclass(frozen=True)
class Exercise:
    """One exercise, named like the function or value that the learner writes.

    probe(answer, seed) -> Observation; oracle(seed) -> Observation; `truth` names what the oracle stands for in messages;
    `hints` go from a nudge to nearly the answer; `also_right` holds other right ways of writing it, for the tests.
    `requires`, where given, returns a sentence why the exercise cannot be checked on this machine, or an empty string.
    """

    name: str
    points: int
    probe: Callable[[object, int], Observation]
    oracle: Callable[[int], Observation]
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, ...]
    also_right: tuple
    truth: str = "the right one"
    devices: int = 1
    requires: Callable[[], str] | None = None
    notebook: str = ""


@dataclass(frozen=True)
class Seen:
    """What a probe saw, or what stopped it."""

    observation: Observation = field(default_factory=dict)
    attempted: bool = True
    traceback: str = ""
    printed: str = ""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one answer: message first, then what was seen, why, and a hint."""

    exercise: str
    notebook: str
    outcome: str
    points: int
    possible: int
    message: str
    mistake: str = ""
    why: str = ""
    hint: str = ""
    traceback: str = ""
    printed: str = ""

    def __str__(self):
        """The fixed text form: outcome and points, what was seen, why, a question."""
        head = f"{self.exercise}: {self.outcome}, {self.points} of {self.possible} points"
        if self.outcome == RIGHT:
            return head
        parts = {
            "": self.message,
            "Mistake: ": self.mistake,
            "Why: ": self.why,
            "Hint: ": self.hint,
        }
        return "\n  ".join([head] + [label + text for label, text in parts.items() if text])


# ---------------------------------------------------------------- finding exercises


@cache
def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by its name, in course order."""
    if str(COURSE) not in sys.path:
        sys.path.insert(0, str(COURSE))  # exercises_tests is no part of the installed package
    found = {}
    for path in sorted((COURSE / "exercises_tests").glob("[0-9]*/[0-9]*.py")):
        notebook = path.relative_to(COURSE / "exercises_tests").with_suffix("").as_posix()
        module = importlib.import_module(f"exercises_tests.{notebook.replace('/', '.')}")
        for exercise in module.EXERCISES:
            if exercise.name in found:
                raise CourseError(
                    f"Two exercises are named {exercise.name}: in {found[exercise.name].notebook} and {notebook}; rename one."
                )
            object.__setattr__(exercise, "notebook", notebook)
            found[exercise.name] = exercise
    return found


def find_exercise(name: str) -> Exercise:
    """The exercise of that name; one sentence with all names when there is none."""
    exercises = all_exercises()
    if name not in exercises:
        raise CourseError(
            f"There is no exercise named {name!r}; the exercises are {', '.join(exercises)}."
        )
    return exercises[name]


# ---------------------------------------------------------------- seeing


def see(exercise: Exercise, answer: object, seed: int) -> Seen:
    """Probe an answer. Whatever it prints is kept aside, and whatever it raises becomes part of what was seen."""
    if answer is None or answer is ...:
        return Seen(attempted=False)
    printed = io.StringIO()
    try:
        with (
            _undisturbed(seed),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            observation = exercise.probe(answer, seed)
    except Exception as error:
        if type(error) is NotImplementedError and not str(
            error
        ):  # the stub's own; a library's says what is missing
            return Seen(attempted=False)
        first_line = (str(error).splitlines() or [""])[0]
        return Seen(
            {"raised": f"{type(error).__name__}: {first_line}"},
            traceback=learners_part(error),
            printed=printed.getvalue(),
        )
    return Seen(
        {name: plain(value) for name, value in observation.items()}, printed=printed.getvalue()
    )


@contextlib.contextmanager
def _undisturbed(seed: int):
    """Randomness starts from the seed inside and goes on outside as if nothing had happened; warnings are kept quiet."""
    import torch

    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def learners_part(error: Exception) -> str:
    """The traceback without the frames of this course that called the answer; empty where the learner's code raised nothing.

    Then the answer had returned, and the probe failed at what it was given.
    """
    # Raised in another process, its frames come back as a note.
    files = re.findall(r'File "([^"]+)", line', "\n".join(getattr(error, "__notes__", ())))
    if files and not files[-1].startswith((*_COURSE_CODE, *_LIBRARIES)):
        return "".join(traceback.format_exception_only(error))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_COURSE_CODE)
    ]
    if isinstance(error, _MISUSES) and all(
        frame.filename.startswith(_LIBRARIES) for frame in frames
    ):
        return ""
    kept = frames or traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(traceback.format_list(kept) + traceback.format_exception_only(error))


_COURSE_CODE = (str(COURSE / "trainlean"), str(COURSE / "exercises_tests"))
_LIBRARIES = (
    "<frozen",
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
_MISUSES = (
    TypeError,
    AttributeError,
    ValueError,
    LookupError,
)  # what a value of the wrong kind leads to


def plain(value: object) -> object:
    """A value as an observation may hold it: numbers, strings and numpy arrays; anything else by a short description."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float | str | type(None) | np.ndarray):
        return value
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, int | float) for item in value)
    ):
        return np.asarray(value)
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---------------------------------------------------------------- judging


def judge(exercise: Exercise, answer: object, seed: int, patience: float = math.inf) -> Verdict:
    """Probe an answer here and now and give the verdict; known mistakes are looked through for `patience` seconds."""
    return cannot_check(exercise) or verdict(
        exercise, see(exercise, answer, seed), seed, patience=patience
    )


def cannot_check(exercise: Exercise) -> Verdict | None:
    """The verdict on any answer where this machine lacks what the probe needs; None where it has it."""
    why = exercise.requires() if exercise.requires else ""
    return (
        Verdict(exercise.name, exercise.notebook, CANNOT, 0, exercise.points, why) if why else None
    )


def verdict(
    exercise: Exercise,
    seen: Seen,
    seed: int,
    memory: dict | None = None,
    patience: float = math.inf,
) -> Verdict:
    """The verdict on what was seen of an answer. `seed` must be the one that the probe was given.

    `memory` keeps the oracle's and the mistakes' observations for the next answer to the same questions.
    A mistake that is not found within `patience` seconds stays without its name.
    """
    memory = {} if memory is None else memory

    def remembered(what, see_it):
        if (found := memory.get((exercise.name, seed, what))) is None:
            found = see_it()
            if (
                "raised" not in found
            ):  # that may have been the machine's fault, and need not be so the next time
                memory[exercise.name, seed, what] = found
        return found

    def say(outcome, message, **more):
        earned = exercise.points if outcome == RIGHT else 0
        return Verdict(
            exercise.name, exercise.notebook, outcome, earned, exercise.points, message, **more
        )

    if not seen.attempted:
        return say(
            NOT_ATTEMPTED,
            "Nothing to check yet: replace the line `raise NotImplementedError()` (or None) by your answer, then run its cell.",
        )
    truth = remembered("oracle", lambda: see_oracle(exercise, seed))
    difference = first_difference(seen.observation, truth, exercise.truth)
    if difference is None:
        return say(RIGHT, "Right.", printed=seen.printed)
    extra = {"printed": seen.printed, "traceback": seen.traceback}
    raised = seen.observation.get("raised")
    message = (
        _of_an_error(exercise.name, raised, seen.traceback)
        if raised
        else f"{difference[:1].upper()}{difference[1:]} (seed {seed})."
    )
    if (
        raised
        and exercise.also_right
        and same(
            seen.observation,
            remembered("right", lambda: see(exercise, exercise.also_right[0], seed).observation),
        )
    ):
        return say(
            CANNOT,
            f"This cannot be checked here: a right answer raises {raised}, too.",
            traceback=seen.traceback,
        )
    end = time.monotonic() + patience
    for mistake in exercise.mistakes:
        for number, wrong in enumerate(mistake.answers):
            if time.monotonic() > end:
                break
            if same(
                seen.observation,
                remembered(
                    (mistake.name, number),
                    lambda wrong=wrong: see(exercise, wrong, seed).observation,
                ),
            ):
                return say(
                    WRONG,
                    message,
                    mistake=mistake.name,
                    why=mistake.why,
                    hint=mistake.hint,
                    **extra,
                )
    return say(CRASHED if raised else WRONG, message, hint=exercise.hints[0], **extra)


def _of_an_error(name: str, raised: str, learners_traceback: str) -> str:
    if learners_traceback:
        return f"Your answer raised {raised}"
    if re.match(rf"TypeError: (\S*\.)?{name}(\.__init__)?\(\) ", raised):
        return f"Your answer does not take the arguments that the exercise names ({raised})."
    # A None may also lie within what was returned.
    return f"What your answer returned could not be used ({raised})" + (
        ": is a `return` missing, or a value None?" if "None" in raised else "."
    )


def see_oracle(exercise: Exercise, seed: int) -> Observation:
    """What must be seen, in the form in which answers are seen."""
    with _undisturbed(seed):
        return {name: plain(value) for name, value in exercise.oracle(seed).items()}


def same(one: Observation, other: Observation) -> bool:
    """Whether two observations hold the same names with equal values (floats to a relative 1e-4)."""
    return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)


def equal(one: object, other: object) -> bool:
    """Numbers and arrays to a relative 1e-4 of the largest entry, everything else exactly."""
    exact = (bool, str, type(None))
    if isinstance(one, exact) or isinstance(other, exact):
        return type(one) is type(other) and one == other
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape:
        return False
    largest = float(np.abs(other).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-5 * largest + 1e-9))


def first_difference(got: Observation, want: Observation, truth: str) -> str | None:
    """The first place where an observation parts from the oracle's, in words; None when it does not."""
    for name, right in want.items():
        if name not in got:
            return f"{name} is missing"
        if not equal(got[name], right):
            return f"{name} {describe(got[name], right, truth)}"
    extra = next((name for name in got if name not in want), None)
    return None if extra is None else f"{extra} should not be there"


def describe(got: object, want: object, truth: str) -> str:
    """How a value differs from the right one, as the end of a sentence."""
    if not all(isinstance(value, np.ndarray) for value in (got, want)):
        return f"is {_short(got)}; {truth} is {_short(want)}"
    if got.shape != want.shape:
        return f"has shape {got.shape}; {truth} has {want.shape}"
    got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    if not np.isfinite(got).all():
        return "is not finite"
    lengths = np.linalg.norm(got), np.linalg.norm(want)
    if min(lengths) == 0:
        return f"is zero; {truth} is not" if lengths[0] == 0 else f"is not zero; {truth} is"
    ratio, cosine = lengths[0] / lengths[1], float(got @ want / (lengths[0] * lengths[1]))
    if cosine > 1 - 1e-6:
        digits = ".5f" if abs(ratio - 1) <= 0.01 else ".2f" if ratio > 0.1 else ".2g"
        return f"is {ratio:{digits}} times {truth}"
    if want.size <= 12:
        return f"is {_short(got)}; {truth} is {_short(want)}"
    return f"points elsewhere than {truth}: cosine {cosine:.3f}, length {ratio:.2f} of it"


def _short(value: object) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(_short(item) for item in value.ravel().tolist()[:12]) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- carrying what was seen between processes


def pack(seen: Seen) -> bytes:
    """`Seen` as bytes without pickle: numpy's own format, with everything that is no array as JSON inside."""
    arrays = {
        name: value for name, value in seen.observation.items() if isinstance(value, np.ndarray)
    }
    rest = {name: value for name, value in seen.observation.items() if name not in arrays}
    head = {
        "order": list(seen.observation),
        "values": rest,
        "attempted": seen.attempted,
        "traceback": seen.traceback,
        "printed": seen.printed[-10_000:],
    }
    file = io.BytesIO()
    named = {f"array{number}": arrays[name] for number, name in enumerate(arrays)}
    np.savez(
        file,
        head=np.frombuffer(json.dumps(head | {"arrays": list(arrays)}).encode(), dtype=np.uint8),
        **named,
    )
    return file.getvalue()


def unpack(data: bytes) -> Seen:
    """The `Seen` that `pack` made; nothing in the bytes is executed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        head = json.loads(archive["head"].tobytes())
        values = head["values"] | {
            name: archive[f"array{number}"] for number, name in enumerate(head["arrays"])
        }
    return Seen(
        {name: values[name] for name in head["order"]},
        head["attempted"],
        head["traceback"],
        head["printed"],
    )
