"""The verdict on two trainings: in words, as a card of a notebook, as plain values."""

import math
from dataclasses import asdict, dataclass

from trainlean.audit.finding import Sizes
from trainlean.audit.mistakes import MISTAKES
from trainlean.audit.recorded import Recorded
from trainlean.pictures.cards import Card, folding_card, prose_html
from trainlean.pictures.colours import GOOD, NEUTRAL, POOR


@dataclass(frozen=True)
class Audit:
    """The verdict of `same_training`: `same` is True, False, or None where it cannot be told.

    `mistake` is the name of the difference and `lesson` where it is taught, both None where there is none; `step` is the
    optimizer step (from 1) of the first difference; `seen` says what was seen, `why` why it is another training, `note` what was held fixed.
    """

    same: bool | None
    seen: str
    mistake: str | None = None
    step: int | None = None
    why: str = ""
    lesson: str | None = None
    note: str = ""
    compared: tuple[str, str] = ("", "")

    @property
    def outcome(self) -> str:
        """The verdict in a word or three."""
        return {True: "The same training", False: "Not the same training"}.get(
            self.same,  # type: ignore[arg-type]
            "Cannot tell",
        )

    def __str__(self):
        reason = f" {self.mistake.capitalize()}: {self.why}" if self.mistake else ""
        note = f" {self.note}" if self.note and not self.mistake else ""
        return f"{self.outcome}: {_ended(self.seen)}{reason}{note}"

    def __repr__(self):
        return str(self)

    def to_dict(self) -> dict:
        """The verdict as plain JSON values."""
        return {**asdict(self), "outcome": self.outcome, "compared": list(self.compared)}

    def card(self) -> Card:
        """The verdict as a card of a notebook."""
        colour = {True: GOOD, False: POOR}.get(self.same, NEUTRAL)  # type: ignore[arg-type]
        lines = [prose_html(_ended(f"{self.seen[:1].upper()}{self.seen[1:]}"))]
        if self.mistake:
            lines.append(f"<b>{prose_html(self.mistake.capitalize())}.</b> {prose_html(self.why)}")
        if self.note:
            lines.append(prose_html(self.note))
        if self.lesson:
            lines.append(f"The lesson: <code>{self.lesson}</code>")
        title = self.outcome, " against ".join(self.compared)
        return folding_card(str(self), title, lines, {}, colour)

    def _repr_html_(self):
        return self.card()._repr_html_()


def _ended(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def within(gap: float) -> str:
    """What rounding leaves, as a bound: the power of ten above it, from a millionth on, so that it reads the same on every machine."""
    return f"{10.0 ** max(-6, math.ceil(math.log10(max(gap, 1e-30)))):.0e}"


def cannot_tell(sizes: Sizes, seen: str, step: int | None = None) -> Audit:
    """The verdict where nothing can be said."""
    return Audit(None, seen, step=step, compared=(sizes.other, sizes.truth))


def named(sizes: Sizes, mistake: str | None, seen: str, step: int, note: str = "") -> Audit:
    """The verdict on a difference, with or without a name."""
    why, lesson = MISTAKES[mistake] if mistake else ("", None)
    return Audit(False, seen, mistake, step, why, lesson, note, compared=(sizes.other, sizes.truth))


def unusable(truth: Recorded, sizes: Sizes) -> Audit | None:
    """The verdict where the large batch's training is none, or is wrong by itself."""
    stays = not truth.learns and not truth.functional and not truth.threads
    if not truth.steps and truth.calls and stays:
        seen = f"{sizes.truth} makes no step of an optimizer, and its weights end as they began"
        return named(sizes, "never steps", seen, 1)
    if not truth.steps:
        where = (
            " in this thread"
            if truth.threads
            else ""
            if truth.calls
            else ", and no model of torch was seen to go forward"
        )
        return cannot_tell(sizes, f"{sizes.truth} makes no step of an optimizer of torch{where}")
    if all(g is None or not g.any() for step in truth.steps for g in step.gradients):
        seen = f"already {sizes.truth} steps with nothing in `.grad`, so nothing is learned"
        return named(sizes, "nothing in .grad at the step", seen, 1)
    for number, step in enumerate(truth.steps, 1):
        if any(g is not None and not g.isfinite().all() for g in step.gradients):
            seen = f"the gradient at step {number} of {sizes.truth} is infinite or not a number, so nothing behind it can be compared: give same_training a function that trains with finite numbers"
            return cannot_tell(sizes, seen, number)
    late = next((n for n, step in enumerate(truth.steps, 1) if step.leftover), None)
    if late:
        seen = f"already in {sizes.truth} the gradient of step {late - 1} is still part of that of step {late}"
        return named(sizes, "never zeroed", seen, late)
    empty = next((n for n, step in enumerate(truth.steps, 1) if not step.calls), None)
    if empty and empty == len(truth.steps) and truth.calls:
        seen = f"already in {sizes.truth} no sample stands behind step {empty}"
        return named(sizes, "a step too many at the end", seen, empty)
    if any(call.backwards for call in truth.after_last) and not truth.skipped:
        seen = f"already {sizes.truth} goes forward and backward after its last step, {len(truth.steps)}, without another"
        return named(sizes, "no step behind the last window", seen, len(truth.steps) + 1)
    return None
