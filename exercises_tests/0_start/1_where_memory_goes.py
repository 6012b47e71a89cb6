"""What the exercises of the lesson 0_start/1_where_memory_goes must do, and the mistakes known to be made."""

import math

import numpy as np
import torch

from exercises_tests.probing.toys import Toy
from trainlean.exercises.exercise import Exercise, Mistake

# ---------------------------------------------------------------- training_state_bytes

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}
KINDS = {
    "a plain model": {},
    "a model with tied weights": {"tied": True},
    "a model with a frozen layer": {"frozen": True},
    "a float64 model": {},
}


def draw_models(seed):
    """Models of a fresh width, by what is special about them."""
    width = int(np.random.default_rng(seed).integers(5, 60))
    models = {kind: Toy(width, **changes) for kind, changes in KINDS.items()}
    models["a float64 model"].double()
    return models


def probe_state(answer, seed):
    return {
        f"the training state of {kind} with {name}, in bytes,": answer(model, name)
        for kind, model in draw_models(seed).items()
        for name in OPTIMIZERS
    }


def oracle_state(seed):
    """Trains one step and adds up what then lies in memory."""
    return {
        f"the training state of {kind} with {name}, in bytes,": state_after_a_step(model, name)
        for kind, model in draw_models(seed).items()
        for name in OPTIMIZERS
    }


def state_after_a_step(model, name):
    optimizer = OPTIMIZERS[name](model.parameters())
    dtype = next(model.parameters()).dtype
    model(torch.ones(1, model.first.in_features, dtype=dtype)).sum().backward()
    optimizer.step()
    kept = 0
    for parameter in model.parameters():
        kept += parameter.nbytes + (0 if parameter.grad is None else parameter.grad.nbytes)
        state = optimizer.state.get(parameter, {})
        kept += sum(
            tensor.nbytes
            for tensor in state.values()
            if torch.is_tensor(tensor) and tensor.shape == parameter.shape
        )
    optimizer.zero_grad()
    return kept


COPIES = {"sgd": 0, "momentum": 1, "adamw": 2}


def counted(
    model, name, *, gradients=1, copies=COPIES, everything=False, tied_twice=False, size=None
):
    """The right count, and with one change each the wrong ones."""
    total = 0
    for _, parameter in model.named_parameters(remove_duplicate=not tied_twice):
        one = parameter.numel() * (size or parameter.element_size())
        total += one
        if parameter.requires_grad or everything:
            total += one * (gradients + copies[name])
    return total


def four_bytes_each(model, name):
    return counted(model, name, size=4)


def with_a_real_optimizer(model, name):
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return weights + trained + trained * {"sgd": 0, "momentum": 1, "adamw": 2}[name]


training_state_bytes = Exercise(
    name="training_state_bytes",
    points=2,
    probe=probe_state,
    oracle=oracle_state,
    truth="what one step of training left in memory",
    mistakes=(
        Mistake(
            "gradients forgotten",
            lambda model, name: counted(model, name, gradients=0),
            lambda model, name: counted(model, name, gradients=0, everything=True),
            why="Every trained weight has a gradient of its own size beside it.",
            hint="What does loss.backward() write, and how large is it?",
        ),
        Mistake(
            "optimizer state forgotten",
            lambda model, name: counted(model, name, copies=dict.fromkeys(COPIES, 0)),
            why="Momentum keeps one running average for every weight, and AdamW keeps two.",
            hint="What does optimizer.state hold for one weight after a step?",
        ),
        Mistake(
            "one average for AdamW",
            lambda model, name: counted(model, name, copies=COPIES | {"adamw": 1}),
            why="AdamW keeps two averages for every weight: of the gradient and of its square.",
            hint="Which keys has optimizer.state[parameter] after a step of AdamW?",
        ),
        Mistake(
            "frozen weights given gradients",
            lambda model, name: counted(model, name, everything=True),
            lambda model, name: counted(model, name, everything=True, size=4),
            why="A frozen weight is stored, but it has no gradient and no optimizer state.",
            hint="What is parameter.grad of a parameter with requires_grad=False after backward()?",
        ),
        Mistake(
            "frozen weights left out",
            lambda model, name: sum(
                p.nbytes * (2 + COPIES[name]) for p in model.parameters() if p.requires_grad
            ),
            why="A frozen weight has no gradient and no optimizer state, but it is stored like any other.",
            hint="Where does a frozen weight lie during training?",
        ),
        Mistake(
            "frozen weights given optimizer state",
            lambda model, name: sum(
                p.nbytes * (1 + p.requires_grad + COPIES[name]) for p in model.parameters()
            ),
            why="An optimizer makes state for a weight when it first updates it, and a frozen weight has no gradient to update it with.",
            hint="For which parameters has optimizer.state an entry after a step?",
        ),
        Mistake(
            "two averages for momentum",
            lambda model, name: counted(model, name, copies=COPIES | {"momentum": 2}),
            why="Momentum keeps one running average for every weight; it is AdamW that keeps two.",
            hint="What does optimizer.state hold for one weight after a step of SGD with momentum?",
        ),
        Mistake(
            "sixteen bytes whatever the optimizer",
            lambda model, name: 16 * sum(p.numel() for p in model.parameters()),
            lambda model, name: 4 * sum(p.nbytes for p in model.parameters()),
            why="16 bytes a weight is the state of float32 weights that are all trained with AdamW; another optimizer keeps less.",
            hint="What does plain SGD keep beside weights and gradients?",
        ),
        Mistake(
            "tied weights counted twice",
            lambda model, name: counted(model, name, tied_twice=True),
            why="Two layers that share a weight share its memory: it is stored, and has a gradient, once.",
            hint="How many times does model.parameters() return a shared weight?",
        ),
        Mistake(
            "four bytes for every number",
            four_bytes_each,
            why="A number takes as many bytes as its type says: four for float32, eight for float64.",
            hint="Which attribute of a tensor tells the bytes of one of its numbers?",
        ),
        Mistake(
            "numbers instead of bytes",
            lambda model, name: counted(model, name, size=1),
            why="This counts numbers; each of them takes several bytes.",
            hint="How many bytes is one float32?",
        ),
    ),
    hints=(
        "For one trained weight: how many numbers lie in memory right after a step, and how many for a frozen one?",
        "Weights: all of model.parameters(). Gradients and optimizer state: only those that require a gradient.",
        "Per trained weight there are 2 numbers with sgd, 3 with momentum and 4 with adamw; tensor.nbytes is the size of one copy.",
    ),
    also_right=(with_a_real_optimizer, counted),
)

# ---------------------------------------------------------------- peak_at_batch


def draw_peak(seed):
    """Categories (bytes) as a meter would report them, at a batch size, and another batch size to foretell."""
    random = np.random.default_rng(seed)
    weights = int(random.integers(1_000_000, 9_000_000)) * 4
    sizes = (int(2**power) for power in random.permutation(np.arange(1, 7))[:2])
    batch, new_batch = sorted(
        sizes, reverse=bool(seed % 2)
    )  # of two seeds in a row, one goes up and one down
    activations = batch * int(random.integers(100_000, 900_000)) * 4
    return (
        {
            "weights": weights,
            "gradients": weights,
            "optimizer state": 2 * weights,
            "activations": activations,
        },
        batch,
        new_batch,
    )


CATEGORIES_ASKED = ("weights", "gradients", "optimizer state", "activations")


def probe_peak(answer, seed):
    shown = {}
    for number in range(4):
        peak, batch, new_batch = draw_peak(seed + number)
        got = answer(dict(peak), batch, new_batch)
        case = f"at batch {new_batch}, measured at {batch}"
        if not isinstance(got, dict):
            raise TypeError(
                f"peak_at_batch returned {type(got).__name__}; expected a dictionary from category to bytes."
            )
        shown |= {
            f"the {category} {case}, in bytes,": as_float(got.get(category))
            for category in CATEGORIES_ASKED
        }
    return shown


def as_float(value):
    return float(value) if isinstance(value, int | float) else value


def oracle_peak(seed):
    """One sample's activations, as many times as there are samples; the rest as it was."""
    shown = {}
    for number in range(4):
        peak, batch, new_batch = draw_peak(seed + number)
        case = f"at batch {new_batch}, measured at {batch}"
        for category in CATEGORIES_ASKED:
            one_sample = peak[category] / batch
            grows = category == "activations"
            shown[f"the {category} {case}, in bytes,"] = (
                one_sample * new_batch if grows else float(peak[category])
            )
    return shown


def scaled(*growing):
    """An answer that lets these categories grow with the batch."""
    return lambda peak, batch, new_batch: {
        name: size * new_batch / batch if name in growing else size for name, size in peak.items()
    }


def sample_by_sample(peak, batch, new_batch):
    peak["activations"] = sum(peak["activations"] / batch for _ in range(new_batch))
    return peak


peak_at_batch = Exercise(
    name="peak_at_batch",
    points=2,
    probe=probe_peak,
    oracle=oracle_peak,
    truth="the right one",
    mistakes=(
        Mistake(
            "everything grows",
            scaled(*CATEGORIES_ASKED),
            why="There is one copy of the weights, of their gradients and of the optimizer state, whatever the batch.",
            hint="Look at the picture of the five batch sizes: which colours keep their length?",
        ),
        Mistake(
            "gradients grow too",
            scaled("activations", "gradients"),
            why="A gradient has the shape of its weight; the samples of a batch are summed into it.",
            hint="What is the shape of parameter.grad, and does the batch size appear in it?",
        ),
        Mistake(
            "nothing grows",
            scaled(),
            why="Each sample leaves activations of its own for the backward pass.",
            hint="Which category must hold something for every sample?",
        ),
        Mistake(
            "ratio upside down",
            lambda peak, batch, new_batch: (
                peak | {"activations": peak["activations"] * batch / new_batch}
            ),
            why="Twice the batch needs twice the activations, and here it gets half.",
            hint="Which of the two batch sizes belongs above the line?",
        ),
        Mistake(
            "measured bytes taken for one sample's",
            lambda peak, batch, new_batch: peak | {"activations": peak["activations"] * new_batch},
            why="The measured activations belong to the whole measured batch, not to one sample.",
            hint="How many bytes of activations does one sample have?",
        ),
        Mistake(
            "whole multiples only",
            lambda peak, batch, new_batch: (
                peak | {"activations": peak["activations"] * (new_batch // batch)}
            ),
            why="The quotient of the batches is rounded down before it is used, and to 0 where the new batch is the smaller one.",
            hint="What is 8 // 16, and what should it be?",
        ),
    ),
    hints=(
        "Which of the categories has one entry per weight, and which one per sample?",
        "Divide the activations by the measured batch to have those of one sample.",
        "activations * new_batch / batch; everything else stays.",
    ),
    also_right=(scaled("activations"), sample_by_sample),
)

# ---------------------------------------------------------------- largest_batch


def draw_budget(seed):
    peak, batch, _ = draw_peak(seed)
    fixed = sum(size for name, size in peak.items() if name != "activations")
    random = np.random.default_rng(seed + 1)
    room = (
        random.integers(3, 41) + random.uniform(0.1, 0.4) + 0.5 * (seed % 2)
    )  # of two seeds in a row, one is nearer to the number above
    return peak, batch, int(fixed + room * peak["activations"] / batch)


def probe_budget(answer, seed):
    shown = {}
    for number in range(5):
        peak, batch, budget = draw_budget(seed + number)
        shown[f"the largest batch for {budget:,} bytes"] = answer(dict(peak), batch, budget)
    peak, batch, _ = draw_budget(seed)
    shown["the largest batch where three samples need the budget to the byte"] = answer(
        dict(peak), batch, rest_of(peak) + 3 * peak["activations"] // batch
    )
    shown["the largest batch where not even the weights fit"] = answer(
        dict(peak), batch, peak["weights"] // 2
    )
    return shown


def oracle_budget(seed):
    """Tries batch after batch until one does not fit."""
    shown = {}
    for number in range(5):
        peak, batch, budget = draw_budget(seed + number)
        fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
        fits = 0
        while fixed + (fits + 1) * (peak["activations"] / batch) <= budget:
            fits += 1
        shown[f"the largest batch for {budget:,} bytes"] = fits
    return shown | {
        "the largest batch where three samples need the budget to the byte": 3,
        "the largest batch where not even the weights fit": 0,
    }


def rest_of(peak):
    return sum(size for name, size in peak.items() if name != "activations")


def floor_division(peak, batch, budget):
    return int(max(0, (budget - rest_of(peak)) * batch // peak["activations"]))


largest_batch = Exercise(
    name="largest_batch",
    points=2,
    probe=probe_budget,
    oracle=oracle_budget,
    truth="the right one",
    mistakes=(
        Mistake(
            "rounded up",
            lambda peak, batch, budget: max(
                0, math.ceil((budget - rest_of(peak)) / (peak["activations"] / batch))
            ),
            why="A batch that fits only in part is out of memory: the number must be rounded down.",
            hint="If 3.2 samples fit, what happens with 4?",
        ),
        Mistake(
            "rounded to the nearest",
            lambda peak, batch, budget: max(
                0, round((budget - rest_of(peak)) / (peak["activations"] / batch))
            ),
            why="From a half on this rounds up, to a batch that does not fit.",
            hint="If 3.7 samples fit, what happens with 4?",
        ),
        Mistake(
            "a full budget taken for too small",
            lambda peak, batch, budget: max(
                0, math.ceil((budget - rest_of(peak)) / (peak["activations"] / batch)) - 1
            ),
            why="A peak of exactly the budget fits: at most means that the two may be equal.",
            hint="If three samples need every byte of the budget, how many fit?",
        ),
        Mistake(
            "not rounded",
            lambda peak, batch, budget: max(
                0, (budget - rest_of(peak)) / (peak["activations"] / batch)
            ),
            why="A part of a sample cannot be trained; the answer is a whole number.",
            hint="If 3.7 samples fit, how many whole ones are that?",
        ),
        Mistake(
            "first batch that does not fit",
            lambda peak, batch, budget: floor_division(peak, batch, budget) + 1,
            why="This is one sample more than fits.",
            hint="Has your search already gone one step too far when it stops?",
        ),
        Mistake(
            "only powers of two",
            lambda peak, batch, budget: (
                2 ** int(math.log2(fits)) if (fits := floor_division(peak, batch, budget)) else 0
            ),
            why="Every whole number of samples is a batch, and a larger one than this fits.",
            hint="Which sizes does your search leave out?",
        ),
        Mistake(
            "only the weights taken off",
            lambda peak, batch, budget: max(
                0, (budget - peak["weights"]) * batch // peak["activations"]
            ),
            why="Gradients and optimizer state take their bytes whatever the batch, like the weights.",
            hint="Which three categories stay when the batch grows?",
        ),
        Mistake(
            "the measured batch taken for one sample",
            lambda peak, batch, budget: max(0, (budget - rest_of(peak)) // peak["activations"]),
            why="The measured activations belong to the whole measured batch, so this counts batches, not samples.",
            hint="How many bytes of activations does one sample have?",
        ),
        Mistake(
            "fixed part forgotten",
            lambda peak, batch, budget: int(budget // (peak["activations"] / batch)),
            why="Weights, gradients and optimizer state take their bytes before the first sample does.",
            hint="How many bytes of the budget are left for activations?",
        ),
        Mistake(
            "fixed part grown with the batch",
            lambda peak, batch, budget: int(budget // (sum(peak.values()) / batch)),
            why="This gives every sample its own share of the weights; there is one copy for all samples.",
            hint="Which part of the peak stays when the batch doubles?",
        ),
        Mistake(
            "less than nothing",
            lambda peak, batch, budget: int(
                (budget - rest_of(peak)) // (peak["activations"] / batch)
            ),
            why="Where the fixed part alone is over the budget, no sample fits: that is 0, not a negative number.",
            hint="What should the answer be when the weights do not fit?",
        ),
    ),
    hints=(
        "What remains of the budget when the fixed categories are in place?",
        "Divide what remains by the activations of one sample, and round down.",
        "int(max(0, (budget - fixed) // (activations / batch))).",
    ),
    also_right=(floor_division,),
)

EXERCISES = (training_state_bytes, peak_at_batch, largest_batch)
