"""Where two recorded trainings part: gradient, learning rate, weights or the number of steps, one step after the other."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainlean.audit.recorded import Recorded, Step

# What rounding may do to one gradient, relative to it and to what it is the sum of.
ROUNDING = {"float64": 1e-9, "float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}
SURE = 30  # times as much is no rounding; what lies between is not decided
SMALL_PART = 0.03  # of the whole gradient: a tensor with less is held against that much


@dataclass(frozen=True)
class Difference:
    """The first place where two trainings part: which step (from 1), in what, and by how much of its length."""

    step: int
    kind: str  # "start", "gradient", "clipped", "settings", "update", "between", "steps", "average" or "end"
    size: float = math.inf
    setting: str = ""
    group: int = 0  # of the optimizer, whose setting it is


def vector(tensors) -> torch.Tensor:
    """Tensors as one vector of float64."""
    parts = [tensor.detach().double().flatten().cpu() for tensor in tensors]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def gradient_of(step: Step) -> torch.Tensor:
    """A step's gradient; zero where a weight has none."""
    return vector(
        torch.zeros_like(weight) if gradient is None else gradient
        for gradient, weight in zip(step.gradients, step.weights, strict=True)
    )


def of_weights(step: Step, gradients: dict[int, torch.Tensor]) -> torch.Tensor:
    """What lay in `.grad` of a step's weights before or after a round, as one vector."""
    return vector(
        gradients.get(key, torch.zeros_like(weight))
        for key, weight in zip(step.ids, step.weights, strict=True)
    )


def added_by_rounds(step: Step) -> list[torch.Tensor]:
    """What each round behind a step added to its gradient."""
    return [of_weights(step, one.after) - of_weights(step, one.before) for one in step.rounds]


def alike(one: Step, other: Step) -> bool:
    """Whether two steps are about the same weights."""
    shapes = ([weight.shape for weight in step.weights] for step in (one, other))
    return one.optimizer == other.optimizer and len(set(map(tuple, shapes))) == 1


def gradient_gap(step: Step, other: Step) -> float:
    """How far a step's gradient is from another's: the largest gap of a tensor, relative to its length and that of its parts.

    Kept with the step, whose parts are forgotten once it was compared.
    """
    if step.gap is None:
        step.gap = _gradient_gap(step, other)
    return step.gap


def _gradient_gap(step: Step, other: Step) -> float:
    parts = added_by_rounds(step) if any(one.after for one in step.rounds) else []
    mine, others = gradient_of(step), gradient_of(other)
    if not torch.isfinite(mine).all() or not torch.isfinite(others).all():
        return 0.0 if torch.equal(mine.isfinite(), others.isfinite()) else math.inf
    squares = sum((part.square() for part in parts), torch.zeros_like(mine))
    squares = torch.maximum(squares * step.scale**2, others.square())
    floor = SMALL_PART * float(squares.sum().sqrt())
    largest, start = 0.0, 0
    for weight in step.weights:
        here = slice(start, start := start + weight.numel())
        gap = float((mine[here] - others[here]).norm())
        if gap:
            largest = max(largest, gap / max(float(squares[here].sum().sqrt()), floor, 1e-30))
    return largest


def before_clipping(step: Step, other: Step) -> float:
    """How long a step's gradient was before it was clipped, beside another's: clipping makes gradients of any length equally long."""
    pairs = zip(step.clips, other.clips, strict=False)
    if len(step.clips) != len(other.clips):
        return 1.0
    return next((mine / others for mine, others in pairs if min(mine, others) > 1), 1.0)


def update_gap(step: Step, other: Step) -> float:
    """How far apart two steps moved the weights. Where a gradient is nearly zero, Adam makes much of its rounding: it counts little."""
    if step.moved is None or other.moved is None:
        return 0.0
    mine = vector(step.moved) - vector(step.weights)
    others = vector(other.moved) - vector(other.weights)
    importance = gradient_of(other).abs()
    whole = float((others.abs() * importance).sum())
    gap = float(((mine - others).abs() * importance).sum())
    return gap / whole if whole else (math.inf if gap else 0.0)


def other_setting(step: Step, other: Step) -> tuple[str, int]:
    """The first number among the optimizer's settings that differs, and the number of its group; empty where none does."""
    if len(step.settings) != len(other.settings):
        return "groups", 0
    for number, (mine, others) in enumerate(zip(step.settings, other.settings, strict=True)):
        for key in ("lr", *others):
            if key in others and not math.isclose(
                mine.get(key, math.nan), others[key], rel_tol=1e-5, abs_tol=1e-12
            ):
                return key, number
    return "", 0


def compare_steps(step: Step, other: Step, rounding: float) -> Difference | None:
    """Where two steps of one number part; None where they do not. The number is left at 0."""
    if not alike(step, other):
        return Difference(0, "weights")
    size = gradient_gap(step, other)
    if size > rounding:
        return Difference(0, "gradient", size)
    factor = before_clipping(step, other)
    if abs(factor - 1) > max(1e-2, 10 * rounding):
        return Difference(0, "clipped", factor)
    setting, group = other_setting(step, other)
    if setting:
        return Difference(0, "settings", setting=setting, group=group)
    moved = update_gap(step, other)
    if moved > max(1e-3, 10 * rounding):
        return Difference(0, "update", moved)
    return None


def first_difference(
    other: Recorded, truth: Recorded, rounding: float
) -> tuple[Difference | None, float]:
    """The first difference of a training from the one that it should equal, and the largest gap of a gradient before it."""
    largest = 0.0
    begun = other.steps and truth.steps and alike(other.steps[0], truth.steps[0])
    if begun and not _same_start(other.steps[0], truth.steps[0]):
        return Difference(1, "start"), largest
    for number, (step, right) in enumerate(zip(other.steps, truth.steps, strict=False), 1):
        found = compare_steps(step, right, rounding)
        # What moved the weights before a step also moved its gradient.
        if (found is None or found.kind == "gradient") and touched_apart(step, right, rounding):
            return Difference(number, "between"), largest
        if found:
            return replace(found, step=number), largest
        largest = max(largest, gradient_gap(step, right))
    if len(other.steps) != len(truth.steps):
        return Difference(min(len(other.steps), len(truth.steps)) + 1, "steps"), largest
    if not _as_returned(other.averages, truth.averages, rounding):
        return Difference(len(truth.steps), "average"), largest
    for mine, others in ((other.weights, truth.weights), (other.returned, truth.returned)):
        if not _as_returned(mine, others, rounding):
            return Difference(len(truth.steps), "end"), largest
    return None, largest


def touched(step: Step) -> torch.Tensor:
    """How far something besides the optimizer moved a step's weights before it."""
    parts = step.touched or []  # weights that were added later are the last ones
    return vector(
        torch.zeros_like(weight) if part is None else part
        for weight, part in itertools.zip_longest(step.weights, parts)
    )


def _same_start(step: Step, other: Step) -> bool:
    mine, others = (vector(one.weights) - touched(one) for one in (step, other))
    return float((mine - others).norm()) <= 1e-6 * float(others.norm())


def touched_apart(step: Step, other: Step, rounding: float) -> bool:
    """Whether the weights were moved besides the optimizer in another way, by more than rounding."""
    mine, others = touched(step), touched(other)
    if mine.shape != others.shape:
        return False
    lengths = float(mine.norm()), float(others.norm())
    apart = float((mine - others).norm())
    return apart > max(1e-2, rounding) * max(lengths) and apart > 1e-6 * float(
        vector(other.weights).norm()
    )


def _as_returned(mine: list, others: list, rounding: float) -> bool:
    if [t.shape for t in mine] != [t.shape for t in others]:
        return True  # nothing that can be compared
    one, other = (vector(tensors).nan_to_num() for tensors in (mine, others))
    length = float(other.norm())
    return float((one - other).norm()) <= max(1e-4, 10 * rounding) * max(length, 1e-30)


def _of_floats(row) -> bool:
    return isinstance(row, bytes) and len(row) % 4 == 0


class Windows:
    """Which samples stand behind each step of two trainings, by the rows of their inputs."""

    def __init__(self, other: Recorded, truth: Recorded):
        calls = [call for recorded in (other, truth) for call in recorded.calls if call.rows]
        widths = [
            len(row) for call in calls for row in call.rows or () if isinstance(row, np.ndarray)
        ]
        self._width = min(widths, default=None)
        self._mark_those_that_look(other, truth)
        self.of_other = [self.behind(step.calls) for step in other.steps]
        self.of_truth = [self.behind(step.calls) for step in truth.steps]
        self.left = self.behind(other.after_last)
        seen, known = self.behind(other.calls), self.behind(truth.calls)
        rows = known.total()
        found = sum(count for sample, count in seen.items() if sample in known)
        # Rows that are hardly ever two different ones tell nothing apart, and neither does a graph that always goes forward as a whole.
        passes = {tuple(call.samples(self._width)) for call in calls if call.backwards}
        self.tell_apart = len(known) >= 2 and len(known) > rows / 8 and len(passes) != 1
        back = sum(count for sample, count in known.items() if sample in seen)
        self.known = self.tell_apart and (
            found >= 0.9 * seen.total() > 0 or back >= 0.9 * known.total()
        )
        self.others = self.tell_apart and seen.total() > 0 and found < 0.1 * seen.total()
        # Some samples are those of the other training, and some are not.
        self.partly = self.tell_apart and seen.total() > 0 and not self.known and not self.others
        orders = [
            [
                sample
                for call in one.calls
                if not call.evaluates
                for sample in call.samples(self._width)
            ]
            for one in (other, truth)
        ]
        shorter = min(map(len, orders))
        self.same_order = orders[0][:shorter] == orders[1][:shorter]
        self.unseen = known - seen
        self.not_known = seen - known

    def _mark_those_that_look(self, *both: Recorded) -> None:
        """A forward pass that nothing comes back to only looks at the model where its samples are trained on nowhere, or by another pass of the window."""
        if any(one.functional for one in both):  # gradients come without a backward pass
            return

        def samples(calls):
            return {sample for call in calls for sample in call.samples(self._width)}

        trained = samples(call for one in both for call in one.calls if call.backwards)
        for one in both:
            for calls in (*(step.calls for step in one.steps), one.after_last):
                here = samples(call for call in calls if call.backwards)
                learned = samples(call for call in calls if call.learns)
                for call in calls:
                    mine = samples([call])
                    if trained and mine and not call.backwards:
                        elsewhere = here if call.learns else learned
                        call.looks = not mine & trained or mine <= elsewhere

    def behind(self, calls) -> Counter:
        """The samples of forward passes."""
        return Counter(
            sample for call in calls if not call.evaluates for sample in call.samples(self._width)
        )

    def foreign(self, mine: Counter, right: Counter) -> int:
        """How many samples are none of these; what a model has computed may differ from them by rounding."""
        missing, there = mine - right, right - mine
        known = [np.frombuffer(row, np.float32) for row in there if _of_floats(row)]

        def near(row):
            values = np.frombuffer(row, np.float32)
            return any(
                values.shape == one.shape and np.allclose(values, one, 1e-3, 1e-4) for one in known
            )

        return sum(count for row, count in missing.items() if not (_of_floats(row) and near(row)))

    def sizes(self, rounds) -> list[int]:
        """How many samples each round went back through."""
        return [sum(len(call.rows or ()) for call in one.calls) for one in rounds]

    def with_targets(self, rounds) -> list[tuple]:
        """Each sample that went backward with its target, where the loss says what that is."""
        pairs: list[tuple] = []
        for one in rounds:
            for call in one.calls:
                samples = call.samples(self._width)
                targets = one.loss.targets_of(len(samples))
                if targets:
                    pairs += zip(samples, targets, strict=True)
                    break
        return pairs
