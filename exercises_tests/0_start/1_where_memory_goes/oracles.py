"""What must be seen in the lesson 0_start/1_where_memory_goes: bytes after a real step, and batches tried one after the other."""

import torch

from .probes import (
    CATEGORIES,
    GROWING,
    OPTIMIZERS,
    draw_budget,
    draw_many,
    draw_models,
    draw_peaks,
)

MAKE = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}


def training_state_bytes(seed):
    """Trains one step and adds up what then lies in memory."""
    shown = {
        f"the training state of {kind} with {name}, in bytes,": state_after_a_step(model, name)
        for kind, model in draw_models(seed).items()
        for name in OPTIMIZERS
    }
    return shown | {"what is returned": "an int", "whether all models are as they were": True}


def state_after_a_step(model, name):
    optimizer = MAKE[name](model.parameters())
    dtype = next(model.parameters()).dtype
    model(torch.ones(1, model.last.in_features, dtype=dtype)).sum().backward()
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


def peak_at_batch(seed):
    """One sample's share of what grows, as many times as there are samples; the rest as it was."""
    shown = {}
    for peak, batch, new_batch in draw_peaks(seed):
        case = f"at batch {new_batch}, measured at {batch}"
        for category in CATEGORIES:
            one_sample = peak[category] / batch
            grows = category in GROWING
            shown[f"the entry for {category} {case}, in bytes,"] = (
                one_sample * new_batch if grows else float(peak[category])
            )
    return shown | {"whether the measured peak is as it was": True}


def peak_of(peak, batch, samples):
    return sum(
        size * samples / batch if category in GROWING else size for category, size in peak.items()
    )


def largest_batch(seed):
    """Tries batch after batch until one does not fit."""
    shown = {}
    for number in range(5):
        peak, _, batch, budget = draw_budget(seed + number)
        needed, fits = sum(peak.values()), batch
        while needed > budget and fits:
            fits -= 1
            needed = peak_of(peak, batch, fits)
        while peak_of(peak, batch, fits + 1) <= budget:
            fits += 1
        shown[f"the largest batch for {budget:,} bytes"] = fits
    return shown | {
        "the largest batch where three samples need the budget to the byte": 3,
        "the largest batch where the optimizer's step needs the budget to the byte": 3,
        "the largest batch where the optimizer's step is a byte too large": 0,
        "the largest batch where thousands of small samples fit": draw_many(seed)[-1],
        "the largest batch where not even the weights fit": 0,
        "the largest batch where a single sample is a byte too large": 0,
        "whether the measured peak is as it was": True,
    }
