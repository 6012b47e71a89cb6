"""A number is guessed before it is measured, and the guess is shown beside the measurement."""

import math
from datetime import UTC, datetime

from IPython.display import display

from trainlean.arguments import shown
from trainlean.exercises.questions import because
from trainlean.pictures.cards import bars_card
from trainlean.workspace import CourseError, keep_record, read_records


def guess(name: str, value: float | None, unit: str | None = None) -> None:
    """Keep a guess for later. `value` is a number in `unit`; None is no new guess. After the answer was shown, the first guess stays.

    CourseError: a value that is neither, or no unit.
    """
    if not isinstance(unit, str):
        raise CourseError(
            f'A guess needs its unit: guess("{name}", {value!r}, "MiB"), for instance.'
        )
    first, first_unit, revealed = _history(name)
    if value is None:
        text = f"No guess yet for {name}: put a number ({unit}) in place of None and run this cell before the next one."
        if first is not None:
            text = f"{name}: your guess of before is kept, {first:,.4g} {first_unit}."
            text += "" if revealed else " Another number in place of None would replace it."
        display(bars_card(text))
        return
    if (number := _number(value)) is None:
        raise CourseError(f"The guess for {name} is {shown(value)}; it must be a number ({unit}).")
    unkept = _keep(name, "guess", number, unit)
    late = " The answer was shown before, so " + (
        "this guess comes too late." if first is None else "your first guess stays beside it."
    )
    said = f"{name}, {number:,.4g} {unit}"
    text = (
        f"{said}: this guess counts only until the kernel ends. {unkept}"
        if unkept
        else f"Noted: {said}."
    )
    display(bars_card(text + (late if revealed else "")))


def reveal(name: str, value: float, unit: str, origin: str = "measured") -> None:
    """Show the `value` (in `unit`) beside the guess that was made before, and ask for the reason where the lesson has one to choose.

    `origin` says how the value was found: measured, predicted. CourseError: a value that is no finite number.
    """
    if (number := _number(value)) is None:
        raise CourseError(f"The value of {name} is {shown(value)}; it must be a number ({unit}).")
    guessed, guessed_unit, _ = _history(name)
    if guessed is None:
        text = f"{name}: {origin} {number:,.4g} {unit}; no guess was noted before."
        bars = {origin: number}
    elif guessed_unit != unit:  # two numbers of different units are not so many percent apart
        text = f"{name}: you guessed {guessed:,.4g} {guessed_unit}, {origin} {number:,.4g} {unit}."
        bars = {origin: number}
    else:
        off = f"{abs(guessed - number) / abs(number):.0%} off" if number else f"{origin} zero"
        if unit == "%":  # percent of percent would be read as these
            off = f"{abs(guessed - number):,.4g} points off"
        text = f"{name}: you guessed {guessed:,.4g} {unit}, {origin} {number:,.4g} {unit} ({off})."
        bars = {"guess": guessed, origin: number}
    display(bars_card(text, bars, unit))
    if unkept := _keep(name, "reveal", float(number), unit):
        display(bars_card(f"{name}: that it was shown could not be kept. {unkept}"))
    because(name)


def _history(name: str) -> tuple[float | None, str, bool]:
    """The last guess made before the first reveal (else None), its unit, and whether the answer was revealed."""
    guessed, unit = None, ""
    for record in read_records("guesses", name=object, kind=str, value=float, unit=str):
        if record["name"] != name:
            continue
        if record["kind"] == "reveal":
            return guessed, unit, True
        guessed, unit = record["value"], record["unit"]
    return guessed, unit, False


def _number(value) -> int | float | None:
    """Python's own number of a value that can be compared with others, and drawn; None for what is none. An array or tensor of one number is one."""
    try:
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, bool) and math.isfinite(value):
            return value if isinstance(value, int) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass  # no number, too large, a tensor of several
    return None


def _keep(name: str, kind: str, value: float, unit: str) -> str:
    """Note a guess or that the answer was shown; why it could not be, else an empty string."""
    record = {"name": name, "kind": kind, "value": value, "unit": unit}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return keep_record("guesses", record | {"created": now})
