"""The name of what makes two gradients differ.

A step's gradient is written as a sum of what each round of backward added; the large batch's gradient, written as a sum
of the same parts, says by what each part should have been divided.
"""

import operator
from collections import Counter
from dataclasses import replace

import torch

from trainlean.audit.differences import Windows, added_by_rounds, gradient_of, of_weights, vector
from trainlean.audit.finding import Finding, near
from trainlean.audit.recorded import Call, Recorded, Round, Step
from trainlean.exercises.comparing import describe


def of_clipped(difference, step, other, truth, sizes) -> Finding:
    """Gradients that are equal only because both are clipped."""
    number, factor, count = difference.step, difference.size, len(step.rounds)
    mistake = count and _divisor(factor / count, number, count, other, truth, sizes, None)
    seen = f"the gradient at step {number} is the same only because it is clipped: before, it is {factor:.2f} times as long as that of {sizes.truth}"
    if not mistake:
        return Finding(number, f"{seen}; compare with a higher limit", undecided=True)
    return Finding(number, seen, mistake)


def of_gradient(
    number, step: Step, right: Step, other, truth, sizes, windows, rounding, alone
) -> Finding:
    """What makes a step's gradient differ from the large batch's."""
    got, want = gradient_of(step), gradient_of(right)
    seen = f"the gradient at step {number} {describe(got.numpy(), want.numpy(), 'that of ' + sizes.truth)}"

    def found(mistake, more=""):
        same = windows.known and windows.of_other[number - 1] == windows.of_truth[number - 1]
        return Finding(number, seen + more, mistake, same_samples=same)

    if not float(got.norm()):
        return found("nothing in .grad at the step")
    if missing := _without_backward(step, right):
        calls = [call for call in step.calls if not call.evaluates]
        last = calls[-1].backwards and all(not call.backwards for call in calls[:-1])
        return found(
            "only the last micro-batch counts" if last else "a micro-batch without a backward pass",
            f": {missing} of its {len(calls)} forward passes got no backward pass",
        )
    if max((call.backwards for call in step.calls), default=0) > max(
        (call.backwards for call in right.calls), default=1
    ):
        return found("backward on the running total")
    if step.leftover and not right.leftover:
        return found("never zeroed")
    lasting, wanted = (one.rounds[one.emptied :] for one in (step, right))
    if right.emptied:  # passes that are no part of the gradient, as a closure's
        if not step.emptied:
            return found("not zeroed between two passes")
        step, right = replace(step, rounds=lasting), replace(right, rounds=wanted)
    elif step.emptied and _is_sum_of(step, lasting):
        return found("zeroed inside the window")
    if mistake := _between_rounds(step, right, sizes.accumulation_steps):
        return found(mistake)
    if kept := _of_the_step_before(number, step, other, want):
        return found("never zeroed", f": {kept:.2g} of the gradient of the step before is in it")
    if _cut_off(step, right):
        return found("clipped in every micro-batch")
    if len(step.rounds) > 1 and _is_of_the_last(step):
        return found("only the last micro-batch counts")
    if others := _other_targets(step, right, other, truth, windows):
        return found("targets of other samples", f": {others} of its samples have another target")
    name = _by_weight(number, step, right, other, truth, sizes, windows, rounding, alone)
    if name in (None, "a loss across samples"):
        if changed := _changed_targets(step, right, windows):
            return found(None, f": {changed} of its samples have targets that none has there")
        if _one_term(step, right):
            name = "one term of the loss not divided"
        elif _by_own_count(step, right):
            name = "a term of the loss by its own count"
    nothing = sum(not part.any() for part in added_by_rounds(step)) if step.scale else 0
    if name in (None, "a loss across samples") and 0 < nothing < len(step.rounds):
        return found(None, f": nothing came of {nothing} of its {len(step.rounds)} backward passes")
    if name == "a loss across samples" and _of_each_sample(right, alone, rounding):
        return found(*_of_what_moves(number, step, right, other, rounding))
    name = name or _followed(number, step, other)
    if name:
        return found(name, _divisors_seen(step, right, sizes) if name == "a wrong divisor" else "")
    if _by_penalty(step, right):
        return found("penalty not divided")
    if _coarse(step) and not _coarse(right):
        return found("added up in low precision")
    if bare := _without_gradient(step, right):
        return found(None, f": no gradient came to {bare} of its {len(right.gradients)} tensors")
    if more := _without_gradient(right, step):
        count = len(right.gradients)
        return found(
            None, f": a gradient came to {more} of its {count} tensors that have none there"
        )
    factor, some = _in_some_weights(step, right)
    if some:
        count = len(step.rounds) or 1
        name = _divisor(factor / count, number, count, other, truth, sizes, None)
        return found(
            name, f": {factor:.2f} times as long in {some} of its tensors, right in the others"
        )
    return found(None, _reached_in_some(step, right))


def _is_sum_of(step: Step, rounds: list[Round]) -> bool:
    """Whether a step's gradient is what these rounds left in `.grad`, and not put together elsewhere."""
    got, left = gradient_of(step), of_weights(step, rounds[-1].after) * step.scale
    return float((got - left).norm()) < 1e-2 * float(got.norm())


def _of_the_step_before(number: int, step: Step, other: Recorded, want) -> float | None:
    """How much of the gradient of the step before is added to what it should be, where that is all that differs."""
    earlier = [one for one in other.steps[: number - 1] if one.ids == step.ids]
    if not earlier:
        return None
    got = gradient_of(step)
    factors = factors_of([gradient_of(earlier[-1]), want], got, 1e-3)
    if not factors or not near(factors[1], 1, 1e-2) or not 1e-2 < factors[0] < 1.01:
        return None
    return factors[0] if float((got - want).norm()) > 1e-2 * float(want.norm()) else None


def _coarse(step: Step) -> bool:
    """Whether a gradient in float32 has no more digits than bfloat16 or float16 can hold."""
    parts = [part for part in step.gradients if part is not None and part.dtype == torch.float32]
    whole = torch.cat([part.flatten() for part in parts]) if parts else torch.zeros(0)
    whole = whole[whole != 0]
    return len(whole) > 8 and any(
        float((whole == whole.to(kind).float()).float().mean()) > 0.9
        for kind in (torch.bfloat16, torch.float16)
    )


def _in_some_weights(step: Step, right: Step) -> tuple[float, int]:
    """The factor by which the gradients of some tensors are too long, all others being right, and of how many; (1, 0) where that is not so."""
    factors = []
    for got, want in zip(step.gradients, right.gradients, strict=True):
        if got is None or want is None or not float(want.norm()):
            continue
        factor = float((got * want).sum() / want.square().sum())
        if float((got - factor * want).norm()) > 1e-2 * float(want.norm()):
            return 1.0, 0
        factors.append(factor)
    wrong = [factor for factor in factors if not near(factor, 1, 1e-2)]
    alike = wrong and len(wrong) < len(factors) and all(near(one, wrong[0], 1e-2) for one in wrong)
    return (wrong[0], len(wrong)) if alike else (1.0, 0)


def _is_of_the_last(step: Step) -> bool:
    """Whether a gradient is the last round's alone, and what came to the weights before is no part of it."""
    got = gradient_of(step)
    flowed = [of_weights(step, one.flowed) for one in step.rounds]
    last, others = flowed[-1], sum(flowed[1:-1], flowed[0])
    length = float(got.norm())
    return float((got - last).norm()) < 1e-5 * length and float(others.norm()) > 1e-3 * length


def _other_targets(step: Step, right: Step, other, truth, windows: Windows) -> int:
    """How many samples of a step go backward with a target that they never have in the large batch's."""
    wanted: dict = {}
    for sample, target in windows.with_targets(right.rounds):
        wanted.setdefault(sample, set()).add(target)
    wrong = 0
    for sample, target in windows.with_targets(step.rounds):
        there = wanted.get(sample, ())
        if there and all(len(one) == len(target) for one in there):
            wrong += target not in there
    # Positions in a batch, as a contrastive loss has for targets, are of no sample: they are others in a smaller batch.
    mine, theirs = (
        Counter(target for one in recorded.steps for _, target in windows.with_targets(one.rounds))
        for recorded in (other, truth)
    )
    return wrong if (mine - theirs).total() < 0.1 * mine.total() else 0


def _changed_targets(step: Step, right: Step, windows: Windows) -> int:
    """How many samples of a step have another target than in the large batch's, and one that no sample has there."""
    if not all(one.loss.classes for one in (*step.rounds, *right.rounds)):
        return 0  # what a model computes is rounded otherwise
    wanted = windows.with_targets(right.rounds)
    there, length = {target for _, target in wanted}, {len(target) for _, target in wanted}
    return sum(
        target not in there and {len(target)} == length
        for _, target in windows.with_targets(step.rounds)
    )


def _one_term(step: Step, right: Step) -> bool:
    """Whether some terms of the micro-batches' loss are divided as the large batch's asks for, and another one is not."""
    # A gradient that the loss is made of, as a penalty on it is, comes in a round of its own, and from no loss.
    whole, parts = (
        [one.loss.terms for one in part.rounds if one.loss.terms] for part in (right, step)
    )
    if len(whole) != 1 or len(parts) < 2:
        return False
    large, mine, count = whole[0], parts[0], len(parts)
    if [one.name for one in mine] != [one.name for one in large] or len(mine) < 2:
        return False
    # What a term of the window is beside the large batch's, if every micro-batch holds as many samples.
    often = [
        one.factor / other.factor * (1 if one.summed else count)
        for one, other in zip(mine, large, strict=True)
        if other.factor
    ]
    divided = [near(one, 1, 1e-2) for one in often]
    return any(divided) and any(near(one, count, 1e-2) for one in often)


def _by_own_count(step: Step, right: Step) -> bool:
    """Whether one of several terms is a mean of its own in each micro-batch, and counts in the window as the mean of these means."""
    whole, parts = (
        [one.loss.terms for one in part.rounds if one.loss.terms] for part in (right, step)
    )
    kinds = {tuple(term.name for term in terms) for terms in (*whole, *parts)}
    if len(whole) != 1 or len(parts) < 2 or len(kinds) != 1 or len(whole[0]) < 2:
        return False
    for large, *mine in zip(*whole, *parts, strict=True):
        there = large.each
        often = [one.each / there for one in mine if one.each and there]
        if len(often) != len(parts) or all(near(one, often[0], 1e-2) for one in often):
            continue
        # By the own count n of N each counts N / n times too much, and these n are N together.
        together = sum(1 / one for one in often if one > 0)
        if near(together, len(parts), 1e-2) or near(together, 1, 1e-2):
            return True
    return False


def _of_each_sample(right: Step, alone: Recorded | None, rounding: float) -> bool:
    """Whether the first samples of the large batch have the loss that they have in a micro-batch of their own.

    Both losses are the training's first: what differs behind it moves inside the window, and is no loss across samples.
    """
    if alone is None or not alone.steps:
        return False
    whole, part = (_of_the_first_loss(one) for one in (right, alone.steps[0]))
    tolerance = max(1e-3, 3 * rounding)
    return len(whole) == len(part) > 0 and all(
        _alike(large, small, tolerance) for large, small in zip(whole, part, strict=True)
    )


def _of_the_first_loss(step: Step) -> list[Call]:
    """The forward passes to which the first loss of a step came back."""
    first = next((one for one in step.rounds if any(call.gradients for call in one.calls)), None)
    return [call for call in first.calls if call.gradients] if first else []


def _as_in_the_large_batch(step: Step, right: Step, tolerance: float) -> bool:
    """Whether the same comes back to every sample of a window as in the large batch, but for one factor."""
    whole = [call for one in right.rounds for call in one.calls if call.gradients]
    parts = [call for one in step.rounds for call in one.calls if call.gradients]
    if len(whole) != 1 or len(whole[0].gradients) != 1 or len(parts) != len(step.rounds):
        return False
    if any(len(call.gradients) != 1 for call in parts):
        return False
    large, small = vector(whole[0].gradients), vector(call.gradients[0] for call in parts)
    samples = [sample for call in parts for sample in call.samples(None)]
    if large.shape != small.shape or samples != whole[0].samples(None):
        return False
    return _factor(small, large, tolerance)[1]


def _alike(whole: Call, part: Call, tolerance: float) -> bool:
    """Whether the same comes back to the first samples of a large batch as to those of its first micro-batch, but for their number."""
    few, many = len(part.rows or ()), len(whole.rows or ())
    if not 0 < few < many or part.samples(None) != whole.samples(None)[:few]:
        return False
    for large, small in zip(whole.gradients, part.gradients, strict=False):
        if large.shape != (many, *small.shape[1:]) or len(small) != few:
            return False
        same, small = large[:few].double() * many / few, small.double()
        if float((same - small).norm()) > tolerance * float(small.norm()):
            return False
    return len(whole.gradients) == len(part.gradients)


def _followed(number: int, step: Step, other: Recorded) -> str | None:
    """A name where weights that learn nothing, a teacher's, go a part of the way to the trained ones within a window."""
    for one in other.followers:
        trained = iter(step.weights)  # a teacher may have no head
        pairs = [next((w for w in trained if w.shape == shape), None) for shape in one.shapes]
        if one.steps != number - 1 or any(weight is None for weight in pairs):
            continue
        before, after = vector(one.before), vector(one.after)
        towards = vector(weight.flatten()[:8] for weight in pairs if weight is not None) - before
        factor = float((after - before) @ towards / towards.square().sum().clamp(min=1e-30))
        rest = float((after - before - factor * towards).norm())
        if 0 < factor < 1 and rest < 1e-2 * float((after - before).norm()):
            return "the average moves with every micro-batch"
    return None


def _of_what_moves(
    number: int, step: Step, right: Step, other: Recorded, rounding: float
) -> tuple[str | None, str]:
    """What makes the later micro-batches of a window have another loss than the first: a teacher, a factor that is counted up, or something else."""
    if name := _followed(number, step, other):
        return name, ""
    losses = [one.loss.terms for one in step.rounds if one.loss.terms]
    if len({tuple(one.name for one in terms) for terms in losses}) == 1 and any(
        not near(one.factor, same[0].factor, 1e-4)
        for same in zip(*losses, strict=True)
        for one in same
    ):
        return "micro-batches count differently", ""
    if _as_in_the_large_batch(step, right, max(1e-3, 3 * rounding)):
        return (
            None,
            ": the same comes back to each sample, so what differs is past the model's outputs: something is done to the micro-batches' gradients, in a hook perhaps, or a term of the loss is about the weights",
        )
    return (
        None,
        _reached_in_some(step, right)
        or ": the first micro-batch adds what it should, and the later ones do not: something besides the weights changes inside the window, or they meet numbers, such as the samples' weights, that belong to other samples",
    )


def _without_gradient(step: Step, right: Step) -> int:
    """How many tensors of a step have no gradient, or zero, where the large batch's have one."""
    pairs = zip(step.gradients, right.gradients, strict=True)
    return sum(
        bool(want is not None and want.any() and (got is None or not got.any()))
        for got, want in pairs
    )


def _reached_in_some(step: Step, right: Step) -> str:
    """How many tensors got a gradient in one round of a step and none in another, in words; empty where the large batch has such, too."""

    def in_some(one):
        reached = [{key for key, flow in each.flowed.items() if flow.any()} for each in one.rounds]
        always = reached[0].intersection(*reached[1:]) if reached else set()
        return len(set().union(*reached) - always)

    some = in_some(step)
    if not some or in_some(right):
        return ""
    return f": {some} tensors got a gradient in some of its backward passes, none in others"


def _without_backward(step: Step, right: Step) -> int:
    """How many forward passes of a window got no backward pass, where each of the large batch's did."""
    if any(not call.backwards for call in right.calls if not call.evaluates):
        return 0
    return sum(not call.backwards for call in step.calls if not call.evaluates)


def _between_rounds(step: Step, right: Step, k: int) -> str | None:
    """What became of `.grad` between two rounds of a window: divided, unscaled or clipped."""
    factors = []
    for one, following in zip(step.rounds, step.rounds[1:], strict=False):
        left, found = of_weights(step, one.after), of_weights(step, following.before)
        if float(left.norm()) == 0 or float(found.norm()) == 0:
            factors.append(1.0)
        else:
            factor = float(left @ found / left.square().sum())
            if float((found - factor * left).norm()) > 1e-3 * float(found.norm()):
                if _emptied_in_some(step, one.after, following.before):
                    return "zeroed inside the window"
                limit = found.abs().max()
                cut = torch.equal(found, left.clamp(-limit, limit))
                cut = cut or _shortened(step, one.after, following.before)
                return "clipped in every micro-batch" if cut else None
            factors.append(factor)
    changed = [factor for factor in factors if abs(factor - 1) > 1e-4]
    if not changed:
        return None
    if len(changed) == len(factors) and all(
        near(factor, 1 / size, 1e-3) for factor in changed for size in {k, len(step.rounds)}
    ):
        return "gradients divided in every round"
    # What a scaler takes out is the same number each time, and the large batch's, too.
    taken = right.scale / right.clipped
    if len(changed) == len(factors) and all(near(one, taken, 1e-3) for one in changed):
        return "unscaled in every micro-batch"
    if max(changed) > 1:
        return None
    # Cut to one limit, they are equally long then, and at the step; what a divisor leaves is not.
    lengths = [
        float(of_weights(step, following.before).norm())
        for factor, following in zip(factors, step.rounds[1:], strict=True)
        if abs(factor - 1) > 1e-4
    ]
    at_step = step.scale / taken if taken else 1.0
    if abs(at_step - 1) > 1e-4:
        lengths.append(float(of_weights(step, step.rounds[-1].after).norm()) * at_step)
    if len(changed) == len(factors) and not all(near(one, lengths[0], 1e-2) for one in lengths):
        return "gradients divided in every round"
    return "clipped in every micro-batch"


def _emptied_in_some(step: Step, left: dict, found: dict) -> bool:
    """Whether the gradients of some weights were emptied between two rounds, and those of all others kept."""
    had = [
        (left[key], found.get(key, torch.zeros(())))
        for key in step.ids
        if key in left and left[key].any()
    ]
    emptied = [not now.any() for _, now in had]
    kept = [torch.equal(before, now) for before, now in had]
    return any(emptied) and all(map(operator.or_, emptied, kept))


def _shortened(step: Step, left: dict, found: dict) -> bool:
    """Whether every weight's gradient has its direction still and none is longer: each was clipped by itself."""
    for key in step.ids:
        before, now = left.get(key), found.get(key)
        if before is None or now is None or not float(before.norm()):
            continue
        factor = float((before * now).sum() / before.square().sum())
        if factor > 1.001 or float((now - factor * before).norm()) > 1e-3 * float(now.norm()):
            return False
    return True


def _cut_off(step: Step, right: Step) -> bool:
    """Whether a hook cuts every micro-batch's gradient at the number at which it cuts the large batch's."""
    parts = added_by_rounds(step)
    limits = [part.abs().max() for part in (*parts, gradient_of(right))]
    # An entry that is the largest by itself shares its size with no other.
    often = [
        int((part.abs() > 0.9999 * limit).sum())
        for part, limit in zip((*parts, gradient_of(right)), limits, strict=True)
    ]
    same = all(near(float(limit), float(limits[-1]), 1e-4) for limit in limits)
    signs = often[-1] == int(gradient_of(right).count_nonzero())  # there is nothing else
    return len(parts) > 1 and same and float(limits[-1]) > 0 and min(often) > 2 and not signs


def _by_penalty(step: Step, right: Step) -> bool:
    """Whether what is too much in a gradient is a multiple of the weights, or of their signs."""
    weights = vector(step.weights)
    if len(step.rounds) < 2 or len(weights) < 4 or not step.scale or not right.scale:
        return False  # of very few numbers, much is a multiple of others
    more = gradient_of(step) / step.scale - gradient_of(right) / right.scale
    here = more.abs() > 1e-6 * more.abs().max()  # a penalty may leave out some weights
    for penalty in (weights * here, weights.sign() * here):
        factor = float(more @ penalty / penalty.square().sum().clamp(min=1e-30))
        if factor > 0 and float((more - factor * penalty).norm()) < 1e-2 * float(more.norm()):
            return True
    return False


def _by_weight(number, step, right, other, truth, sizes, windows, rounding, alone) -> str | None:
    """A name for how the parts of a gradient count, beside how they should."""
    k, tolerance = sizes.accumulation_steps, max(2e-3, 3 * rounding)
    got, want = gradient_of(step), gradient_of(right)
    parts = [part for part in added_by_rounds(step) if float(part.norm())]
    whole = step.scale * sum(parts, torch.zeros_like(got))
    given = None
    if float((whole - got).norm()) > tolerance * float(got.norm()):
        given = factors_of(parts, got, tolerance)  # put together from them elsewhere
    given = given or [step.scale] * len(parts)
    parts = [part * one for part, one in zip(parts, given, strict=True)]
    if not parts:  # the loop adds up by itself, past `.grad`
        flowed = [of_weights(step, one.flowed) for one in step.rounds]
        taken = factors_of(flowed, got, tolerance)
        if taken and max(map(abs, taken[:-1])) < 1e-3 * abs(taken[-1]):
            return "only the last micro-batch counts"
        parts = [part * one for part, one in zip(flowed, taken or [], strict=False)]
    clips = step.clipped, right.clipped
    clipped = max(step.scale, right.scale) < 0.999 and near(got.norm(), want.norm(), 1e-3)
    one_of_them = len(step.clips) == len(right.clips) and (step.clipped < 1) != (right.clipped < 1)
    if clipped or one_of_them and not _factor(got, want, tolerance)[1]:
        # Gradients of any length are equally long then: compare what they were.
        seen = (
            one_of_them or step.clipped < 1 and right.clipped < 1
        )  # else the loop clips by itself
        mine, others = clips if seen else (step.scale, right.scale)
        step, right = (
            replace(one, scale=one.scale / part, clipped=1.0)
            for one, part in ((step, mine), (right, others))
        )
        clips = 1.0, 1.0
        want = want / others
        parts = [part / mine for part in parts]
        got = got / mine
    count = len(parts) or k
    held = windows.sizes(step.rounds) if windows.known else []
    held = held if len(held) == count and all(held) else [1] * count
    factor, straight = _factor(got, want, tolerance)
    if straight:
        share = _share(parts, alone, number)
        return _by_factor(
            number, (step, right), other, truth, sizes, factor, clips, count, share, tolerance
        ) or (_wrong_divisor(got, want, rounding))
    weights = factors_of(parts, want, tolerance)
    if weights is None:
        if other.drew or truth.drew:
            return None
        return _across_samples(step, got, parts, alone, number, k, tolerance)
    counted = [weight for weight in weights if abs(weight) > 1e-2]
    if k < count > len(counted) and all(near(weight, 1, 1e-2) for weight in counted):
        return "gradients of another loss left in"
    # `weights` say how each part should count: by its samples over all, divided by what the loop divided it by.
    given = [size / sum(held) / weight for size, weight in zip(held, weights, strict=True)]
    if all(near(one, given[0], 10 * tolerance) for one in given):
        if near(given[0], 1 / count, 10 * tolerance):
            return "mean of means"
        return _divisor(given[0], number, count, other, truth, sizes, _share(parts, alone, number))
    if all(near(one, 1 / (count - index), 10 * tolerance) for index, one in enumerate(given)):
        return "divided by what is left"
    mean = sum(weights) / count
    if all(weight > 0 for weight in weights):
        if near(mean, 1, 0.02):
            return "mean of means"
        if near(mean, 1 / count, 0.02):
            share = _share(parts, alone, number)
            if share is not None and not near(share, 1, 1e-2):
                return "divided twice"
            return "the Trainer's factor of k" if other.by_trainer else "loss not divided"
        if near(mean, k / count, 0.02):
            return "last window divided by k"
        if len(set(held)) == 1:
            return "micro-batches count differently"
    return None


def _by_factor(
    number, steps, other, truth, sizes, factor, clips, count, share, tolerance
) -> str | None:
    """A name where a gradient is the large batch's but for a factor: what the limit did, or what was done to the sum in `.grad`.

    `clips` is what the clipping that was seen has left of both gradients.
    """
    step, right = steps
    k = sizes.accumulation_steps
    sums = factor * right.scale / step.scale if right.scale > 0 < step.scale else factor
    unclipped = factor * clips[1] / clips[0]
    after, there = step.scale / clips[0], right.scale / clips[1]  # what else came to the sums
    if min(clips) < 0.999 and near(unclipped, 1, tolerance):
        return _by_limit(step, right, sums, after, other)

    def divisor(times):
        return _divisor(times / count, number, count, other, truth, sizes, share)

    if near(after, there, tolerance):
        return divisor(unclipped)
    # A loop may clip without torch's function: then whatever is cut ends at one length.
    if _cut_to_one_length(truth.steps) or _cut_to_one_length(other.steps[: number + 2]):
        if near(sums, 1, tolerance) and not near(factor, 1 / k, tolerance):
            return "clipped in one training only"
        if near(sums, k, tolerance) and near(factor, 1 / k, tolerance):
            return "clipped before it is divided"
        return divisor(factor) or divisor(sums)
    name = divisor(unclipped)
    if not near(sums, 1, tolerance):
        return name
    # The sums are equal, so the losses are: the two trainings differ in what is done to the sum.
    untouched = name == "divided by the number of samples" and near(there, 1, tolerance)
    return name if untouched or name in ("divided twice", "last window divided by k") else None


def _by_limit(step: Step, right: Step, sums: float, after: float, other: Recorded) -> str:
    """The name where two gradients are the same but for a clipping that was seen."""
    if len(step.clips) == len(right.clips) and step.clips and right.clips[0]:
        longer = step.clips[0] / right.clips[0]  # what is clipped, beside the large batch's
        if not near(longer, 1, 1e-2) and near(longer * after, 1, 1e-2):
            terms = [term for one in step.rounds for term in one.loss.terms]
            mean = not all(term.summed for term in terms)
            unscaled = near(sums, 1, 1e-2) and (other.scaled or mean)
            return "clipped before it is unscaled" if unscaled else "clipped before it is divided"
    return "clipped in one training only"


def _cut_to_one_length(steps: list[Step]) -> bool:
    """Whether what comes to a step is as long each time it is shorter than its sum: a limit makes it so, a divisor does not."""
    kept = [(one.scale / one.clipped, float(gradient_of(one).norm())) for one in steps]
    whole = max((scale for scale, _ in kept), default=0.0)
    cut = [pair for pair in kept if pair[0] < 0.999 * whole]
    return len(cut) > 1 and all(near(length, cut[0][1], 3e-4) for _, length in cut)


def _wrong_divisor(got, want, rounding) -> str | None:
    """The name where a gradient is another one's but for a factor that is no rounding; of very few numbers, each is a multiple of another."""
    factor = float(got @ want / want.square().sum())
    rest = float((got - factor * want).norm() / want.norm())
    sure = factor > 0 and abs(factor - 1) > max(5 * rest, 3 * rounding)
    return "a wrong divisor" if sure and int(want.count_nonzero()) > 3 else None


def _divisors_seen(step: Step, right: Step, sizes) -> str:
    """What is done to the sum of a window before the step, where the large batch does something else to its own."""
    mine, there = (one.scale / one.clipped for one in (step, right))
    if near(mine, there, 2e-3) or min(mine, there) <= 0:
        return ""

    def done(factor):
        if near(factor, 1, 2e-3):
            return "left as it is"
        return f"divided by {1 / factor:.4g}" if factor < 1 else f"multiplied by {factor:.4g}"

    got, want = (gradient_of(one) / one.scale for one in (step, right))
    sums = float(got @ want / want.square().sum())
    same = near(sums, 1, 5e-3)
    words = "that of the large batch" if same else f"{sums:.2f} times that of the large batch"
    return f": what its backward passes leave in `.grad` is {words}, and is {done(mine)} before the step; in {sizes.truth} it is {done(there)}"


def _factor(got, want, tolerance) -> tuple[float, bool]:
    """How many times as long a gradient is as another, and whether that is all the difference."""
    factor = float(got @ want / want.square().sum())
    rest = float((got - factor * want).norm())
    return factor, rest < tolerance * abs(factor) * float(want.norm())


def _share(parts, alone: Recorded | None, number: int) -> float | None:
    """How much of its own gradient the first micro-batch adds: 1 / k where the loop divides by k. None where that is not known."""
    if alone is None or number != 1 or not alone.steps or not parts:
        return None
    own = gradient_of(alone.steps[0]) / alone.steps[0].clipped
    if own.shape != parts[0].shape or not float(own.norm()):
        return None
    share = float(parts[0] @ own / own.square().sum())
    return share if float((parts[0] - share * own).norm()) < 1e-2 * float(parts[0].norm()) else None


def _divisor(given: float, number, count, other, truth, sizes, share: float | None) -> str | None:
    """A name where every part of a window of `count` was multiplied by `given`, which should be 1 / count."""
    k, micro, tolerance = sizes.accumulation_steps, sizes.micro_batch, 5e-3
    if near(given, 1 / count, tolerance):
        return None  # as it should be
    short = count < k
    last = len(other.steps[-1].rounds)
    divides = share is not None and near(share, 1 / k, 1e-2)
    summed = any(near(given, value, tolerance) for value in (micro, micro / k))
    if summed and share is not None and near(share, given, 1e-2) and not near(share, 1, 1e-2):
        return "a sum over samples in one training only"
    names = [
        (1, "last window not divided" if short and number > 1 else "loss not divided"),
        (1 / k, "last window divided by k" if short else ""),
        (1 / k**2, "divided twice"),
        (1 / count**2, "divided twice"),
        (1 / (count * micro), "divided by the number of samples"),
        (1 / (k * micro), "divided by the number of samples"),
        (1 / micro, "divided by the number of samples"),
        (k, "divided by the number of samples"),  # as the large batch is, by its own
        (1 / last, "every window divided by the last one's size" if last < count else ""),
    ]
    name = next((name for value, name in names if name and near(given, value, tolerance)), None)
    if divides and name == "loss not divided":
        return "divided by the number of samples"
    if divides and name == "divided twice":
        return "a sum over samples divided by k"
    if name == "loss not divided" and other.by_trainer:
        return "the Trainer's factor of k"
    return name


def factors_of(parts, want, tolerance) -> list[float] | None:
    """The numbers with which the parts add up to a gradient; None where they do not."""
    if len(parts) < 2:
        return None
    matrix = torch.stack(parts, dim=1)
    if matrix.shape[0] <= len(parts):
        return None
    found = torch.linalg.lstsq(matrix, want.unsqueeze(1), driver="gelsd").solution
    if float((matrix @ found - want.unsqueeze(1)).norm()) > tolerance * float(want.norm()):
        return None
    return found.flatten().tolist()


def _across_samples(step, got, parts, alone, number, k, tolerance) -> str | None:
    """Whether every micro-batch counts as it should and the loss itself is no mean over samples."""
    if alone is None or number != 1 or len(parts) < 2 or not alone.steps:
        return None
    whole = sum(parts[1:], parts[0])
    if float((whole - got).norm()) > tolerance * float(got.norm()):
        return None
    share = _share(parts, alone, number)
    return "a loss across samples" if share is not None and near(share, 1 / k, 1e-2) else None
