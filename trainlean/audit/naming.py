"""The name of what makes two trainings differ, by what was recorded: which inputs stand behind a step, and its settings.

Nothing here reads code; `gradients` names what makes two gradients differ.
"""

import itertools
import math
from collections import Counter

from trainlean.audit.averages import of_average
from trainlean.audit.differences import Difference, Windows, touched
from trainlean.audit.finding import Finding, Sizes, counted, near
from trainlean.audit.gradients import of_clipped, of_gradient
from trainlean.audit.recorded import Recorded, Step


def explain(
    difference: Difference,
    other: Recorded,
    truth: Recorded,
    sizes: Sizes,
    rounding: float,
    alone: Recorded | None,
) -> Finding:
    """What makes `other`, accumulated, differ from `truth`, the large batch. `alone` trains on micro-batches without accumulation."""
    windows = Windows(other, truth)
    if windows.others:
        return Finding(
            difference.step,
            f"{sizes.other} trains on other data than {sizes.truth}: no sample of one was seen in the other. "
            "Both must go through the same samples in the same order, whatever the batch size",
            undecided=True,
        )
    found = _explained(difference, other, truth, sizes, windows, rounding, alone)
    lengths = (None, "schedule of another length", "length in micro-batches")
    of_data = difference.kind == "settings" and windows.known and found.mistake in lengths
    if of_data and (windows.unseen or windows.not_known):  # a schedule is as long as its data
        return _left_out(difference.step, windows, other, truth, sizes)
    if windows.partly and found.mistake in (None, "a loss across samples"):
        return _of_other_data(difference.step, windows, sizes) or found
    return found


def _explained(difference, other, truth, sizes, windows, rounding, alone) -> Finding:
    number = difference.step
    if _made_anew(number, other, truth):
        seen = f"step {number} is one of a new optimizer, which has seen none of the steps before"
        return Finding(number, seen, "optimizer made anew")
    found = _of_windows(difference, other, truth, sizes, windows)
    of_one = _of_one_optimizer(number, other, truth, sizes)
    if found and (found.mistake or not (of_one and of_one.mistake)):
        return found
    if of_one:
        return of_one
    if difference.kind == "steps":
        return Finding(
            number,
            f"{sizes.other} makes {counted(len(other.steps), 'step')}, {sizes.truth} {len(truth.steps)}",
        )
    step, right = other.steps[number - 1], truth.steps[number - 1]
    if difference.kind == "settings":
        return _of_settings(difference, other, truth, sizes)
    if difference.kind == "clipped":
        return of_clipped(difference, step, other, truth, sizes)
    if difference.kind == "gradient":
        return of_gradient(number, step, right, other, truth, sizes, windows, rounding, alone)
    if difference.kind == "average" and other.averaged != truth.averaged:
        return Finding(
            number,
            f"all steps are the same, but the average of the weights is not: it moved {other.averaged} times, in {sizes.truth} {truth.averaged} times",
            "the average moves with every micro-batch" if other.averaged > truth.averaged else None,
        )
    if difference.kind in ("average", "end") and (
        of_weights := of_average(number, other, truth, sizes)
    ):
        return of_weights
    if difference.kind == "between":
        return _of_moves(number, step, right, sizes)
    if difference.kind == "weights":
        mine, others = (sum(weight.numel() for weight in one.weights) for one in (step, right))
        return Finding(
            number,
            f"the optimizer of step {number} moves {mine:,} weights; in {sizes.truth} {others:,}",
        )
    words = {
        "update": "gradient and settings are the same, but the optimizer moves the weights differently",
        "average": "all steps are the same, but the average of the weights is not",
        "end": "all steps are the same, but the weights that the function leaves behind are not: something besides the optimizer has moved them, or they are an average",
    }
    return Finding(number, words.get(difference.kind, "the trainings differ"))


# ---------------------------------------------------------------- which inputs stand behind each step


def _of_other_data(number: int, windows: Windows, sizes: Sizes) -> Finding | None:
    """Samples behind a step that are not those of the large batch, where the trainings share a part of their data only."""
    if number > min(len(windows.of_other), len(windows.of_truth)):
        return None
    mine, right = windows.of_other[number - 1], windows.of_truth[number - 1]
    foreign = windows.foreign(mine, right)
    if not foreign:
        return None
    return Finding(
        number,
        f"{sizes.other} trains on other data than {sizes.truth}: of the {mine.total()} samples behind its step {number}, {foreign} are not among the {right.total()} there. "
        "Both must go through the same samples in the same order, whatever the batch size",
        undecided=True,
    )


def _of_windows(difference, other, truth, sizes, windows: Windows) -> Finding | None:
    """What the inputs behind the steps say, without a look at a gradient; None where they are as they should be."""
    number, k = difference.step, sizes.accumulation_steps
    mine, wanted = windows.of_other, windows.of_truth
    rounds = [len(step.rounds) for step in other.steps]

    def found(mistake, seen, at=number):
        return Finding(at, seen, mistake)

    if not other.steps:
        return found(
            "never steps", f"{sizes.other} makes no step, {sizes.truth} {len(truth.steps)}", 1
        )
    here = rounds[number - 1] if number <= len(rounds) else 0
    if not windows.known:
        if (
            not windows.tell_apart
            and number == 1
            and max(rounds) == 1
            and len(rounds) == k * len(truth.steps)
        ):
            return found(
                "steps on every micro-batch",
                f"{sizes.other} makes {counted(len(rounds), 'step')}, {sizes.truth} {len(truth.steps)}",
            )
        return None
    if number > len(wanted):  # more steps than the large batch makes
        if not mine[number - 1]:
            return found(
                "a step too many at the end",
                f"step {number} has no sample behind it, and {sizes.truth} does not make it",
            )
        if mine[number - 1] - windows.behind(truth.calls):
            return _left_out(number, windows, other, truth, sizes)
        return None
    right = wanted[number - 1]
    if number > len(mine):
        if number < len(wanted) and not windows.left:
            if len(mine) == 1:
                return found(
                    "ends after the first window",
                    f"{sizes.other} makes 1 step, {sizes.truth} {len(wanted)}",
                )
            return None
        if right.total() < sizes.batch:
            if windows.left or not right & windows.behind(other.calls):
                return found(
                    "last window dropped",
                    f"the {right.total()} samples behind step {number} of {sizes.truth} get no step",
                )
            return None
        if windows.left == right:
            return found(
                "no step behind the last window",
                f"the {right.total()} samples behind step {number} of {sizes.truth} get no step",
            )
        return None
    got = mine[number - 1]
    if got == right:
        return None
    seen = f"behind step {number} stand {got.total()} samples ({_passes(here)}); {sizes.truth} has {right.total()} there"
    following = wanted[number] if number < len(wanted) else None
    rest = rounds[number - 1 :]
    if (
        number == 1
        and len(truth.steps[0].calls) == 2
        and here == k + 1
        and right.total() == len(right)
    ):
        return found("steps one micro-batch late", seen)  # so is the large batch
    begun = number > 1 and wanted[0].total() == sizes.batch
    short = right.total() < sizes.batch and (begun or number == len(wanted))
    as_long = _as_long_as_its_micro_batches(windows, other, truth, sizes)
    if as_long and here not in (
        0,
        1,
    ):  # where each micro-batch steps, it is the loop that ends early
        return Finding(number, f"{seen}; {as_long}")
    if got < right:
        if number == 1 and right.total() == k * sizes.batch and len(truth.steps[0].rounds) == k:
            return found("the number of accumulation steps is not the loop's", seen)
        if right.total() < sizes.batch and number > 1 and here == 1 and windows.unseen.total() == 0:
            return found("a step for each one that is left", seen)
        if max(rest) == 1 and len(rest) > 1 or len(rounds) >= k * len(wanted) > 1:
            return found("steps on every micro-batch", seen)
        if number == 1 and here == 1 and (len(rounds) == 1 or rounds[1] > 1):
            return found("steps on the first micro-batch", seen)
        if _new_model(number, other) and (right - got) <= windows.behind(other.calls):
            return found("resumed inside a window", f"{seen}, and the model is a new one")
        if got.keys() == right.keys():
            return Finding(
                number,
                f"{seen}: the same ones, fewer times. A step that goes through its samples several times, as LBFGS or sharpness-aware minimisation does, "
                "may leave some out of a pass, which is another training, or end after fewer passes by rounding, which is none: give each step a fixed number of passes",
                undecided=True,
            )
        if windows.unseen and number == len(wanted):
            return _left_out(number, windows, other, truth, sizes)
        # Behind a step that is not the last there are too few: what is left out otherwise is no matter of the data.
        # Those that it lacks stand behind a later step, or it has other data.
        lacks = right - got
        there = 2 * (lacks & windows.behind(other.calls)).total() >= lacks.total()
        if number == 1 and right.total() == sizes.batch and 1 < here < k and there:
            short = "steps one micro-batch early" if here == k - 1 else ""
            return found(short or "too few micro-batches in a window", seen)
        return Finding(number, seen)
    if got > right:
        if short:
            if following is not None and got == right + following:
                lost = other.steps[number - 1].emptied
                became = "were lost" if lost else "leaked into this one"
                return found(
                    "last window dropped",
                    f"{seen}: those of the window before, which got no step, {became}",
                )
            return found("windows over the end of an epoch", seen)
        if len(mine) == 1 and got == windows.behind(truth.calls):
            return found("one step after the loop", seen)
        if following is not None and number == len(wanted) - 1 and got == right + following:
            return found("what is left put into the window before", seen)
        if got.keys() == right.keys() and (following is None or following.keys() != right.keys()):
            return Finding(number, f"{seen}: the same ones, some of them more often")
        first, extra = windows.behind(other.steps[number - 1].calls[: here - k]), got - right
        learned = sum(mine[: number - 1], Counter())
        if (
            number > 1
            and first == extra
            and not extra & learned
            and (following is None or not extra & following)
        ):
            return found(
                "last window dropped",
                f"{seen}: what was left when they began anew leaked into this one",
            )
        if here == k + 1 and number == 1:
            return found("steps one micro-batch late", seen)
        if here > k:
            if min(rest[:-1], default=k) <= k:  # others hold no more: no window is longer by rule
                behind = ", ".join(map(str, rest[:4]))
                return Finding(
                    number, f"{seen}; {behind} backward passes lie behind this step and the next"
                )
            return found(
                "several micro-batches too many in a window" if here > k + 1 else None, seen
            )
        return Finding(number, seen)
    if following is not None and short and got == following:
        return found(
            "last window dropped",
            f"the {right.total()} samples behind step {number} of {sizes.truth} get no step",
        )
    if max(got.values()) > max(right.values()) and got.keys() < right.keys():
        return found("the same samples several times in a window", f"{seen}, and not the same ones")
    # Windows that are cut elsewhere are the loop's; samples in another order, as a loader draws them, are the data's.
    if windows.same_order:
        return Finding(number, f"{seen}, and not the same ones")
    return Finding(
        number,
        f"step {number} of {sizes.other} stands on other samples than that of {sizes.truth}: "
        "both must go through the same samples in the same order, whatever the batch size",
        undecided=True,
    )


def _as_long_as_its_micro_batches(windows: Windows, other, truth, sizes) -> str:
    """A sentence where a training goes through a k-th of the samples: its data are cut for it, so no window is the loop's alone."""
    mine, there = (windows.behind(one.calls).total() for one in (other, truth))
    if not near(mine * sizes.accumulation_steps, there, 1e-2):
        return ""
    pairs = list(zip(windows.of_other, windows.of_truth, strict=False))
    if len(windows.of_other) == len(windows.of_truth) and all(one < all_ for one, all_ in pairs):
        return f"of each window of {sizes.truth} only a part goes forward, {mine} samples of {there} in all: the loop leaves out the others, or its data do"
    return (
        f"in all {sizes.other} goes through {mine} samples, {sizes.truth} through {there}: "
        "how many there are depends on the micro-batch (a sampler or a data set with a length of its own?)"
    )


def _of_one_optimizer(number, other, truth, sizes) -> Finding | None:
    """One of several optimizers makes more steps, or fewer, than it should; the others may be right."""
    counts, wanted = (
        Counter(tuple(weight.shape for weight in step.weights) for step in one.steps)
        for one in (other, truth)
    )
    for one, count in wanted.items():
        if len(wanted) > 1 and counts[one] != count:
            each = counts[one] == sizes.accumulation_steps * count
            return Finding(
                number,
                f"one of the optimizers makes {counted(counts[one], 'step')}; in {sizes.truth} it makes {count}",
                "steps on every micro-batch" if each else None,
            )
    return None


def _made_anew(number: int, other, truth) -> bool:
    """Whether an optimizer has taken the place of another one, which the large batch goes on with."""
    if not 1 < number <= min(len(other.steps), len(truth.steps)):
        return False

    at = number - 1
    step, right = other.steps[at], truth.steps[at]
    same = any(one.ids == step.ids for one in other.steps[:at])
    if step.fresh and not right.fresh and (same or _new_model(number, other)):
        return True

    def taken_over(step, earlier):
        return any(
            one.ids == step.ids and one.optimizer != step.optimizer for one in earlier
        ) and not any(one.optimizer == step.optimizer for one in earlier)

    return taken_over(step, other.steps[:at]) and not taken_over(right, truth.steps[:at])


def _new_model(number: int, recorded: Recorded) -> bool:
    """Whether the weights of a step take the place of other ones of their shapes, which steps before it have moved."""
    step, earlier = recorded.steps[number - 1], recorded.steps[: number - 1]
    shapes = [weight.shape for weight in step.weights]
    return not any(set(one.ids) & set(step.ids) for one in earlier) and any(
        [weight.shape for weight in one.weights] == shapes for one in earlier
    )


def _passes(rounds: int) -> str:
    return f"{rounds} backward pass" + "es" * (rounds != 1)


def _left_out(number, windows, other, truth, sizes) -> Finding:
    lacking, having = sizes.other, sizes.truth
    if not windows.unseen:
        lacking, having = having, lacking
    count, steps = (
        (windows.unseen or windows.not_known).total(),
        (len(other.steps), len(truth.steps)),
    )
    if count >= sizes.batch * min(steps):  # a loader drops less than a batch of each epoch
        return Finding(
            number,
            f"{sizes.other} makes {counted(steps[0], 'step')}, {sizes.truth} {steps[1]}, on windows of the same size: "
            "how long it trains depends on the micro-batch or on the accumulation steps",
        )
    return Finding(
        number,
        f"{lacking} leaves out {count} samples that {having} trains on (a data loader with `drop_last`?): "
        "take a batch that divides the number of samples",
        undecided=True,
    )


# ---------------------------------------------------------------- learning rate and other settings


def _of_settings(difference, other, truth, sizes) -> Finding:
    number, key, group = difference.step, difference.setting, difference.group
    step, right = other.steps[number - 1], truth.steps[number - 1]
    if key == "groups":
        count, there = len(step.settings), len(right.settings)
        return Finding(
            number,
            f"the optimizer of step {number} has {count} groups of weights; in {sizes.truth} {there}",
        )
    value, wanted = (one.settings[group].get(key) for one in (step, right))
    seen = setting_seen(number, key, value, wanted, sizes)
    if value is None or wanted is None:
        return Finding(number, seen)
    if key != "lr" and "momentum" not in key and "betas" not in key:
        return Finding(number, seen)
    moves, moved = (
        sum(one.schedule for one in recorded.steps[:number]) for recorded in (other, truth)
    )
    if moves != moved:
        # Once for each micro-batch is k - 1 times too often already in the first window.
        each = moves - moved >= sizes.accumulation_steps - 1
        return Finding(
            number,
            f"{seen} (the scheduler has moved {moves} times, there {moved})",
            "the schedule moves with every micro-batch" if each else None,
        )
    # Another optimizer has settings of its own.
    mine, rates = (
        [
            _group_of(one, group).get(key, math.nan)
            for one in recorded.steps
            if one.optimizer == right.optimizer
        ]
        for recorded in (other, truth)
    )
    position = sum(one.optimizer == right.optimizer for one in truth.steps[: number - 1])
    k = sizes.accumulation_steps
    if key == "lr" and _changed_with_k(mine, rates, k, step.settings[group], right.settings[group]):
        return Finding(number, seen, "learning rate changed with k")
    if any(_new_model(one, other) for one in range(2, number + 1)):
        return Finding(number, seen)  # what was resumed may be the schedule of another place
    at = position / k
    below, part = int(at), at - int(at)
    between = rates[below] * (1 - part) + rates[min(below + 1, len(rates) - 1)] * part
    if near(value, rates[position], 1e-3):
        return Finding(number, seen)  # as near as that are the rates of many schedules
    if near(value, between, 1e-3):
        return Finding(number, seen, "length in micro-batches")
    if moves:
        return Finding(number, seen, "schedule of another length")
    # A schedule without a scheduler's object: is this the rate that the large batch has some steps later?
    later = [rates[at] for at in (position * k, (position + 1) * k - 1) if at < len(rates)]
    if any(near(value, rate, 1e-3) for rate in later):
        return Finding(number, seen, "the schedule moves with every micro-batch")
    return Finding(number, seen)


def _group_of(step: Step, number: int) -> dict:
    """The settings of a group of a step's optimizer; none where it was added later."""
    return step.settings[number] if number < len(step.settings) else {}


def _changed_with_k(mine, rates, k: int, group: dict, right: dict) -> bool:
    """Whether the learning rate of a whole training is another one's by a factor of k, and not the schedule above it."""
    begins = "initial_lr"  # where a scheduler of torch began
    if begins in right and near(group.get(begins, 0.0), right[begins], 1e-6):
        return False
    rises = len(rates) > 1 and all(one < after for one, after in itertools.pairwise(rates))
    # A warm-up that is k times as long as it should be gives a k-th of the rate as well.
    factors = (k, k**0.5) if rises and begins not in right else (k, k**0.5, 1 / k)
    pairs = list(zip(mine, rates, strict=False))
    return any(
        all(near(one, rate * factor, 1e-3) if rate else not one for one, rate in pairs)
        for factor in factors
    )


def setting_seen(number: int, key: str, value, wanted, sizes: Sizes) -> str:
    """A setting of an optimizer that is not the large batch's, in words."""
    called = "learning rate" if key == "lr" else key
    for digits in (4, 6, 9, 17):  # as many as they need to differ
        mine, right = ("missing" if one is None else f"{one:.{digits}g}" for one in (value, wanted))
        if mine != right:
            break
    return f"the {called} at step {number} is {mine}; that of {sizes.truth} is {right}"


# ---------------------------------------------------------------- weights that something else moves


def _of_moves(number: int, step: Step, right: Step, sizes: Sizes) -> Finding:
    mine, others = touched(step), touched(right)
    if not float(mine.norm()) or not float(others.norm()):
        one = sizes.other if float(mine.norm()) else sizes.truth
        return Finding(
            number,
            f"something besides the optimizer moves the weights before step {number}, in {one} only",
        )
    factor = float(mine @ others / others.square().sum())
    seen = f"something besides the optimizer moves the weights before step {number}, {factor:.2f} times as far as in {sizes.truth}"
    straight = float((mine - factor * others).norm()) < 0.1 * float(mine.norm())
    # Moved by a part of themselves, a few times: not exactly as many times as far.
    often = len(step.calls) / max(len(right.calls), 1)
    each = straight and often > 1 and near(factor, often, 0.2)
    return Finding(number, seen, "weights moved with every micro-batch" if each else None)
