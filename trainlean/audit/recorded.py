"""What is known of a training that was recorded: its steps, the rounds of backward behind each, and the inputs of these."""

from dataclasses import dataclass, field

import torch

from trainlean.audit.losses import Loss


@dataclass(eq=False)
class Call:
    """One forward pass through a model, with the rows of its input."""

    rows: list | None  # of the input's first dimension; None where it has none
    training: bool = True  # the model's mode
    learns: bool = True  # whether its output requires a gradient, unlike a teacher's
    looks: bool = False  # whether it is known to be no part of what is trained on
    backwards: int = 0  # how many rounds went through it
    # What came back to its outputs, if it stands behind the first step.
    gradients: list[torch.Tensor] = field(default_factory=list)

    @property
    def evaluates(self) -> bool:
        """Whether it only looks at the model: no gradient comes of it."""
        return self.looks or not self.training and not self.backwards

    def samples(self, width: int | None) -> list:
        """One name for each row; a row of whole numbers is cut to so many, since batches are padded to other lengths."""
        return [
            row if isinstance(row, bytes) else tuple(row[:width].tolist())
            for row in self.rows or ()
        ]


@dataclass(eq=False)
class Round:
    """One backward pass: the forward passes that it went through, and `.grad` of every weight before and after it."""

    calls: list[Call]
    before: dict[int, torch.Tensor]  # by id of the weight; what has no gradient is left out
    after: dict[int, torch.Tensor] = field(default_factory=dict)
    flowed: dict[int, torch.Tensor] = field(
        default_factory=dict
    )  # what came to each weight, also where it went past `.grad`
    loss: Loss = field(default_factory=Loss)


@dataclass(eq=False)
class Step:
    """One step of an optimizer: its gradient and its settings, and what stands behind it since that optimizer's last one."""

    optimizer: int  # which, in the order of their first steps
    gradients: list[torch.Tensor | None]  # of its weights, in the order of its groups
    settings: list[dict]  # of each group: learning rate, momentum ...
    weights: list[torch.Tensor]  # before it
    calls: list[Call]
    rounds: list[Round]
    schedule: int  # steps of schedulers since the last step of an optimizer
    leftover: bool  # whether the gradient of the step before is still part of it
    ids: list[int]
    fresh: bool = False  # whether the optimizer remembers no step
    emptied: int = 0  # the round before which `.grad` was emptied last
    scale: float = 1.0  # of its gradient to what the last round left, as clipping makes it
    clips: tuple[float, ...] = ()  # norm over limit of each clipping since its last round
    clipped: float = 1.0  # what these have left of the whole gradient, where each was of all of it
    gap: float | None = None  # to the step that it should equal, once they were compared
    touched: list[torch.Tensor | None] | None = (
        None  # how weights moved since its last step, or the first forward pass
    )
    moved: list[torch.Tensor] | None = None  # the weights after it


@dataclass(eq=False)
class Follower:
    """Weights that no backward pass reaches, a teacher's perhaps, which moved between two forward passes of one window."""

    steps: int  # of optimizers before it
    shapes: list[torch.Size]
    before: list[torch.Tensor]  # a few numbers of each
    after: list[torch.Tensor]


@dataclass(eq=False)
class Recorded:
    """A training: its steps, what came after the last one, and what was seen of its models."""

    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    after_last: list[Call] = field(default_factory=list)
    precision: str = "float32"
    batch_norm: bool = False
    moved_in_forward: bool = False  # whether a forward pass moved a buffer, batch norm's apart
    dropout: bool = False
    drew: bool = False  # whether a forward pass drew random numbers
    drew_between: bool = False  # whether the loop did, after its first forward pass
    by_trainer: bool = False
    recomputed: bool = False  # whether a module ran forward within a backward pass
    moved_again: dict[str, bool] = field(
        default_factory=dict
    )  # buffers that such a pass moved, and whether they are batch norm's
    schedule: int = 0
    followers: list[Follower] = field(default_factory=list)
    averaged: int = 0  # how often an AveragedModel was updated
    averages: list[torch.Tensor] = field(default_factory=list)  # of the weights, at the end
    scaled: bool = False  # whether a gradient scaler made the steps
    skipped: int = 0  # steps that it left out
    buffers: list[torch.Tensor] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)  # of the optimizers, at the end
    learns: bool = False  # whether weights moved, by whatever
    way: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # from which weights to which
    functional: bool = False  # whether a model was called with other weights than its own
    threads: bool = False  # whether something was trained in another thread only


def left_over(step: Step, last: Step | None) -> bool:
    """Whether what the step before had in `.grad` was still there when this window's first gradients came to it, and stayed."""
    if last is None or not step.rounds or not last.gradients:
        return False
    stale = False
    for number, one in enumerate(step.rounds):
        here = [one.before.get(key) for key in step.ids]
        if number == 0:
            pairs = zip(here, last.gradients, strict=False)
            stale = any(
                now is not None and then is not None and then.any() and torch.equal(now, then)
                for now, then in pairs
            )
        elif not any(now is not None and now.any() for now in here):
            stale = False
    if not stale:
        return False
    # A gradient that was put together elsewhere is no sum with what lay here.
    after = [step.rounds[-1].after.get(key) for key in step.ids]
    return all(
        gradient is None or left is None or torch.allclose(gradient, left * step.scale, rtol=1e-3)
        for gradient, left in zip(step.gradients, after, strict=True)
    )


def emptied(step: Step) -> int:
    """The number of the round before which `.grad` was emptied last; 0 where that was before the first."""
    last = 0
    for number, (one, following) in enumerate(zip(step.rounds, step.rounds[1:], strict=False), 1):
        left, found = (
            any(key in kept and kept[key].any() for key in step.ids)
            for kept in (one.after, following.before)
        )
        if left and not found:
            last = number
    return last


def scale_of(step: Step) -> float:
    """How long a step's gradient is beside what its last round left in `.grad`."""
    if not step.rounds:
        return 1.0
    after = [step.rounds[-1].after.get(key) for key in step.ids]
    pairs = [
        (g, a)
        for g, a in zip(step.gradients, after, strict=True)
        if g is not None and a is not None
    ]
    length = sum(float(a.double().square().sum()) for _, a in pairs)
    if not length:
        return 1.0
    return sum(float((g.double() * a.double()).sum()) for g, a in pairs) / length
