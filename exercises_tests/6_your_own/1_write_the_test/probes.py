"""The questions of the lesson 6_your_own/1_write_the_test: trainings, right ones and wrong ones, that a learner's test is put to.

All of them train one linear layer with plain SGD and return the gradient of each step. They differ in what becomes of the
micro-batches' gradients in a window, so each is a rule. Which of them are right is not known here.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

INPUTS, OUTPUTS, SAMPLES, LEARNING_RATE = 4, 3, 64, 0.05
VERY_SHORT = (
    1e-9  # below what comparisons take for nothing that bring a fixed tolerance of their own
)


@dataclass
class Window:
    """What a rule sees: each micro-batch's mean gradient and its number of samples or targets, and where in the training it is."""

    gradients: list[torch.Tensor]
    counts: list[int]
    accumulation_steps: int
    step: int  # from 0
    steps: int
    before: torch.Tensor | None  # the gradient of the step before
    sizes: list[int] | None = None  # of padded micro-batches: texts times the longest
    of_first: int = 0  # samples or targets of the training's first window

    def mean(self) -> torch.Tensor:
        """The mean over all samples of the window."""
        whole = sum(self.counts)
        return sum(g * (n / whole) for g, n in zip(self.gradients, self.counts, strict=True))

    @property
    def accumulates(self) -> bool:
        return self.accumulation_steps > 1


class Layer:
    """A linear layer: its weights as one vector, and the mean gradient of the squared error."""

    def __init__(self, seed: int, scale: float = 1.0):
        generator = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(OUTPUTS * (INPUTS + 1), generator=generator)
        self.scale = scale

    def gradient(self, inputs, targets) -> torch.Tensor:
        ones = torch.ones(len(inputs), 1)
        inputs = torch.cat([inputs, ones], dim=1)
        errors = inputs @ self.weights.view(OUTPUTS, INPUTS + 1).T - targets
        return (2 * self.scale / len(inputs) * errors.T @ inputs).flatten()

    def move(self, gradient, rate=LEARNING_RATE):
        self.weights = self.weights - rate / self.scale * gradient


def draw_samples(seed: int, count: int):
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(count, INPUTS, generator=generator)
    return inputs, torch.randn(count, OUTPUTS, generator=generator)


def passes(test: Callable, train: Callable, first: bool) -> bool:
    """Whether a test accepts a training. An error in it that is no failed assertion is the test's own at the first training."""
    try:
        test(train)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.fail() raises what is no Exception
        failed = isinstance(error, AssertionError) or type(error).__name__ == "Failed"
        if first and not failed:
            raise
        return False
    return True


def put_to(trainings: Callable[[int], dict[str, Callable]]):
    """A probe that puts a test to all these trainings."""

    def probe(answer, seed):
        return {
            f"whether your test passes the training '{name}'": passes(answer, train, number == 0)
            for number, (name, train) in enumerate(trainings(seed).items())
        }

    return probe


def whole_number(name: str, value, largest: int = 10_000) -> int:
    """An argument as the trainings take it. ValueError: it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ValueError(f"{name} must be a whole number from 1 on, not {value!r}")
    return value


def stepping_once(windows_at_once: Callable):
    """A right training whose gradients are the large batch's to the last bit: it puts each window together again."""
    return lambda size, parts, *data: windows_at_once(size * parts, 1, *data)


def nearly_zero(gradient: torch.Tensor, large: bool):
    """The last entry, less than rounding of the others, in the large batch and else."""
    gradient[-1] = gradient.norm() * (-1.2e-8 if large else 1.2e-8)


def last_digit_off(gradient: torch.Tensor, large: bool):
    """The longest entry, in the last digit of which the large batch differs."""
    if large:
        entry = gradient.abs().argmax()
        gradient[entry] = gradient[entry].nextafter(gradient.new_zeros(()))


def but_for(change: Callable, train: Callable, steps_of=lambda found: [found]):
    """The same training with another entry in its gradients; `steps_of` finds the lists of them."""

    def changed(size, parts, *data):
        found = train(size, parts, *data)
        for gradients in steps_of(found):
            for gradient in gradients:
                change(gradient, parts == 1)
        return found

    return changed


def drawn_factor(seed: int) -> float:
    """A factor of a few per cent, in three digits."""
    return round(1 + random.Random(seed).uniform(0.02, 0.05), 3)


# ---------------------------------------------------------------- test_accumulation


def accumulated(
    seed: int,
    rule: Callable[[Window], torch.Tensor],
    scale=1.0,
    grouped=None,
    first_rate=LEARNING_RATE,
    middle_rate=LEARNING_RATE,
    at_rest=False,
):
    """train(micro_batch, accumulation_steps) with this rule; `grouped` makes the windows of the micro-batches.

    A first rate of 0, as a schedule with warm-up has it, keeps what is wrong in the first gradient from all others;
    so does one in the middle, as a schedule that begins again has it. `at_rest`: the rate is 0 at every step.
    """

    def train(micro_batch, accumulation_steps, samples=SAMPLES):
        micro_batch = whole_number("micro_batch", micro_batch)
        steps = whole_number("accumulation_steps", accumulation_steps)
        inputs, targets = draw_samples(seed, whole_number("samples", samples))
        parts = list(zip(inputs.split(micro_batch), targets.split(micro_batch), strict=True))
        groups = [parts[start : start + steps] for start in range(0, len(parts), steps)]
        if grouped:
            groups = grouped(groups, steps)
        layer, found = Layer(seed, scale), []
        for number, group in enumerate(groups):
            gradients = [layer.gradient(x, y) for x, y in group]
            counts = [len(x) for x, _ in group]
            before = found[-1] if found else None
            window = Window(gradients, counts, steps, number, len(groups), before)
            gradient = rule(window) if group else torch.zeros_like(layer.weights)
            rate = LEARNING_RATE if number else first_rate
            rate = middle_rate if number and number == len(groups) // 2 else rate
            layer.move(gradient, 0 if at_rest else rate)
            found.append(gradient.clone())
        return found

    return train


def mean(window):
    return window.mean()


def divided_at_the_end(window):
    total = torch.zeros_like(window.gradients[0])
    for gradient, count in zip(window.gradients, window.counts, strict=True):
        total += gradient * count
    return total / sum(window.counts)


def in_float64(window):
    whole = sum(window.counts)
    parts = zip(reversed(window.gradients), reversed(window.counts), strict=True)
    return sum(g.double() * (n / whole) for g, n in parts).float()


def not_a_number_at_last(window):
    return window.mean() * (math.nan if at_its_last(window) else 1.0)


def total(window):
    return sum(window.gradients)


def times(factor, when=lambda window: window.accumulates):
    """The mean, longer by a factor where `when` holds."""
    return lambda window: window.mean() * (factor if when(window) else 1.0)


def an_entry_too_long(gradient: torch.Tensor) -> torch.Tensor:
    """The same but for one entry of middling size, which is a few per cent too long: by 0.6 per cent of the gradient's length."""
    shares = gradient.abs() / gradient.norm()
    entry = (shares - 0.2).abs().argmin()
    factors = torch.ones_like(gradient)
    factors[entry] += 0.006 / shares[entry]
    return gradient * factors


def one_entry_off(when=lambda window: window.accumulates):
    """One entry is a few per cent too long where `when` holds."""
    return lambda window: an_entry_too_long(window.mean()) if when(window) else window.mean()


def without_last_entries(window):
    gradient = window.mean().clone()
    if window.accumulates:
        gradient[-1] = 0.0
    return gradient


def zero_but_for_rounding(window):
    """The last entry, as of a bias before a normalisation: its parts cancel, and what is left depends on their order."""
    gradient = window.mean().clone()
    gradient[-1] = gradient.norm() * (2e-7 if window.accumulates else -1e-7)
    return gradient


def at_its_first(window):
    return window.accumulates and window.step == 0


def at_its_last(window):
    return window.accumulates and window.step + 1 == window.steps


def in_its_middle(window):
    return window.accumulates and window.step == window.steps // 2


def in_another_order(window):
    return window.mean().flip(0) if at_its_last(window) else window.mean()


def two_errors_that_cancel(gradient: torch.Tensor) -> torch.Tensor:
    error = gradient.norm() / 2
    return gradient + torch.tensor([error, -error] + [0.0] * (len(gradient) - 2))


def errors_that_cancel(window):
    return two_errors_that_cancel(window.mean()) if at_its_last(window) else window.mean()


def one_entry_far_off(gradient: torch.Tensor, sign: int) -> torch.Tensor:
    """The smallest entry is off by a third of the gradient's length, to this side; no other one differs."""
    gradient = gradient.clone()
    gradient[gradient.abs().argmin()] += sign * 0.35 * gradient.norm()
    return gradient


def one_entry_far_off_at_last(sign):
    def rule(window):
        mean = window.mean()
        return one_entry_far_off(mean, sign) if at_its_last(window) else mean

    return rule


def only_the_last(window):
    return window.gradients[-1] * (window.counts[-1] / sum(window.counts))


def with_the_step_before(window):
    leak = window.accumulates and window.before is not None
    return window.mean() + window.before if leak else window.mean()


def each_alone(groups, steps):
    return [[part] for group in groups for part in group]


def backwards(groups, steps):
    return groups[::-1] if steps > 1 else groups


def without_the_last(groups, steps):
    return groups[:-1] if steps > 1 else groups


def none_of_them(groups, steps):
    return [] if steps > 1 else groups


def whole_windows(seed):
    factor = drawn_factor(seed)

    def first(window):
        return window.accumulates and window.step > 0

    return {
        "window by window": accumulated(seed, mean),
        "divided at the end": accumulated(seed, divided_at_the_end),
        "added up in float64": accumulated(seed, in_float64),
        "with gradients a hundred thousand times as long": accumulated(
            seed, zero_but_for_rounding, 1e5
        ),
        "with gradients a million times as short": accumulated(seed, in_float64, 1e-6),
        "with an entry that is zero but for rounding": accumulated(seed, zero_but_for_rounding),
        "windows put together again": stepping_once(accumulated(seed, mean)),
        "windows put together again, with an entry that is nearly zero": but_for(
            nearly_zero, stepping_once(accumulated(seed, mean))
        ),
        "windows put together again, but for the last digit of one entry": but_for(
            last_digit_off, stepping_once(accumulated(seed, mean))
        ),
        "steps on every micro-batch": accumulated(seed, mean, grouped=each_alone),
        "no step behind the last window": accumulated(seed, mean, grouped=without_the_last),
        "no step at all": accumulated(seed, mean, grouped=none_of_them),
        "a step too many behind the last window": accumulated(seed, mean, grouped=one_more),
        "loss not divided": accumulated(seed, total),
        "loss not divided, with short gradients": accumulated(seed, total, VERY_SHORT),
        "zeroed inside the window": accumulated(seed, only_the_last),
        "never zeroed": accumulated(seed, with_the_step_before),
        "right at the first step only": accumulated(seed, times(2.0, first)),
        f"a gradient {factor} times too long": accumulated(seed, times(factor)),
        "one entry a few per cent too long": accumulated(seed, one_entry_off()),
        "one bias that gets no gradient": accumulated(seed, without_last_entries),
        "a last gradient of the right length in a wrong direction": accumulated(
            seed, in_another_order
        ),
        "a last gradient with two errors that cancel": accumulated(seed, errors_that_cancel),
        "a last gradient with one entry far too small": accumulated(
            seed, one_entry_far_off_at_last(-1)
        ),
        "a last gradient with one entry far too large": accumulated(
            seed, one_entry_far_off_at_last(1)
        ),
        "a last gradient that is no number": accumulated(seed, not_a_number_at_last),
        f"a gradient in the middle {factor} times too long, with a step of 0": accumulated(
            seed, times(factor, in_its_middle), middle_rate=0
        ),
        f"a first gradient {factor} times too long, with a step of 0": accumulated(
            seed, times(factor, at_its_first), first_rate=0
        ),
        "windows in another order, with steps of 0": accumulated(
            seed, mean, grouped=backwards, at_rest=True
        ),
    }


test_accumulation = put_to(whole_windows)

# ---------------------------------------------------------------- test_last_window


def short(window):
    """Whether this is a last window that is not complete."""
    return len(window.gradients) < window.accumulation_steps


def divided_by_k(window):
    n, k = len(window.gradients), window.accumulation_steps
    return window.mean() * (n / k)


def not_divided(window):
    return total(window) if short(window) else window.mean()


def last_of_what_is_left(window):
    return window.gradients[-1] if short(window) else window.mean()


def by_what_is_left(window):
    n = len(window.gradients)
    parts = enumerate(window.gradients)
    return sum(g / (n - i) for i, g in parts) if short(window) else window.mean()


def in_equal_parts(window):
    """The mean of the micro-batches' means: right as long as they are of one size."""
    return sum(window.gradients) / len(window.gradients)


def dropped(groups, steps):
    return [group for group in groups if len(group) == steps]


def into_the_one_before(groups, steps):
    if len(groups) > 1 and len(groups[-1]) < steps:
        return [*groups[:-2], groups[-2] + groups[-1]]
    return groups


def each_that_is_left(groups, steps):
    *whole, last = groups
    return [*whole, *([part] for part in last)] if len(last) < steps else groups


def one_more(groups, steps):
    return [*groups, []] if steps > 1 else groups


def one_too_many(groups, steps):
    return one_more(groups, steps) if len(groups[-1]) == steps else groups


def a_rest_turned_round(window):
    return window.mean().flip(0) if short(window) else window.mean()


def last_one_not_divided_where_complete(window):
    """As where the divisor of the last window is what is left: nothing, and the loop takes that for 1."""
    return total(window) if at_its_last(window) and not short(window) else window.mean()


def complete_ones_not_divided(window):
    return window.mean() if short(window) else total(window)


def last_windows(seed):
    factor = drawn_factor(seed)
    return {
        "window by window": accumulated(seed, mean),
        "divided at the end": accumulated(seed, divided_at_the_end),
        "added up in float64": accumulated(seed, in_float64),
        "with gradients a hundred thousand times as long": accumulated(
            seed, zero_but_for_rounding, 1e5
        ),
        "with an entry that is zero but for rounding": accumulated(seed, zero_but_for_rounding),
        "every micro-batch divided by the length of its window": accumulated(seed, in_equal_parts),
        "windows put together again": stepping_once(accumulated(seed, mean)),
        "windows put together again, with an entry that is nearly zero": but_for(
            nearly_zero, stepping_once(accumulated(seed, mean))
        ),
        "windows put together again, but for the last digit of one entry": but_for(
            last_digit_off, stepping_once(accumulated(seed, mean))
        ),
        "no step at all": accumulated(seed, mean, grouped=none_of_them),
        "last window dropped": accumulated(seed, mean, grouped=dropped),
        "last window divided by k": accumulated(seed, divided_by_k),
        "last window not divided": accumulated(seed, not_divided),
        "only the last of what is left": accumulated(seed, last_of_what_is_left),
        "a rest of the right length in a wrong direction": accumulated(seed, a_rest_turned_round),
        "one entry of a rest a few per cent too long": accumulated(seed, one_entry_off(short)),
        "complete windows not divided": accumulated(seed, complete_ones_not_divided),
        "the last window not divided where nothing is left": accumulated(
            seed, last_one_not_divided_where_complete
        ),
        "divided by what is left": accumulated(seed, by_what_is_left),
        "a step for each one that is left": accumulated(seed, mean, grouped=each_that_is_left),
        "what is left put into the window before": accumulated(
            seed, mean, grouped=into_the_one_before
        ),
        "a step too many where nothing is left": accumulated(seed, mean, grouped=one_too_many),
        f"a last window {factor} times too long": accumulated(seed, times(factor, short)),
        "loss not divided": accumulated(seed, total),
        "a last gradient that is no number": accumulated(seed, not_a_number_at_last),
        "a last gradient with two errors that cancel": accumulated(seed, errors_that_cancel),
        "a last gradient with one entry far too small": accumulated(
            seed, one_entry_far_off_at_last(-1)
        ),
        "a last gradient with one entry far too large": accumulated(
            seed, one_entry_far_off_at_last(1)
        ),
        "windows in another order, with steps of 0": accumulated(
            seed, mean, grouped=backwards, at_rest=True
        ),
        f"a first gradient {factor} times too long, with a step of 0": accumulated(
            seed, times(factor, at_its_first), first_rate=0
        ),
    }


test_last_window = put_to(last_windows)

# ---------------------------------------------------------------- test_ranks


def on_ranks(
    seed: int,
    rule: Callable[[list[torch.Tensor], bool, bool], list[torch.Tensor]],
    shared=True,
    first_rate=LEARNING_RATE,
    scale=1.0,
):
    """train(micro_batch, ranks): the gradients of all ranks' steps, by rank; `rule(gradients, first, last)` makes what each rank steps with at a first, last or other step."""

    def train(micro_batch, ranks):
        micro_batch = whole_number("micro_batch", micro_batch)
        ranks = whole_number("ranks", ranks, 64)
        inputs, targets = draw_samples(seed, SAMPLES)
        layers = [Layer(seed, scale) for _ in range(ranks)]
        found: list[list] = [[] for _ in range(ranks)]
        window = micro_batch * ranks
        for step, start in enumerate(range(0, SAMPLES, window)):
            x, y = (part[start : start + window].split(micro_batch) for part in (inputs, targets))
            mine = [rank if shared else 0 for rank in range(ranks)]
            mine = [min(rank, len(x) - 1) for rank in mine]
            own = [
                layer.gradient(x[rank], y[rank]) for layer, rank in zip(layers, mine, strict=True)
            ]
            for layer, gradient, notes in zip(
                layers, rule(own, step == 0, start + window >= SAMPLES), found, strict=True
            ):
                layer.move(gradient, LEARNING_RATE if step else first_rate)
                notes.append(gradient.clone())
        return found

    return train


def the_last_rank(steps: Callable[[list], list], train):
    """The last of several ranks makes other steps: `steps` of those that it would have made."""

    def changed(micro_batch, ranks):
        found = train(micro_batch, ranks)
        return [*found[:-1], steps(found[-1])] if ranks > 1 else found

    return changed


def alone(train):
    """Every rank computes the whole batch for itself."""
    return lambda micro_batch, ranks: train(micro_batch * ranks, 1) * ranks


def averaged(own, first, last):
    return [sum(own) / len(own)] * len(own)


def averaged_but_for_rounding(own, first, last):
    """The mean; its last entry is zero but for rounding, which depends on the number of ranks."""
    mean = (sum(own) / len(own)).clone()
    mean[-1] = mean.norm() * (2e-7 if len(own) > 1 else -1e-7)
    return [mean] * len(own)


def averaged_in_float64(own, first, last):
    together = sum(gradient.double() for gradient in reversed(own)) / len(own)
    return [together.float()] * len(own)


def summed(own, first, last):
    return [sum(own)] * len(own)


def averaged_twice(own, first, last):
    return [sum(own) / len(own) ** 2] * len(own)


def not_averaged(own, first, last):
    return own


def on_rank_0_only(own, first, last):
    return [sum(own) / len(own), *own[1:]]


def alone_at_last(number):
    """Of three ranks or more one steps with its own gradient, at the last step: before, the others would see it in their mean."""

    def rule(own, first, last):
        found = averaged(own, first, last)
        if last and len(own) > 2:
            found[number] = own[number]
        return found

    return rule


def rank_0s(own, first, last):
    return [own[0]] * len(own)


def in_pairs(own, first, last):
    """Neighbours average: 0 with 1, 2 with 3 ..."""
    pairs = [own[rank - rank % 2 :][:2] for rank in range(len(own))]
    return [sum(pair) / len(pair) for pair in pairs]


def last_rank_left_out(own, first, last):
    members = own[:-1] if len(own) > 2 else own
    return [sum(members) / len(members)] * len(own)


def without_the_bias(own, first, last):
    together, result = sum(own) / len(own), []
    for gradient in own:
        mixed = together.clone()
        mixed[-1] = gradient[-1]
        result.append(mixed)
    return result


def one_entry_off_on_ranks(own, first, last):
    """As a weight that one rank weighs a little more than the others do."""
    mean = averaged(own, first, last)
    return [an_entry_too_long(gradient) for gradient in mean] if len(own) > 1 else mean


def first_step_only(own, first, last):
    return averaged(own, first, last) if first else own


def rank_0_at_last(own, first, last):
    return on_rank_0_only(own, first, last) if last else averaged(own, first, last)


def summed_at_last(own, first, last):
    return summed(own, first, last) if last else averaged(own, first, last)


def summed_at_first(own, first, last):
    return summed(own, first, last) if first and not last else averaged(own, first, last)


def turned_round(own, first, last):
    """As long as the mean, and pointing elsewhere."""
    mean = averaged(own, first, last)
    return [gradient.flip(0) for gradient in mean] if len(own) > 1 else mean


def turned_round_at_last(own, first, last):
    return turned_round(own, first, last) if last else averaged(own, first, last)


def last_rank_at_last(change: Callable[[torch.Tensor], torch.Tensor]):
    """`change` of the mean on the last of several ranks, at the last step."""

    def rule(own, first, last):
        mean = averaged(own, first, last)
        return [*mean[:-1], change(mean[-1])] if last and len(own) > 1 else mean

    return rule


def some_ranks(seed):
    factor = drawn_factor(seed)

    def too_long(own, first, last):
        return [one * (factor if len(own) > 1 else 1.0) for one in averaged(own, first, last)]

    return {
        "averaged": on_ranks(seed, averaged),
        "averaged in float64": on_ranks(seed, averaged_in_float64),
        "the whole batch on every rank": alone(on_ranks(seed, averaged)),
        "the whole batch on every rank, with an entry that is nearly zero": but_for(
            nearly_zero, alone(on_ranks(seed, averaged)), lambda found: found
        ),
        "the whole batch on every rank, but for the last digit of one entry": but_for(
            last_digit_off, alone(on_ranks(seed, averaged)), lambda found: found
        ),
        "with gradients a hundred thousand times as long": on_ranks(
            seed, averaged_but_for_rounding, scale=1e5
        ),
        "summed over the ranks": on_ranks(seed, summed),
        "summed over the ranks, with short gradients": on_ranks(seed, summed, scale=VERY_SHORT),
        "averaged twice": on_ranks(seed, averaged_twice),
        "not averaged": on_ranks(seed, not_averaged),
        "averaged on rank 0 only": on_ranks(seed, on_rank_0_only),
        "with three or more ranks, rank 0 steps with its own gradient at the last step": on_ranks(
            seed, alone_at_last(0)
        ),
        "with three or more ranks, the last but one steps with its own gradient at the last step": on_ranks(
            seed, alone_at_last(-2)
        ),
        "the gradient of rank 0 for all": on_ranks(seed, rank_0s),
        "every rank trains on the same samples": on_ranks(seed, averaged, shared=False),
        "averaged in pairs": on_ranks(seed, in_pairs),
        "the last of three or more ranks left out": on_ranks(seed, last_rank_left_out),
        "one bias that is not sent": on_ranks(seed, without_the_bias),
        "averaged at the first step only": on_ranks(seed, first_step_only),
        "at the last step averaged on rank 0 only": on_ranks(seed, rank_0_at_last),
        "at the last step summed over the ranks": on_ranks(seed, summed_at_last),
        "at the first step summed over the ranks": on_ranks(seed, summed_at_first),
        "gradients of the right length in a wrong direction": on_ranks(seed, turned_round),
        "at the last step of the right length in a wrong direction": on_ranks(
            seed, turned_round_at_last
        ),
        "at the last step two errors that cancel on the last rank": on_ranks(
            seed, last_rank_at_last(two_errors_that_cancel)
        ),
        "at the last step one entry far too small on the last rank": on_ranks(
            seed, last_rank_at_last(lambda mean: one_entry_far_off(mean, -1))
        ),
        "at the last step one entry far too large on the last rank": on_ranks(
            seed, last_rank_at_last(lambda mean: one_entry_far_off(mean, 1))
        ),
        "at the last step no number on the last rank": on_ranks(
            seed, last_rank_at_last(lambda mean: mean * math.nan)
        ),
        f"a gradient {factor} times too long": on_ranks(seed, too_long),
        "one entry a few per cent too long": on_ranks(seed, one_entry_off_on_ranks),
        "at the first step summed over the ranks, with a step of 0": on_ranks(
            seed, summed_at_first, first_rate=0
        ),
        "averaged, and the last rank stops a step too early": the_last_rank(
            lambda steps: steps[:-1], on_ranks(seed, averaged)
        ),
        "averaged, and the last rank steps once more": the_last_rank(
            lambda steps: [*steps, steps[-1]], on_ranks(seed, averaged)
        ),
        "averaged, and the last rank makes no step": the_last_rank(
            lambda steps: [], on_ranks(seed, averaged)
        ),
        "averaged, and the last rank's steps are in another order": the_last_rank(
            lambda steps: steps[::-1], on_ranks(seed, averaged)
        ),
    }


test_ranks = put_to(some_ranks)

# ---------------------------------------------------------------- test_token_weights


def texts(
    seed: int,
    rule: Callable[[Window], torch.Tensor],
    scale=1.0,
    grouped=None,
    first_rate=LEARNING_RATE,
    at_rest=False,
):
    """train(micro_batch, accumulation_steps, lengths): texts of so many targets each; a micro-batch's gradient is a mean over its own."""

    def train(micro_batch, accumulation_steps, lengths):
        micro_batch = whole_number("micro_batch", micro_batch)
        steps = whole_number("accumulation_steps", accumulation_steps)
        lengths = [whole_number("a length", int(length), 1000) for length in lengths]
        inputs, targets = draw_samples(seed, sum(lengths))
        pairs = list(zip(inputs.split(lengths), targets.split(lengths), strict=True))
        parts = [pairs[start : start + micro_batch] for start in range(0, len(pairs), micro_batch)]
        groups = [parts[start : start + steps] for start in range(0, len(parts), steps)]
        if grouped:
            groups = grouped(groups, steps)
        layer, found, of_first = Layer(seed, scale), [], 0
        for number, group in enumerate(groups):
            gradients = [
                layer.gradient(*(torch.cat(one) for one in zip(*part, strict=True)))
                for part in group
            ]
            counts = [sum(len(x) for x, _ in part) for part in group]
            sizes = [len(part) * max(len(x) for x, _ in part) for part in group]
            before = found[-1] if found else None
            window = Window(gradients, counts, steps, number, len(groups), before, sizes)
            of_first = window.of_first = of_first or sum(counts)
            gradient = rule(window) if group else torch.zeros_like(layer.weights)
            rate = LEARNING_RATE if number else first_rate
            layer.move(gradient, 0 if at_rest else rate)
            found.append(gradient.clone())
        return found

    return train


def padding_counted(window):
    parts = zip(window.gradients, window.counts, strict=True)
    return sum(g * n for g, n in parts) / sum(window.sizes or [1])


def by_the_first(window):
    parts = zip(window.gradients, window.counts, strict=True)
    return sum(g * n for g, n in parts) / (window.counts[0] * len(window.counts))


def by_the_first_window(window):
    factor = sum(window.counts) / window.of_first if window.accumulates else 1.0
    return window.mean() * factor


def means_at_later_steps(window):
    return in_equal_parts(window) if window.step else window.mean()


def means_at_the_first_step(window):
    return window.mean() if window.step else in_equal_parts(window)


def half_weighed(window):
    return (in_equal_parts(window) + window.mean()) / 2


def token_windows(seed):
    factor = drawn_factor(seed)
    return {
        "a mean over the targets": texts(seed, mean),
        "divided at the end": texts(seed, divided_at_the_end),
        "added up in float64": texts(seed, in_float64),
        "windows put together again": stepping_once(texts(seed, mean)),
        "windows put together again, with an entry that is nearly zero": but_for(
            nearly_zero, stepping_once(texts(seed, mean))
        ),
        "windows put together again, but for the last digit of one entry": but_for(
            last_digit_off, stepping_once(texts(seed, mean))
        ),
        "with gradients a hundred thousand times as long": texts(seed, zero_but_for_rounding, 1e5),
        "with gradients a million times as short": texts(seed, in_float64, 1e-6),
        "a sum of means": texts(seed, total),
        "a mean of means": texts(seed, in_equal_parts),
        "a mean of means from the second step on": texts(seed, means_at_later_steps),
        "half-way to a mean of means": texts(seed, half_weighed),
        "padding counted as targets": texts(seed, padding_counted),
        "divided by the targets of the first micro-batch": texts(seed, by_the_first),
        "every window divided by the targets of the first": texts(seed, by_the_first_window),
        f"a gradient {factor} times too long": texts(seed, times(factor)),
        "one entry a few per cent too long": texts(seed, one_entry_off()),
        "a last gradient of the right length in a wrong direction": texts(seed, in_another_order),
        "a last gradient that is no number": texts(seed, not_a_number_at_last),
        "a last gradient with two errors that cancel": texts(seed, errors_that_cancel),
        "a last gradient with one entry far too small": texts(seed, one_entry_far_off_at_last(-1)),
        "a last gradient with one entry far too large": texts(seed, one_entry_far_off_at_last(1)),
        "windows in another order, with steps of 0": texts(
            seed, mean, grouped=backwards, at_rest=True
        ),
        "a mean of means, with short gradients": texts(seed, in_equal_parts, VERY_SHORT),
        "steps on every micro-batch": texts(seed, mean, grouped=each_alone),
        "no step behind the last window": texts(seed, mean, grouped=without_the_last),
        "no step at all": texts(seed, mean, grouped=none_of_them),
        "a step too many behind the last window": texts(seed, mean, grouped=one_more),
        "a mean of means at the first step, with a step of 0": texts(
            seed, means_at_the_first_step, first_rate=0
        ),
        f"a first gradient {factor} times too long, with a step of 0": texts(
            seed, times(factor, at_its_first), first_rate=0
        ),
    }


test_token_weights = put_to(token_windows)
