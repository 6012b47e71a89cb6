"""A number is guessed before it is measured, and the guess is shown beside the measurement."""

import math
from datetime import UTC, datetime

from IPython.display import display

from trainlean.arguments import shown
from trainlean.exercises.questions import because
from trainlean.pictures.cards import bars_card
from trainlean.workspace import CourseError, append_record, read_records


def guess(name: str, value: float | None, unit: str | None = None) -> None:
    """Keep a guess for later. `value` is a number in `unit`; None is no guess yet. After the answer was shown, the first guess stays.

    CourseError: a value that is neither, or no unit.
    """
    if not isinstance(unit, str):
        raise CourseError(
            f'A guess needs its unit: guess("{name}", {value!r}, "MiB"), for instance.'
        )
    if value is None:
        display(
            bars_card(
                f"No guess yet for {name}: put a number ({unit}) in place of None and run this cell before the next one."
            )
        )
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise CourseError(f"The guess for {name} is {shown(value)}; it must be a number ({unit}).")
    first, _, revealed = _history(name)
    append_record(
        "guesses", {"name": name, "kind": "guess", "value": value, "unit": unit, "created": _now()}
    )
    late = " The answer was shown before, so " + (
        "this guess comes too late." if first is None else "your first guess stays beside it."
    )
    display(bars_card(f"Noted: {name}, {value:,.4g} {unit}.{late if revealed else ''}"))


def reveal(name: str, value: float, unit: str, origin: str = "measured") -> None:
    """Show the `value` (in `unit`) beside the guess that was made before, and ask for the reason where the lesson has one to choose.

    `origin` says how the value was found: measured, predicted. CourseError: a value that is no finite number.
    """
    if not _finite(value):
        raise CourseError(f"The value of {name} is {shown(value)}; it must be a number ({unit}).")
    guessed, guessed_unit, _ = _history(name)
    append_record(
        "guesses",
        {"name": name, "kind": "reveal", "value": float(value), "unit": unit, "created": _now()},
    )
    if guessed is None:
        text = f"{name}: {origin} {value:,.4g} {unit}; no guess was noted before."
        bars = {origin: value}
    elif guessed_unit != unit:  # two numbers of different units are not so many percent apart
        text = f"{name}: you guessed {guessed:,.4g} {guessed_unit}, {origin} {value:,.4g} {unit}."
        bars = {origin: value}
    else:
        off = f"{abs(guessed - value) / abs(value):.0%} off" if value else f"{origin} zero"
        if unit == "%":  # percent of percent would be read as these
            off = f"{abs(guessed - value):,.4g} points off"
        text = f"{name}: you guessed {guessed:,.4g} {unit}, {origin} {value:,.4g} {unit} ({off})."
        bars = {"guess": guessed, origin: value}
    display(bars_card(text, bars, unit))
    because(name)


def _history(name: str) -> tuple[float | None, str, bool]:
    """The last guess made before the first reveal (else None), its unit, and whether the answer was revealed."""
    guessed, unit = None, ""
    for record in read_records("guesses"):
        if record["name"] != name:
            continue
        if record["kind"] == "reveal":
            return guessed, unit, True
        guessed, unit = record["value"], record["unit"]
    return guessed, unit, False


def _finite(value) -> bool:
    """Whether it is a number that can be compared with others, and drawn."""
    try:
        return math.isfinite(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # no number, too large, a tensor of several
        return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
