"""A training in micro-batches beside the large batch."""

import contextlib
import math
from collections.abc import Callable

import torch

from trainlean.audit.differences import (
    ROUNDING,
    SURE,
    Difference,
    Windows,
    alike,
    update_gap,
    vector,
)
from trainlean.audit.finding import Finding, Sizes, counted, near
from trainlean.audit.inputs import LOW
from trainlean.audit.naming import explain
from trainlean.audit.precision import InFloat32, decided_in_float32
from trainlean.audit.recorded import Recorded
from trainlean.audit.running import against, recorded_call
from trainlean.audit.verdict import Audit, cannot_tell, named, unusable, within
from trainlean.workspace import CourseError

# What noise between the samples and the gradient looks like.
PERHAPS_RANDOM = (None, "a loss across samples", "a wrong divisor", "targets of other samples")

SAME_WAY = 1e-3  # of two updates: they are the same, whatever the gradients are


def compare_accumulation(train: Callable, sizes: Sizes) -> Audit:
    """The verdict on `train(micro_batch, accumulation_steps)` beside `train(batch, 1)`."""
    batch = sizes.batch
    truth = recorded_call(train, batch, 1)
    audit, gap = _compared(train, truth, sizes)
    if truth.precision not in LOW.values():
        return audit

    def again() -> tuple[Audit, float]:
        exact = InFloat32(train)
        wide = recorded_call(exact, batch, 1)
        if wide.precision in LOW.values():
            raise CourseError(f"{sizes.truth} computes in {wide.precision} whatever it asks for.")
        return _compared(exact, wide, sizes)

    return decided_in_float32(audit, gap, truth.precision, again)


def _compared(train: Callable, truth: Recorded, sizes: Sizes) -> tuple[Audit, float]:
    """The verdict on a training beside its large batch, `truth`, and how far apart their gradients are, or infinity where it is no matter of gradients."""
    if not truth.steps and not truth.threads and _way(truth) is not None:
        return _without_optimizer(train, truth, sizes), math.inf
    if audit := unusable(truth, sizes):
        return audit, math.inf
    other, (difference, gap) = against(truth, train, sizes.micro_batch, sizes.accumulation_steps)
    note = "Dropout was off for the comparison." if truth.dropout else ""
    if difference is None:
        return _when_equal(other, truth, sizes, gap, note), gap
    audit = _when_apart(train, difference, other, truth, sizes, note)
    coarse = audit.mistake == "added up in low precision"
    of_gradients = difference.kind in ("gradient", "update") and not coarse
    return audit, difference.size if of_gradients else math.inf


def _when_apart(train, difference, other, truth, sizes, note) -> Audit:
    batch, k, micro = sizes.batch, sizes.accumulation_steps, sizes.micro_batch
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
    if truth.moved_in_forward and _with_buffers_held(train, sizes):
        seen = _gradient_seen(difference, sizes)
        moves = "state that moves with every forward pass"
        return named(sizes, moves, seen, difference.step, note)
    return _explained(train, difference, other, truth, sizes, note)


def _with_buffers_held(train: Callable, sizes: Sizes) -> bool:
    """Whether it is the same training once no forward pass moves a buffer."""
    with contextlib.suppress(CourseError):
        held = recorded_call(train, sizes.batch, 1, buffers=False)
        _, (left, _) = against(
            held, train, sizes.micro_batch, sizes.accumulation_steps, buffers=False
        )
        return left is None
    return False


def _in_double(train: Callable, sizes: Sizes, size: float) -> bool:
    """Whether it is the same training in float64, or a gap of this size is much smaller there: then it is rounding in float32."""
    with contextlib.suppress(CourseError):
        truth = recorded_call(train, sizes.batch, 1, double=True)
        if truth.precision != "float64" or not truth.steps:
            return False
        other, (left, _) = against(
            truth, train, sizes.micro_batch, sizes.accumulation_steps, double=True
        )
        shrunk = left and left.kind == "gradient" and left.size < 1e-2 * size
        return left is None or bool(shrunk) and len(other.steps) == len(truth.steps)
    return False


def _by_random_numbers(train: Callable, truth: Recorded, sizes: Sizes, number: int) -> bool:
    """Whether other random numbers, drawn behind the same samples, give another gradient."""
    shifted, (drift, _) = against(truth, train, sizes.batch, 1, jolt=number)
    if drift is None or drift.kind != "gradient":
        return False
    windows = Windows(shifted, truth)
    at = drift.step
    return windows.of_other[:at] == windows.of_truth[:at]


def _way(recorded: Recorded) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where the weights of a training without an optimizer went, and how far; None where nothing is known of it."""
    start, end = recorded.way
    if not recorded.learns:  # the weights that it trains are put into the model at each call
        end = recorded.returned
        start = start[: len(end)]
    if [one.shape for one in start] != [one.shape for one in end] or not end:
        return None
    moved = vector(end) - vector(start)
    return (vector(end), moved) if float(moved.norm()) else None


def _without_optimizer(train: Callable, truth: Recorded, sizes: Sizes) -> Audit:
    """The verdict where no optimizer of torch steps: on the weights at the end alone."""
    other = recorded_call(train, sizes.micro_batch, sizes.accumulation_steps)
    gap = _ends_apart(other, truth)
    drift = _ends_apart(recorded_call(train, sizes.batch, 1), truth)
    why, rounding = (
        f"{sizes.truth} makes no step of an optimizer of torch",
        ROUNDING[truth.precision],
    )
    if drift > rounding:
        return cannot_tell(sizes, f"{why}, and two runs of it end with other weights")
    if gap <= 50 * rounding:
        seen = (
            f"the weights at the end differ by less than {within(gap)} of the way that they moved"
        )
        note = f"Nothing else was compared, so a factor that Adam divides out is not seen: {why}."
        return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))
    seen = f"{why}, and the weights at the end are {gap:.2g} of the way that they moved apart"
    if gap < SURE * 50 * rounding or truth.batch_norm or truth.drew or other.drew_between:
        return cannot_tell(sizes, seen)
    return named(sizes, None, seen, 1)


def _ends_apart(recorded: Recorded, truth: Recorded) -> float:
    ways = _way(recorded), _way(truth)
    if ways[0] is None or ways[1] is None or ways[0][0].shape != ways[1][0].shape:
        return math.inf
    return float((ways[0][0] - ways[1][0]).norm() / ways[1][1].norm())


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
    if difference.kind == "gradient" and finding.mistake in PERHAPS_RANDOM:
        if difference.size < SURE * rounding and _in_double(train, sizes, difference.size):
            return _when_equal(other, truth, sizes, difference.size, note)
        if _by_random_numbers(train, truth, sizes, difference.step):
            return cannot_tell(
                sizes,
                f"{finding.seen}; but other random numbers between two steps give another gradient, and a large batch draws others than its parts: draw them before the batches are cut, for each sample",
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
            f"{finding.seen}; the largest gap of a tensor, relative to the micro-batches' gradients that it is the sum of, is {difference.size:.1e}: more than rounding mostly does in {truth.precision} and less than a known mistake",
            finding.step,
        )
    seen = f"{finding.seen}{_made_up_for(difference, other, truth)}"
    return named(sizes, finding.mistake, seen, finding.step, note)


def _made_up_for(difference: Difference, other: Recorded, truth: Recorded) -> str:
    """What is to be said where gradients differ and all updates of the weights are the same."""
    pairs = list(zip(other.steps, truth.steps, strict=False))
    wide = difference.kind == "gradient" and difference.size > 30 * SAME_WAY
    if not wide or len(other.steps) != len(truth.steps):
        return ""
    if not all(alike(*pair) and update_gap(*pair) <= SAME_WAY for pair in pairs):
        return ""
    rates = [one.settings[0].get("lr", 0.0) for one in pairs[difference.step - 1]]
    same = "; every step moves the weights as there all the same, since"
    if not near(rates[0], rates[1], 1e-3):
        return f"{same} the learning rate, {rates[0]:.4g} instead of {rates[1]:.4g}, makes up for it: the weights at the end are equal"
    return f"{same} this optimizer divides such a factor out, as Adam does; a limit or another optimizer would not"


def _gradient_seen(difference: Difference, sizes: Sizes) -> str:
    return f"from step {difference.step} on the gradient is not that of {sizes.truth}, by {difference.size:.1g} of its length"


def _largest(recorded: Recorded) -> int:
    """The samples of the largest forward pass that goes backward, or, where none does, of any."""
    calls = [call for call in recorded.calls if call.backwards] or recorded.calls
    return max((len(call.rows) for call in calls if call.rows), default=0)


def _in_parts(other: Recorded, truth: Recorded) -> bool:
    """Whether a window goes backward in several parts though each of them has all samples forward, as a graph has its nodes."""
    pairs = zip(other.steps, truth.steps, strict=True)
    if not all(len(one.rounds) > len(right.rounds) for one, right in pairs):
        return False
    came = [
        [part for call in one.calls for part in call.gradients] for one in other.steps[0].rounds
    ]
    first, second = came[0], came[1]  # the same twice is one batch that goes backward again
    return (
        bool(first)
        and [one.shape for one in first] == [one.shape for one in second]
        and any(not torch.allclose(*pair, rtol=1e-3) for pair in zip(first, second, strict=True))
    )


def _when_equal(other: Recorded, truth: Recorded, sizes: Sizes, gap: float, note: str) -> Audit:
    largest = [_largest(one) for one in (other, truth)]
    if largest[0] == largest[1] > sizes.micro_batch and not _in_parts(other, truth):
        return cannot_tell(
            sizes,
            f"both trainings are equal, but {sizes.other} goes forward with {largest[0]} samples at once, as {sizes.truth} does, so nothing was accumulated: does the function use its arguments?",
        )
    count = len(truth.steps)
    what = "samples, settings" if any(call.rows for call in other.calls) else "settings"
    seen = f"{counted(count, 'optimizer step')} with the same {what} and gradients, which differ by less than {within(gap)} of their length"
    if truth.precision in ("bfloat16", "float16"):
        note = f"{note} Rounded to {truth.precision}, smaller differences cannot be seen.".strip()
    if count == 1:
        note = f"{note} With a single step it was not seen what one window leaves for the next.".strip()
    return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))
