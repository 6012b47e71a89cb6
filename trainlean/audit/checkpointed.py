"""Checkpointing on against off: the same training, dropout and the running statistics of batch norm included."""

import contextlib
from dataclasses import replace

import torch

from trainlean.audit.differences import ROUNDING, SURE, gradient_of
from trainlean.audit.finding import Sizes, counted
from trainlean.audit.inputs import LOW
from trainlean.audit.precision import InFloat32
from trainlean.audit.recorded import Recorded
from trainlean.audit.running import against, recorded_call
from trainlean.audit.verdict import Audit, cannot_tell, named, unusable, within
from trainlean.exercises.comparing import describe
from trainlean.workspace import CourseError


def compare_checkpointing(train, sizes: Sizes) -> Audit:
    """The verdict on `train(micro_batch, accumulation_steps, checkpointing=True)` beside `checkpointing=False`."""
    call = train, sizes.micro_batch, sizes.accumulation_steps
    off = recorded_call(*call, dropout=True, checkpointing=False)
    if audit := unusable(off, sizes):
        return audit
    on, (difference, gap) = against(off, *call, dropout=True, checkpointing=True)
    if difference is None:
        if apart := _buffers_apart(on, off):
            words = f"{counted(apart, 'buffer')} of the model end{'s' * (apart == 1)} otherwise"
            seen = f"the gradients are the same, but {words}{_moved_again(on)}"
            return named(sizes, _of_buffers(on), seen, len(off.steps))
        if not on.recomputed:
            return cannot_tell(
                sizes,
                f"both trainings are equal, but {sizes.other} recomputes nothing in its backward pass: does the function use its argument?",
            )
        count = len(off.steps)
        seen = f"{counted(count, 'optimizer step')} with the same settings and gradients, which differ by less than {within(gap)} of their length"
        low = off.precision in LOW.values()
        note = f"Rounded to {off.precision}, smaller differences cannot be seen." if low else ""
        return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))
    again, (drift, _) = against(off, *call, dropout=True, checkpointing=False)
    if drift is not None:
        return cannot_tell(
            sizes,
            f"two runs of {sizes.truth} from the same random state differ at step {drift.step}: set its seeds inside the function",
            drift.step,
        )
    return _explained(call, on, off, difference, sizes)


def _explained(call, on: Recorded, off: Recorded, difference, sizes: Sizes) -> Audit:
    number = difference.step
    seen = f"the trainings part at step {number}"
    if difference.kind == "gradient":
        step, right = (one.steps[number - 1] for one in (on, off))
        seen = f"the gradient at step {number} {describe(gradient_of(step).numpy(), gradient_of(right).numpy(), 'that of ' + sizes.truth)}"
        if lost := _lost(step, right):
            seen = f"{seen}: no gradient comes to {lost} of its {len(right.gradients)} tensors"
            return named(sizes, "gradients lost under checkpointing", seen, number)
    if on.moved_again:
        held = {"dropout": True, "checkpointing": True, "recomputed_buffers": False}
        _, (left, _) = against(off, *call, **held)
        if left is None:
            return named(sizes, _of_buffers(on), f"{seen}{_moved_again(on)}", number)
    if difference.kind != "gradient":
        return named(sizes, None, seen, number)
    if off.drew or off.dropout:
        calm = recorded_call(*call, checkpointing=False)
        _, (left, _) = against(calm, *call, checkpointing=True)
        if left is None:
            return named(sizes, "dropout", seen, number)
    if difference.size < SURE * ROUNDING[off.precision]:
        return _of_little(call, off, seen, number, sizes)
    return named(sizes, None, seen, number)


def _of_little(call, off: Recorded, seen: str, number: int, sizes: Sizes) -> Audit:
    """The verdict on a gap that may be rounding; in low precision, a second look in float32."""
    train, *rest = call
    if off.precision in LOW.values() and not isinstance(train, InFloat32):
        with contextlib.suppress(CourseError):
            exact = compare_checkpointing(InFloat32(train), sizes)
            if exact.same is False:
                seen = f"run in float32 instead of {off.precision}, {exact.seen}"
                return replace(exact, seen=seen)
            if exact.same:
                why = "does the recomputation run in another precision, without autocast perhaps?"
                return cannot_tell(
                    sizes, f"{seen}; in float32 it is the same training: {why}", number
                )
    more = f"more than rounding mostly does in {off.precision} and less than a known mistake"
    return cannot_tell(sizes, f"{seen}, {more}", number)


def _lost(step, right) -> int:
    """How many weights have no gradient, or zero, that should have one, where all others are right."""
    missing = 0
    for got, want, weight in zip(step.gradients, right.gradients, step.weights, strict=True):
        got, want = (torch.zeros_like(weight) if one is None else one for one in (got, want))
        if not got.any() and want.any():
            missing += 1
        elif float((got - want).norm()) > 1e-3 * float(want.norm()):
            return 0
    return missing


def _buffers_apart(on: Recorded, off: Recorded) -> int:
    """How many buffers end otherwise."""
    pairs = zip(on.buffers, off.buffers, strict=False)
    return sum(
        one.shape == other.shape
        and not torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-7)
        for one, other in pairs
    )


def _moved_again(on: Recorded) -> str:
    """Which buffers the recomputation was seen to move, as the end of a sentence."""
    names = list(on.moved_again)
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f": the recomputation moves {', '.join(names[:3])}{more} a second time"


def _of_buffers(on: Recorded) -> str | None:
    if not on.moved_again:
        return None
    every = all(on.moved_again.values())
    return "batch norm moved twice" if every else "a buffer moved twice"
