"""What a running average of the weights is made of: how much of itself it keeps with each step of the optimizer."""

import math

import torch

from trainlean.audit.differences import vector
from trainlean.audit.finding import Finding, Sizes, near
from trainlean.audit.recorded import Recorded, Step

KEPT_ALL = 0.9999  # of itself: such a step is no part of the average


def of_average(number: int, other: Recorded, truth: Recorded, sizes: Sizes) -> Finding | None:
    """What makes the averages that two equal trainings leave behind differ; None where there is none that can be read."""
    held = ((one.averages, one.weights, one.returned) for one in (other, truth))
    for mine, right in zip(*held, strict=True):
        pairs = zip(_averages(mine, other.steps), _averages(right, truth.steps), strict=False)
        for kept, wanted in pairs:
            if all(near(one, there, 1e-2) for one, there in zip(kept, wanted, strict=True)):
                continue
            rounds = [len(step.rounds) for step in other.steps]
            return _of_kept(number, kept, wanted, rounds, sizes)
    return None


def _of_kept(
    number: int, kept: list[float], wanted: list[float], rounds: list[int], sizes: Sizes
) -> Finding:
    if kept[-1] > KEPT_ALL > wanted[-1]:
        seen = f"all steps are the same, but the average of the weights lacks those behind the last step, which that of {sizes.truth} holds: it is taken before the step"
        return Finding(number, seen)
    at = next(
        i
        for i, (one, there) in enumerate(zip(kept, wanted, strict=True))
        if not near(one, there, 1e-2)
    )
    seen = f"all steps are the same, but the average of the weights is not: at step {at + 1} it keeps {kept[at]:.3g} of itself, in {sizes.truth} {wanted[at]:.3g}"
    return Finding(
        number,
        seen,
        "the average moves with every micro-batch" if _each_time(kept, wanted, rounds) else None,
    )


def _each_time(kept: list[float], wanted: list[float], rounds: list[int]) -> bool:
    """Whether an average forgets in each window as often as the window has micro-batches.

    What is taken behind every micro-batch sees the weights of a step once in its own window, and in the next one with all
    micro-batches but the last; what is taken before the steps sees them with all micro-batches of the next window, as
    another decay would have it, where all windows are as long.
    """
    if not all(1e-6 < one < KEPT_ALL for one in (*kept[:-1], *wanted[:-1])):
        return False
    often = [
        math.log(one) / math.log(there) for one, there in zip(kept[:-1], wanted[:-1], strict=True)
    ]
    if max(kept[-1], wanted[-1]) < KEPT_ALL:  # one that warms up forgets less with each move
        last = math.log(kept[-1]) / math.log(wanted[-1])
        often = [one / last for one in often]
    elif len(set(rounds[1:])) == 1:
        return False
    return bool(often) and all(
        near(one, count, 0.3) for one, count in zip(often, rounds[1:], strict=True)
    )


def _averages(tensors: list[torch.Tensor], steps: list[Step]) -> list[list[float]]:
    """For each average of the weights among these tensors, how much of itself it kept at each step."""
    weights = steps[0].weights if steps else []
    if not weights or any(step.ids != steps[0].ids or step.moved is None for step in steps):
        return []
    found = []
    for start in range(0, len(tensors) - len(weights) + 1, len(weights)):
        order = _in_the_order_of(weights, tensors[start : start + len(weights)])
        kept = _kept(order, steps) if order else None
        if kept:
            found.append(kept)
    return found


def _in_the_order_of(weights, tensors) -> list[torch.Tensor] | None:
    """The tensors in the order of the optimizer's weights, whose groups may have another one; those of one shape keep theirs."""
    left, order = list(tensors), []
    for weight in weights:
        at = next((i for i, one in enumerate(left) if one.shape == weight.shape), None)
        if at is None:
            return None
        order.append(left.pop(at))
    return order


def _kept(average: list[torch.Tensor], steps: list[Step]) -> list[float] | None:
    """The part of itself that an average of the weights kept at each step; None where it is no such average."""
    ways = [vector(step.moved or []) - vector(step.weights) for step in steps]
    matrix, gone = torch.stack(ways, dim=1), vector(average) - vector(steps[0].weights)
    if matrix.shape[0] <= matrix.shape[1] or not float(gone.norm()):
        return None
    # Of each step's way, the average has gone the part that it did not keep at this step or a later one.
    parts = torch.linalg.lstsq(matrix, gone.unsqueeze(1), driver="gelsd").solution
    if float((matrix @ parts - gone.unsqueeze(1)).norm()) > 1e-3 * float(gone.norm()):
        return None
    left = [*(1 - parts.flatten()).tolist(), 1.0]
    if not all(-1e-3 < one < 1.001 for one in left) or min(left) < 1e-9:
        return None
    return [before / after for before, after in zip(left, left[1:], strict=False)]
