"""What a learner calls beside an exercise: `check` and `hint`, shown as a small panel."""

import contextlib
import inspect
import numbers
import os
import secrets
import threading
import time
from collections.abc import Iterator
from html import escape

from IPython.display import display

from trainlean.arguments import LIBRARY, shown
from trainlean.exercises.finding import all_exercises, find_exercise, place_in_lesson
from trainlean.exercises.own_loop import ask_about_own_loop
from trainlean.exercises.progress import record_verdict
from trainlean.exercises.verdicts import (
    CANNOT,
    CRASHED,
    NOT_ATTEMPTED,
    RIGHT,
    SAME_RESULTS,
    WRONG,
    Verdict,
    judge,
)
from trainlean.pictures.cards import Card, code_html, folding_card, prose_html, text_card
from trainlean.pictures.colours import BROKEN, GOOD, NEUTRAL, POOR
from trainlean.workspace import CourseError

OUTCOME_COLOURS = {
    RIGHT: GOOD,
    WRONG: POOR,
    CRASHED: BROKEN,
    NOT_ATTEMPTED: NEUTRAL,
    CANNOT: NEUTRAL,
}
SEARCH_SECONDS = 3  # seconds to look for a mistake among the known ones: a learner waits for it
PATIENCE = 10  # seconds of a check before something is said
PRINTED, LETTERS = "What your answer printed", 2000  # the last ones
_hints_given: dict[str, int] = {}
_compared: dict = {}  # of the last exercise and seed: where time ran out, the same seed goes on


def check(*answer, seed: int | None = None, **named) -> None:
    """Check an answer: `check(my_function)` for a function or class, `check(name=value)` for a value.

    `check("name")` takes what the caller has of that name, such as the cell's notebook. The questions are drawn afresh each time; `seed` repeats those of an earlier message. CourseError: no exercise of that
    name, not exactly one answer, or no such seed. Under nbgrader an answer that is not right is an AssertionError.
    """
    name, value = _named_answer("check", answer, named)
    exercise = find_exercise(name)
    if answer and isinstance(value, str):
        value = _of_the_caller(name)
    if seed is None:
        seed = secrets.randbelow(1_000_000)
    elif not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**32:
        raise CourseError(
            f"check: seed is {shown(seed)}; it is a whole number from 0 to {2**32 - 1}, such as a verdict names."
        )
    if not any(key[:2] == (exercise.name, seed) for key in _compared):
        _compared.clear()
    try:
        with _still_running(name):
            found = judge(exercise, value, seed, SEARCH_SECONDS, _compared)
    except KeyboardInterrupt as interrupt:
        text = f"{name}: interrupted before it gave an answer. Does a loop in it never end?"
        title = escape(name), "interrupted before it gave an answer"
        folded = {PRINTED: _last_of(getattr(interrupt, "printed", ""))}
        question = ["Does a loop in it never end?"]
        display(folding_card(text, title, question, folded, OUTCOME_COLOURS[CRASHED]))
        return
    display(panel(found))
    if unkept := record_verdict(found):
        text = f"{name}: {found.outcome}, but it could not be kept. {unkept}"
        display(text_card(text, OUTCOME_COLOURS[CRASHED]))
    if os.environ.get("NBGRADER_EXECUTION"):
        if found.outcome != RIGHT:  # nbgrader takes a cell without an error for full points
            raise AssertionError(str(found))
    elif found.outcome == RIGHT:
        ask_about_own_loop(name, value)


def hint(*answer, **named) -> None:
    """Show the next hint of an exercise; each call tells a little more: `hint(my_function)` or `hint(name=None)`.

    CourseError: no exercise of that name, or not exactly one answer.
    """
    name, _ = _named_answer("hint", answer, named)
    hints = find_exercise(name).hints
    number = min(_hints_given.get(name, 0), len(hints) - 1)
    _hints_given[name] = number + 1
    last = ", the last" if len(hints) > 1 and number + 1 == len(hints) else ""
    display(text_card(f"Hint {number + 1} of {len(hints)}{last}: {hints[number]}"))


@contextlib.contextmanager
def _still_running(name: str) -> Iterator[None]:
    """Say so when the check takes long: a loop without an end leaves nothing else on the screen."""
    text = f"{name} is still running after {PATIENCE} s. Does a loop in it never end, or is the machine busy? Interrupt (the square above, or I, I) stops it."
    said: list = []
    # What is printed meanwhile is taken for the answer's; a display is not.
    timer = threading.Timer(
        PATIENCE, lambda: said.append(display(text_card(text), display_id=True))
    )
    timer.daemon = True
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        for handle in filter(None, said):
            handle.update(text_card(f"{name} ran for {time.monotonic() - start:.0f} s."))


def _named_answer(caller: str, answer: tuple, named: dict) -> tuple[str, object]:
    if len(answer) + len(named) != 1:
        raise CourseError(
            f"{caller} takes one answer: {caller}(my_function), or {caller}(name=value) for a value."
        )
    if named:
        return next(iter(named.items()))
    if answer[0] is None or answer[0] is ...:
        raise CourseError(
            f"{caller} was given {answer[0]}, which has no name: write the answer first, or call {caller}(name=...) with the exercise's name."
        )
    name = answer[0] if isinstance(answer[0], str) else getattr(answer[0], "__name__", None)
    if name is None:
        raise CourseError(
            f"{caller} was given a value without its name: write {caller}(name=value) with the exercise's name."
        )
    if name not in all_exercises() and callable(answer[0]):
        raise CourseError(
            f"{caller} knows an exercise by its name, and this function was made as {name}: write it with `def`, or call {caller}(exercise_name=...)."
        )
    return name, answer[0]


def _of_the_caller(name: str) -> object:
    """What a name means where `check` was called: in the nearest function or notebook outside of this library."""
    frame = inspect.currentframe()
    while frame and frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    known = {**frame.f_globals, **frame.f_locals} if frame else {}
    if name not in known:
        raise CourseError(
            f"There is no {name} here yet: run the cell that defines it, then check again."
        )
    return known[name]


def _last_of(printed: str) -> str:
    return code_html(printed[-LETTERS:])


def panel(verdict: Verdict) -> Card:
    """A verdict as a card: outcome, what was seen, why; the hint and the traceback folded."""
    exercise = find_exercise(verdict.exercise)
    points = f"{verdict.points} of {verdict.possible} points"
    words = [escape(verdict.exercise), place_in_lesson(exercise), points]
    lines = []
    if verdict.outcome != RIGHT:
        lines.append(prose_html(verdict.message))
    if verdict.mistake:
        name = verdict.mistake[:1].upper() + verdict.mistake[1:]  # AdamW stays AdamW
        lines.append(f"{SAME_RESULTS}:<br><b>{escape(name)}.</b> {prose_html(verdict.why)}")
    folded = {
        "A hint": prose_html(verdict.hint),
        "Where it was raised": code_html(verdict.traceback),
        PRINTED: _last_of(verdict.printed),
    }
    if verdict.outcome in (WRONG, CRASHED, NOT_ATTEMPTED):
        number = len(exercise.hints)
        lines.append(
            f'<code>hint("{verdict.exercise}")</code> gives the first of {number} hints.'
            if number > 1
            else f'<code>hint("{verdict.exercise}")</code> gives a hint.'
        )
    title = escape(verdict.outcome.capitalize()), " · ".join(word for word in words if word)
    return folding_card(str(verdict), title, lines, folded, OUTCOME_COLOURS[verdict.outcome])
