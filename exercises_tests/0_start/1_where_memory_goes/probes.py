"""The questions of the lesson 0_start/1_where_memory_goes."""

import operator

import numpy as np
import torch
from torch import nn

from exercises_tests.probing.toys import Toy, as_it_was

# ---------------------------------------------------------------- training_state_bytes

OPTIMIZERS = ("sgd", "momentum", "adamw")
KINDS = {
    "a plain model": {},
    "a model with tied weights": {"tied": True},
    "a model with a frozen layer": {"frozen": True},
    "a float64 model": {},
}


class OfTwoTypes(Toy):
    """The toy with its first layer in float32 and its last one in float64."""

    def __init__(self, width):
        super().__init__(width)
        self.last.double()

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)).double())


class OfManyKinds(nn.Module):
    """An embedding, a norm and a scale of its own; in a part some weights train and others do not."""

    def __init__(self, width):
        super().__init__()
        self.embed, self.norm = nn.Embedding(3, width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(width, width)
        self.embed.requires_grad_(False)
        self.norm.bias.requires_grad_(False)
        self.last.weight.requires_grad_(False)

    def forward(self, inputs):
        return self.last(self.norm(inputs @ self.embed.weight.T @ self.embed.weight) * self.scale)


def draw_models(seed):
    """Models of a fresh width, by what is special about them."""
    width = int(np.random.default_rng(seed).integers(5, 60))
    models = {kind: Toy(width, **changes) for kind, changes in KINDS.items()}
    models["a float64 model"].double()
    for weight in models["a float64 model"].parameters():  # as after the caller's backward pass
        weight.grad = torch.ones_like(weight)
    models["a model with a frozen layer"].eval()
    models["a model of two types"] = OfTwoTypes(width)
    models["a model of many kinds of layers"] = OfManyKinds(width)
    return models


def training_state_bytes(answer, seed):
    shown, kind_of_number, untouched = {}, "an int", True
    for kind, model in draw_models(seed).items():
        before = state_of(model)
        for name in OPTIMIZERS:
            got = answer(model, name)
            shown[f"the training state of {kind} with {name}, in bytes,"] = got
            if not is_whole(got):
                kind_of_number = f"of type {type(got).__name__}"
        untouched &= as_it_was(before, state_of(model))
    return shown | {
        "what is returned": kind_of_number,
        "whether all models are as they were": untouched,
    }


def state_of(model) -> list:
    """What a look at a model must leave as it is: values and gradients, what trains, the mode."""
    return [
        (one.detach().clone(), None if one.grad is None else one.grad.clone(), one.requires_grad)
        for one in model.parameters()
    ] + [model.training]


def is_whole(value) -> bool:
    """Whether it is a whole number by its type: Python's, numpy's or a tensor of one."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


# ---------------------------------------------------------------- peak_at_batch

CATEGORIES = ("weights", "gradients", "optimizer state", "activations", "temporary")
GROWING = ("activations", "temporary")


def draw_peak(seed):
    """Categories (bytes) as a meter would report them, in any order, at a batch size, and another batch size to predict."""
    random = np.random.default_rng(seed)
    weights = int(random.integers(1_000_000, 9_000_000)) * 4
    sizes = (int(2**power) for power in random.permutation(np.arange(1, 7))[:2])
    # Of two seeds in a row, one goes up and one down.
    batch, new_batch = sorted(sizes, reverse=bool(seed % 2))
    activations = batch * int(random.integers(100_000, 900_000)) * 4
    # As the lesson's runs have them: at the turn only the last layers' gradients are there.
    gradients, temporary = weights // 16, batch * (activations // batch // 64) * 4
    sizes = (weights, gradients, 2 * weights, activations, temporary)
    peak = dict(zip(CATEGORIES, sizes, strict=True))
    # What grows stands at another place in each of two seeds in a row.
    turn = 1 + seed % 4
    names = [*CATEGORIES[turn:], *CATEGORIES[:turn]]
    return {name: peak[name] for name in names}, batch, new_batch


def draw_half_bytes(seed, larger):
    """A small peak of plain SGD at batch 16 whose samples take half a byte beside the whole ones, and a batch whose bytes are whole again, but no whole multiple or part of 16."""
    random = np.random.default_rng(seed)
    peak, _, _ = draw_peak(seed)
    for category in GROWING:
        peak[category] = 16 * int(random.integers(30, 90)) + 8
    peak["optimizer state"] = 0
    return peak, 16, 16 * int(random.integers(1, 4)) * larger + 2 * int(random.integers(5, 8))


def draw_peaks(seed):
    halves = (draw_half_bytes(seed, larger) for larger in (True, False))
    return [*(draw_peak(seed + number) for number in range(4)), *halves]


def peak_at_batch(answer, seed):
    shown, untouched = {}, True
    for peak, batch, new_batch in draw_peaks(seed):
        given = dict(peak)
        got = answer(given, batch, new_batch)
        untouched &= as_it_was(given, peak)
        case = f"at batch {new_batch}, measured at {batch}"
        if not isinstance(got, dict):
            raise TypeError(
                f"peak_at_batch returned {type(got).__name__}; expected a dictionary from category to bytes."
            )
        shown |= {
            f"the entry for {category} {case}, in bytes,": as_float(size)
            for category, size in got.items()
        }
    return shown | {"whether the measured peak is as it was": untouched}


def as_float(value):
    return float(value) if isinstance(value, int | float) else value


# ---------------------------------------------------------------- largest_batch


def fixed_part(peak):
    return sum(size for name, size in peak.items() if name not in GROWING)


def one_sample(peak, batch):
    return sum(peak[name] for name in GROWING) // batch


def draw_budget(seed):
    """A peak at the turn, the peak in the optimizer's step, the measured batch, and a budget above both."""
    peak, batch, _ = draw_peak(seed)
    random = np.random.default_rng(seed + 1)
    # Of two seeds in a row, one is nearer to the number above.
    room = random.integers(3, 41) + random.uniform(0.1, 0.4) + 0.5 * (seed % 2)
    budget = int(fixed_part(peak) + room * one_sample(peak, batch))
    return peak, int(budget * random.uniform(0.5, 0.9)), batch, budget


def draw_many(seed):
    """(peak, batch, budget, samples): thousands of samples fit to the byte, and one of them is no whole number of bytes."""
    peak, _, _ = draw_peak(seed)
    random = np.random.default_rng(seed + 2)
    two_samples = 2 * int(random.integers(300, 900)) + 1
    samples = 2 * int(random.integers(2000, 4000))
    peak["activations"], peak["temporary"] = 4 * two_samples, 0
    return peak, 8, fixed_part(peak) + samples // 2 * two_samples, samples


def batch_questions(seed):
    """(what is asked, peak, step_bytes, batch, budget): budgets anywhere, then to the byte, no room, and thousands of samples."""
    for number in range(5):
        peak, step_bytes, batch, budget = draw_budget(seed + number)
        yield f"for {budget:,} bytes", peak, step_bytes, batch, budget
    peak, _, batch, _ = draw_budget(seed)
    three = fixed_part(peak) + 3 * one_sample(peak, batch)
    yield "where three samples need the budget to the byte", peak, three - 1, batch, three
    yield "where the optimizer's step needs the budget to the byte", peak, three, batch, three
    yield "where the optimizer's step is a byte too large", peak, three + 1, batch, three
    yield "where not even the weights fit", peak, 0, batch, peak["weights"] // 2
    too_little = fixed_part(peak) + one_sample(peak, batch) - 1
    yield "where a single sample is a byte too large", peak, 0, batch, too_little
    peak, batch, budget, _ = draw_many(seed)
    yield "where thousands of small samples fit", peak, 0, batch, budget


def largest_batch(answer, seed):
    shown, untouched = {}, True
    for case, peak, *rest in batch_questions(seed):
        given = dict(peak)
        shown[f"the largest batch {case}"] = answer(given, *rest)
        untouched &= as_it_was(given, peak)
    return shown | {"whether the measured peak is as it was": untouched}
