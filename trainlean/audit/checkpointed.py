"""Checkpointing on against off: the same training, dropout and the running statistics of batch norm included."""

import torch

from trainlean.audit.differences import ROUNDING, gradient_of
from trainlean.audit.finding import Sizes
from trainlean.audit.recorded import Recorded
from trainlean.audit.running import against, recorded_call
from trainlean.audit.verdict import Audit, cannot_tell, named, unusable, within
from trainlean.exercises.comparing import describe


def compare_checkpointing(train, sizes: Sizes) -> Audit:
    """The verdict on `train(micro_batch, accumulation_steps, checkpointing=True)` beside `checkpointing=False`."""
    call = train, sizes.micro_batch, sizes.accumulation_steps
    off = recorded_call(*call, dropout=True, checkpointing=False)
    if audit := unusable(off, sizes):
        return audit
    on, (difference, gap) = against(off, *call, dropout=True, checkpointing=True)
    if difference is None:
        if moved := _buffers_apart(on, off):
            return named(
                sizes, "batch norm moved twice" if off.batch_norm else None, moved, len(off.steps)
            )
        if not on.recomputed:
            return cannot_tell(
                sizes,
                f"both trainings are equal, but {sizes.other} recomputes nothing in its backward pass: does the function use its argument?",
            )
        count = len(off.steps)
        seen = f"{count} optimizer step{'s' * (count != 1)} with the same settings and gradients, which differ by less than {within(gap)} of their length"
        return Audit(True, seen, compared=(sizes.other, sizes.truth))
    again, (drift, _) = against(off, *call, dropout=True, checkpointing=False)
    if drift is not None:
        return cannot_tell(
            sizes,
            f"two runs of {sizes.truth} from the same random state differ at step {drift.step}: set its seeds inside the function",
            drift.step,
        )
    if difference.kind != "gradient":
        return named(sizes, None, f"the trainings part at step {difference.step}", difference.step)
    step, right = (one.steps[difference.step - 1] for one in (on, off))
    seen = f"the gradient at step {difference.step} {describe(gradient_of(step).numpy(), gradient_of(right).numpy(), 'that of ' + sizes.truth)}"
    if _lost(step, right):
        return named(sizes, "gradients lost under checkpointing", seen, difference.step)
    if off.drew or off.dropout:
        calm = recorded_call(*call, checkpointing=False)
        _, (left, _) = against(calm, *call, checkpointing=True)
        if left is None:
            return named(sizes, "dropout", seen, difference.step)
    if difference.size < 30 * ROUNDING[off.precision]:
        return cannot_tell(
            sizes, f"{seen}, by {difference.size:.1e} of its length", difference.step
        )
    return named(sizes, None, seen, difference.step)


def _lost(step, right) -> bool:
    """Whether some weights have no gradient, or zero, that should have one, and all others are right."""
    missing = 0
    for got, want, weight in zip(step.gradients, right.gradients, step.weights, strict=True):
        got, want = (torch.zeros_like(weight) if one is None else one for one in (got, want))
        if not got.any() and want.any():
            missing += 1
        elif float((got - want).norm()) > 1e-3 * float(want.norm()):
            return False
    return missing > 0


def _buffers_apart(on: Recorded, off: Recorded) -> str:
    """What is to be said of buffers that end otherwise; empty where none does."""
    pairs = zip(on.buffers, off.buffers, strict=False)
    apart = sum(
        one.shape == other.shape
        and not torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-7)
        for one, other in pairs
    )
    words = f"{apart} buffer{'s' * (apart != 1)} of the model end" + "s" * (apart == 1)
    return f"the gradients are the same, but {words} otherwise" if apart else ""
