"""`same_training`: a function that trains, run as one large batch and in parts, and what makes the two differ."""

import inspect
from collections.abc import Callable

from trainlean.arguments import shown
from trainlean.audit.accumulated import compare_accumulation
from trainlean.audit.checkpointed import compare_checkpointing
from trainlean.audit.finding import Sizes
from trainlean.audit.ranks import compare_ranks
from trainlean.audit.running import call_text
from trainlean.audit.verdict import Audit
from trainlean.workspace import CourseError


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
    Dropout is off meanwhile, since a large batch drops others than its parts. What trains in bfloat16 or float16 is run in float32,
    too, where rounding hides nothing. Where no optimizer of torch steps, the weights at the
    end are all that is compared. An average of the weights is compared where it is torch's, or `train` returns it. What is wrong in
    both trainings alike, a constant factor or a label, is no difference.

    checkpointing=True compares train(..., checkpointing=True) with train(..., checkpointing=False) instead, dropout included.
    ranks=N compares N processes, each of which calls train(batch // (N * accumulation_steps), accumulation_steps) in a process group
    of gloo, with train(batch, 1) alone: DistributedDataParallel, or Local SGD that averages after every step.

    CourseError: `train` cannot be called so, it raises, or the numbers do not divide.
    """
    sizes = _sizes(train, batch, accumulation_steps, checkpointing, ranks)
    if ranks > 1:
        return compare_ranks(train, batch, accumulation_steps, ranks)
    if checkpointing:
        return compare_checkpointing(train, sizes)
    return compare_accumulation(train, sizes)


def assert_same_training(train: Callable, batch: int = 64, accumulation_steps: int = 4, **options):
    """`same_training` for a test: returns the verdict where it is the same training.

    Different (an AssertionError): it is not, or it cannot be told. CourseError: as same_training.
    """
    audit = same_training(train, batch, accumulation_steps, **options)
    if not audit.same:
        raise Different(audit)
    return audit


def _sizes(train, batch, accumulation_steps, checkpointing, ranks) -> Sizes:
    if not callable(train):
        raise CourseError(
            f"same_training takes a function train(micro_batch, accumulation_steps), not {shown(train)}."
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
