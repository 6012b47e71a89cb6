"""`same_training`: a function that trains, run as one large batch and in parts, and what makes the two differ."""

import contextlib
import inspect
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from trainlean.audit.differences import ROUNDING, SURE, Difference, compare_steps, first_difference
from trainlean.audit.naming import MISTAKES, Finding, Sizes, explain
from trainlean.audit.recording import Recorded, Recorder, Undisturbed
from trainlean.pictures.cards import Card, folding_card, prose_html
from trainlean.pictures.colours import GOOD, NEUTRAL, POOR
from trainlean.workspace import CourseError

NETWORK = "ConnectionError MaxRetryError NewConnectionError gaierror LocalEntryNotFoundError OfflineModeIsEnabled ConnectTimeout".split()


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
        return f"{self.outcome}: {self.seen}.{reason}{note}"

    def __repr__(self):
        return str(self)

    def to_dict(self) -> dict:
        """The verdict as plain JSON values."""
        return {**asdict(self), "outcome": self.outcome, "compared": list(self.compared)}

    def card(self) -> Card:
        """The verdict as a card of a notebook."""
        colour = {True: GOOD, False: POOR}.get(self.same, NEUTRAL)  # type: ignore[arg-type]
        lines = [prose_html(f"{self.seen[:1].upper()}{self.seen[1:]}.")]
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


class Different(AssertionError):
    """Raised by `assert_same_training`; `audit` is the verdict."""

    def __init__(self, audit: Audit):
        super().__init__(str(audit))
        self.audit = audit


def same_training(
    train: Callable,
    batch: int = 64,
    accumulation_steps: int = 4,
    *,
    checkpointing: bool = False,
    ranks: int = 1,
) -> Audit:
    """Is training in parts the same training as with the large batch?

    `train(micro_batch, accumulation_steps)` is anybody's function that trains a small model from scratch: a loop, Accelerate, a
    Trainer. It is called as train(batch, 1) and as train(batch // accumulation_steps, accumulation_steps), from the same random
    state, and both are compared step by step: gradients, settings of the optimizer, weights, and the inputs behind each step.
    Dropout is off meanwhile, since a large batch drops others than its parts.

    checkpointing=True compares train(..., checkpointing=True) with train(..., checkpointing=False) instead, dropout included.
    ranks=N compares N processes, each of which calls train(batch // (N * accumulation_steps), accumulation_steps) in a process group
    of gloo, with train(batch, 1) alone: DistributedDataParallel, or Local SGD that averages after every step.

    CourseError: `train` cannot be called so, it raises, or the numbers do not divide.
    """
    sizes = _sizes(train, batch, accumulation_steps, checkpointing, ranks)
    if ranks > 1:
        from trainlean.audit.ranks import compare_ranks

        return compare_ranks(train, batch, accumulation_steps, ranks)
    if checkpointing:
        from trainlean.audit.checkpointed import compare_checkpointing

        return compare_checkpointing(train, sizes)
    return _compare_accumulation(train, sizes)


def assert_same_training(train: Callable, batch: int = 64, accumulation_steps: int = 4, **options):
    """`same_training` for a test: returns the verdict where it is the same training.

    Different (an AssertionError): it is not, or it cannot be told. CourseError: as same_training.
    """
    audit = same_training(train, batch, accumulation_steps, **options)
    if not audit.same:
        raise Different(audit)
    return audit


# ---------------------------------------------------------------- the two trainings


def call_text(train: Callable, *args, **named) -> str:
    """A call as it is written in a sentence."""
    parts = [str(arg) for arg in args] + [f"{key}={value}" for key, value in named.items()]
    return f"{getattr(train, '__name__', 'train')}({', '.join(parts)})"


def _sizes(train, batch, accumulation_steps, checkpointing, ranks) -> Sizes:
    if not callable(train):
        raise CourseError(
            f"same_training takes a function train(micro_batch, accumulation_steps), not {train!r}."
        )
    for name, value in (
        ("batch", batch),
        ("accumulation_steps", accumulation_steps),
        ("ranks", ranks),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CourseError(
                f"same_training: {name} must be a whole number from 1 on, not {value!r}."
            )
    if batch % (accumulation_steps * ranks):
        of_ranks = f" * {ranks} ranks" if ranks > 1 else ""
        raise CourseError(
            f"same_training: a batch of {batch} cannot be cut into {accumulation_steps} accumulation steps{of_ranks} of one size; "
            f"take batch={accumulation_steps * ranks * max(1, round(batch / accumulation_steps / ranks))}."
        )
    if accumulation_steps == 1 and ranks == 1 and not checkpointing:
        raise CourseError(
            "same_training: with one accumulation step there is nothing to compare; take accumulation_steps=4, ranks=2 or checkpointing=True."
        )
    named = {"checkpointing": True} if checkpointing else {}
    try:
        inspect.signature(train).bind(batch, 1, **named)
    except TypeError as error:
        raise CourseError(
            f"same_training calls {call_text(train, 'micro_batch', 'accumulation_steps', **named)}, which {getattr(train, '__name__', 'train')} does not take ({error}): "
            "give it a function of these arguments, which makes its model and its data itself."
        ) from None
    except ValueError:  # a signature that Python cannot see
        pass
    micro = batch // accumulation_steps
    if checkpointing:
        truth, other = (
            call_text(train, micro, accumulation_steps, checkpointing=on) for on in (False, True)
        )
    else:
        truth, other = call_text(train, batch, 1), call_text(train, micro, accumulation_steps)
    return Sizes(batch, accumulation_steps, truth, other)


def recorded_call(
    train: Callable, *args, against=(), equal=None, dropout=False, batch_norm=True, **named
) -> Recorded:
    """What `train(*args, **named)` does, from the random state of every recorded training; its output is kept quiet.

    CourseError: it raised.
    """
    recorder = Recorder(against, equal, dropout=dropout, batch_norm=batch_norm)
    text, printed = call_text(train, *args, **named), io.StringIO()
    try:
        with (
            Undisturbed(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            recorder,
        ):
            returned = train(*args, **named)
    except CourseError:
        raise
    except (Exception, SystemExit) as error:
        raise CourseError(_of_an_error(text, error)) from error
    recorder.recorded.returned = _weights_in(returned)
    return recorder.recorded


def _of_an_error(text: str, error: BaseException) -> str:
    raised = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(": ")
    chain, one = set(), error
    while one is not None and type(one).__name__ not in chain:
        chain.add(type(one).__name__)
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    if chain & set(NETWORK):
        return (
            f"{text} needs the network ({raised}): give same_training a function that makes its model and data itself, "
            "from a configuration and a seed."
        )
    return f"{text} raised {raised}."


def _weights_in(returned) -> list[torch.Tensor]:
    """The weights of what a training returned: modules, or state dictionaries, alone or in a tuple."""
    parts = returned if isinstance(returned, tuple | list) else [returned]
    found = []
    for part in parts:
        if isinstance(part, torch.nn.Module):
            found += list(part.parameters())
        elif isinstance(part, dict):
            found += [value for value in part.values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().clone() for tensor in found if tensor.is_floating_point()]


def cannot_tell(sizes: Sizes, seen: str, step: int | None = None) -> Audit:
    """The verdict where nothing can be said."""
    return Audit(None, seen, step=step, compared=(sizes.other, sizes.truth))


def named(sizes: Sizes, mistake: str | None, seen: str, step: int, note: str = "") -> Audit:
    """The verdict on a difference, with or without a name."""
    why, lesson = MISTAKES[mistake] if mistake else ("", None)
    return Audit(False, seen, mistake, step, why, lesson, note, compared=(sizes.other, sizes.truth))


def _compare_accumulation(train: Callable, sizes: Sizes) -> Audit:
    batch, k, micro = sizes.batch, sizes.accumulation_steps, sizes.micro_batch
    truth = recorded_call(train, batch, 1)
    if audit := unusable(truth, sizes):
        return audit
    other, found = against(truth, train, micro, k)
    note = "Dropout was off for the comparison." if truth.dropout else ""
    difference, gap = found
    if difference is None:
        return _when_equal(other, truth, sizes, gap, note)
    # A difference: is it the training's own, at every run?
    again, (drift, _) = against(truth, train, batch, 1)
    if drift is not None:
        why = (
            "its forward pass draws random numbers"
            if again.drew
            else "it does not make the same random numbers, or data, each time"
        )
        return cannot_tell(
            sizes,
            f"two runs of {sizes.truth} from the same random state differ at step {drift.step}, so {why}: set its seeds inside the function",
            drift.step,
        )
    if truth.batch_norm:
        fixed = recorded_call(train, batch, 1, batch_norm=False)
        still, (left, _) = against(fixed, train, micro, k, batch_norm=False)
        if left is None:
            return named(
                sizes, "batch norm", _gradient_seen(difference, sizes), difference.step, note
            )
        truth, other, difference = fixed, still, left
        note = f"{note} Batch norm's statistics were held fixed.".strip()
    return _explained(train, difference, other, truth, sizes, note)


def _explained(train, difference, other, truth, sizes, note) -> Audit:
    if difference.kind == "start":
        return cannot_tell(
            sizes,
            f"{sizes.other} starts from other weights than {sizes.truth}: make the model before anything that depends on the batch size draws random numbers, or set the seed right before it",
            1,
        )
    rounding = ROUNDING[truth.precision]
    alone = None
    if difference.kind == "gradient" and difference.step == 1:
        with contextlib.suppress(CourseError):  # only to see what one micro-batch does
            alone = recorded_call(train, sizes.micro_batch, 1, batch_norm="Batch norm" not in note)
    finding: Finding = explain(difference, other, truth, sizes, rounding, alone)
    if finding.undecided:
        return cannot_tell(sizes, finding.seen, finding.step)
    if truth.skipped != other.skipped:
        return cannot_tell(
            sizes,
            f"{finding.seen}; but the gradient scaler left out {truth.skipped} steps of one training and {other.skipped} of the other, where a gradient was infinite: give it a smaller `init_scale`",
            finding.step,
        )
    drew = truth.drew or other.drew or not finding.same_samples and other.drew_between
    if finding.mistake is None and difference.kind == "gradient" and drew:
        return cannot_tell(
            sizes,
            f"{finding.seen}; but random numbers are drawn while it trains, and a large batch draws others than its parts",
            finding.step,
        )
    if (
        finding.mistake is None
        and difference.kind == "gradient"
        and difference.size < SURE * rounding
    ):
        return cannot_tell(
            sizes,
            f"{finding.seen}; that is {difference.size:.1e} of its length, more than rounding mostly does in {truth.precision} and less than a known mistake",
            finding.step,
        )
    return named(sizes, finding.mistake, finding.seen, finding.step, note)


def _gradient_seen(difference: Difference, sizes: Sizes) -> str:
    return f"from step {difference.step} on the gradient is not that of {sizes.truth}, by {difference.size:.1g} of its length"


def against(truth: Recorded, train, *args, **options) -> tuple[Recorded, tuple]:
    """A training recorded beside the one that it should equal, and the first difference with the largest gap before it."""
    rounding = ROUNDING[truth.precision]
    other = recorded_call(
        train,
        *args,
        against=truth.steps,
        equal=lambda step, right: compare_steps(step, right, rounding) is None,
        **options,
    )
    return other, first_difference(other, truth, rounding)


def unusable(truth: Recorded, sizes: Sizes) -> Audit | None:
    """The verdict where the large batch's training is none, or is wrong by itself."""
    if not truth.steps and truth.calls and not truth.learns and not truth.threads:
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


def _when_equal(other: Recorded, truth: Recorded, sizes: Sizes, gap: float, note: str) -> Audit:
    largest = [
        max((len(call.rows) for call in one.calls if call.rows), default=0)
        for one in (other, truth)
    ]
    if largest[0] == largest[1] > sizes.micro_batch:
        return cannot_tell(
            sizes,
            f"both trainings are equal, but {sizes.other} goes forward with {largest[0]} samples at once, as {sizes.truth} does, so nothing was accumulated: does the function use its arguments?",
        )
    count = len(truth.steps)
    seen = (
        f"{count} optimizer step{'s' * (count != 1)} with the same samples, settings and gradients, which differ by at most {gap:.0e} of their length"
        if any(call.rows for call in other.calls)
        else f"{count} optimizer step{'s' * (count != 1)} with the same settings and gradients, which differ by at most {gap:.0e} of their length"
    )
    if truth.precision in ("bfloat16", "float16"):
        note = f"{note} Rounded to {truth.precision}, smaller differences cannot be seen.".strip()
    if count == 1:
        note = f"{note} With a single step it was not seen what one window leaves for the next.".strip()
    return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))
