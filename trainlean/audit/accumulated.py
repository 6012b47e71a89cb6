"""A training in micro-batches beside the large batch."""

import contextlib
import math
from collections.abc import Callable

import torch

from trainlean.audit.differences import ROUNDING, SURE, Difference, Windows, vector
from trainlean.audit.finding import Finding, Sizes
from trainlean.audit.naming import explain
from trainlean.audit.recorded import Recorded
from trainlean.audit.running import against, recorded_call
from trainlean.audit.verdict import Audit, cannot_tell, named, unusable, within
from trainlean.workspace import CourseError

# What noise between the samples and the gradient looks like.
PERHAPS_RANDOM = (None, "a loss across samples", "targets of other samples")


def compare_accumulation(train: Callable, sizes: Sizes) -> Audit:
    """The verdict on `train(micro_batch, accumulation_steps)` beside `train(batch, 1)`."""
    batch, k, micro = sizes.batch, sizes.accumulation_steps, sizes.micro_batch
    truth = recorded_call(train, batch, 1)
    if not truth.steps and not truth.threads and _way(truth) is not None:
        return _without_optimizer(train, truth, sizes)
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


def _in_double(train: Callable, sizes: Sizes) -> bool:
    """Whether it is the same training in float64: then a small gap in float32 is rounding."""
    with contextlib.suppress(CourseError):
        truth = recorded_call(train, sizes.batch, 1, double=True)
        if truth.precision != "float64" or not truth.steps:
            return False
        _, (left, _) = against(
            truth, train, sizes.micro_batch, sizes.accumulation_steps, double=True
        )
        return left is None
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
        if difference.size < SURE * rounding and _in_double(train, sizes):
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
            f"{finding.seen}; the largest gap of a tensor is {difference.size:.1e} of that tensor's length, more than rounding mostly does in {truth.precision} and less than a known mistake",
            finding.step,
        )
    return named(sizes, finding.mistake, finding.seen, finding.step, note)


def _gradient_seen(difference: Difference, sizes: Sizes) -> str:
    return f"from step {difference.step} on the gradient is not that of {sizes.truth}, by {difference.size:.1g} of its length"


def _largest(recorded: Recorded) -> int:
    """The samples of the largest forward pass that goes backward, or, where none does, of any."""
    calls = [call for call in recorded.calls if call.backwards] or recorded.calls
    return max((len(call.rows) for call in calls if call.rows), default=0)


def _when_equal(other: Recorded, truth: Recorded, sizes: Sizes, gap: float, note: str) -> Audit:
    largest = [_largest(one) for one in (other, truth)]
    if largest[0] == largest[1] > sizes.micro_batch:
        return cannot_tell(
            sizes,
            f"both trainings are equal, but {sizes.other} goes forward with {largest[0]} samples at once, as {sizes.truth} does, so nothing was accumulated: does the function use its arguments?",
        )
    count = len(truth.steps)
    seen = (
        f"{count} optimizer step{'s' * (count != 1)} with the same samples, settings and gradients, which differ by less than {within(gap)} of their length"
        if any(call.rows for call in other.calls)
        else f"{count} optimizer step{'s' * (count != 1)} with the same settings and gradients, which differ by less than {within(gap)} of their length"
    )
    if truth.precision in ("bfloat16", "float16"):
        note = f"{note} Rounded to {truth.precision}, smaller differences cannot be seen.".strip()
    if count == 1:
        note = f"{note} With a single step it was not seen what one window leaves for the next.".strip()
    return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))
