"""What a probe sees of an answer, and how that travels between processes."""

import contextlib
import inspect
import io
import json
import os
import random
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainlean.collector import spared
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise
from trainlean.notebooks.statements import Needed, run_statements
from trainlean.workspace import COURSE


@dataclass(frozen=True)
class Seen:
    """What a probe saw, or what stopped it."""

    observation: Observation = field(default_factory=dict)
    attempted: bool = True
    traceback: str = ""
    printed: str = ""
    beside: str = ""  # sentences about the answer that may explain the rest


def see(exercise: Exercise, answer: object, seed: int) -> Seen:
    """Probe an answer. Whatever it prints is kept aside, and whatever it raises becomes part of what was seen.

    A KeyboardInterrupt passes, with what was printed as its `printed`.
    """
    if answer is None or answer is ...:
        return Seen(attempted=False)
    printed, beside = io.StringIO(), [_never_run(answer)]
    try:
        with (
            undisturbed(seed),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            try:
                observation = {
                    name: plain(value) for name, value in exercise.probe(answer, seed).items()
                }
            finally:
                beside.append(_left_behind())
    except KeyboardInterrupt as interrupt:
        interrupt.printed = printed.getvalue()  # type: ignore[attr-defined]
        raise
    except BaseException as error:
        if _is_of_the_stub(error):
            return Seen(attempted=False)
        first_line = (_words_of(error).splitlines() or [""])[0]
        return Seen(
            {"raised": f"{type(error).__name__}: {first_line[:LETTERS_OF_A_VALUE]}"},
            traceback=learners_part(error)[-LETTERS:],
            printed=printed.getvalue(),
            beside=" ".join(filter(None, beside)),
        )
    return Seen(observation, printed=printed.getvalue(), beside=" ".join(filter(None, beside)))


def _never_run(answer):
    """Of a function whose body does not run when it is called."""
    if inspect.iscoroutinefunction(answer):
        return "Your answer is an `async def`: a call alone runs none of its lines."
    if inspect.isgeneratorfunction(answer) or inspect.isasyncgenfunction(answer):
        return "Your answer has a `yield`: a call runs none of its lines until somebody iterates over it."
    return ""


def _left_behind():
    """What the answer has changed of how torch computes."""
    import torch

    changed = {
        f"torch's default type is {torch.get_default_dtype()}": torch.get_default_dtype()
        != torch.float32,
        f"new tensors are on the device {torch.get_default_device()}": torch.get_default_device().type
        != "cpu",
        "gradients are switched off": not torch.is_grad_enabled(),
        "autocast is on": torch.is_autocast_enabled("cpu"),
    }
    words = " and ".join(words for words, is_so in changed.items() if is_so)
    return f"After your answer {words}, which changes all that is computed then." if words else ""


def see_answer(exercise: Exercise, needed: Needed, seed: int) -> Seen:
    """What the probe sees of the answer that the statements build; call it only where they may run."""
    try:
        answer = run_statements(needed)[exercise.name]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_of_the_stub(error):
            return Seen(attempted=False)
        raised = f"{type(error).__name__}: {_words_of(error)} (while its cell was run)"
        seen = Seen({"raised": raised}, traceback=learners_part(error))
        return _with_what_was_left_out(seen, needed)
    return _with_what_was_left_out(see(exercise, answer, seed), needed)


def _is_of_the_stub(error):
    """A library's own NotImplementedError says what is missing."""
    return type(error) is NotImplementedError and not _words_of(error)


def _words_of(error):
    if isinstance(error, SystemExit):
        return "it ends the program; return instead"
    try:
        return str(error)
    except Exception as another:  # an error of the answer's own, whose words fail
        return f"its words cannot be had ({type(another).__name__})"


def _with_what_was_left_out(seen: Seen, needed: Needed) -> Seen:
    """The same; a name that is missing because its cell was not run is told with that cell."""
    raised = str(seen.observation.get("raised", ""))
    missing = re.match(r"NameError: name '(\w+)' is not defined", raised)
    if not missing or missing[1] not in needed.left_out:
        return seen
    cell = needed.left_out[missing[1]]
    why = f"{raised}; cell {cell} of the lesson makes it, and a check runs of the lesson only what defines things: make it within your answer"
    return replace(seen, observation={"raised": why})


@contextlib.contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """Randomness starts from the seed inside and goes on outside as if nothing had happened, and torch computes as it does at its start; warnings are kept quiet, and so is the collector."""
    import torch

    before = random.getstate(), np.random.get_state()
    with (
        _as_torch_starts(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        spared(),
    ):
        warnings.simplefilter("ignore")
        # Not torch.manual_seed, which notes its whole stack for each kind of card that is not in use.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


@contextlib.contextmanager
def _as_torch_starts():
    """Float32, on the CPU, with gradients and without autocast, whatever an earlier cell has set; afterwards that again."""
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    # A device in force would also turn away what is made for none.
    elsewhere = contextlib.nullcontext() if device.type == "cpu" else torch.device("cpu")
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), elsewhere:
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if device.type == "cpu" != torch.get_default_device().type:
                torch.set_default_device(None)


def learners_part(error: BaseException) -> str:
    """The traceback without the frames of this course that called the answer; empty where the learner's code raised nothing.

    Then the answer had returned, and the probe failed at what it was given.
    """
    # Raised in another process, its frames come back as a note.
    files = re.findall(r'File "([^"]+)", line', "\n".join(getattr(error, "__notes__", ())))
    if files and not files[-1].startswith((*COURSE_CODE, *LIBRARIES)):
        return "".join(traceback.format_exception_only(error))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(COURSE_CODE)
    ]
    if isinstance(error, _MISUSES) and all(
        frame.filename.startswith(LIBRARIES) for frame in frames
    ):
        return ""
    kept = frames or traceback.extract_tb(error.__traceback__)[-1:]
    # Only with its frames does Python say what a misspelt name may have meant.
    words = traceback.TracebackException.from_exception(error).format_exception_only()
    return "".join([*traceback.format_list(kept), *words])


COURSE_CODE = tuple(f"{COURSE / room}{os.sep}" for room in ("trainlean", "exercises_tests"))
LIBRARIES = (
    "<frozen",
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
_MISUSES = (
    TypeError,
    AttributeError,
    ValueError,
    LookupError,
)  # what a value of the wrong kind leads to


NUMBERS = "biuf"  # the kinds of arrays that an observation may hold
BITS = 1024  # of an integer that travels as a number: as many as the largest float has
LETTERS, LETTERS_OF_A_VALUE = 10_000, 4_000  # of what travels


def plain(value: object) -> object:
    """A value as an observation may hold it: numbers, strings and numpy arrays; anything else by a short description."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        return value
    if isinstance(value, int) and value.bit_length() > BITS:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, int | float) for item in value)
    ):
        array = np.asarray(value)
        if array.dtype.kind in NUMBERS:
            return array
    try:
        text = repr(value)
    except Exception as error:  # too deep for Python, or of a class that cannot say what it is
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."


def pack(seen: Seen) -> bytes:
    """`Seen` as bytes without pickle: numpy's own format, with everything that is no array as JSON inside."""
    arrays = {
        name: value for name, value in seen.observation.items() if isinstance(value, np.ndarray)
    }
    rest = {name: value for name, value in seen.observation.items() if name not in arrays}
    head = {
        "order": list(seen.observation),
        # An error may name a whole tensor: what it is stands at its beginning.
        "values": {
            name: value[:LETTERS_OF_A_VALUE] if isinstance(value, str) else value
            for name, value in rest.items()
        },
        "attempted": seen.attempted,
        "traceback": seen.traceback[-LETTERS:],
        "printed": seen.printed[-LETTERS:],
        "beside": seen.beside,
    }
    file = io.BytesIO()
    words = json.dumps(head | {"arrays": list(arrays)}).encode()
    named: dict[str, Any] = {"head": np.frombuffer(words, dtype=np.uint8)}
    named |= {f"array{number}": arrays[name] for number, name in enumerate(arrays)}
    np.savez(file, **named)
    return file.getvalue()


def unpack(data: bytes) -> Seen:
    """The `Seen` that `pack` made; nothing in the bytes is executed.

    Bytes of another form raise what numpy and json say of them.
    """
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
        head["beside"],
    )
