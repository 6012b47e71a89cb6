"""The exercises of the lesson 0_start/1_where_memory_goes."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import ALL, SCALED, WHOLE

EXERCISES = (
    Exercise(
        name="training_state_bytes",
        points=2,
        probe=probes.training_state_bytes,
        oracle=oracles.training_state_bytes,
        truth="what one step of training left in memory",
        mistakes=mistakes.training_state_bytes,
        hints=(
            "For one trained weight: how many numbers lie in memory right after a step, and how many for a frozen one?",
            "Weights: all of model.parameters(). Gradients and optimizer state: only those that require a gradient.",
            "Per trained weight there are 2 numbers with sgd, 3 with momentum and 4 with adamw; tensor.nbytes is the size of one copy.",
        ),
        also_right=(
            {
                ALL: """    weights = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return weights + trained + trained * averages
"""
            },
            {"parameter.nbytes": "parameter.numel() * parameter.element_size()"},
        ),
    ),
    Exercise(
        name="peak_at_batch",
        points=2,
        probe=probes.peak_at_batch,
        oracle=oracles.peak_at_batch,
        mistakes=mistakes.peak_at_batch,
        hints=(
            "Which of the categories have one entry per weight, and which are there once for every sample?",
            "Divide the activations by the measured batch to have those of one sample; what is temporary at the turn grows in the same way.",
            "activations * new_batch / batch, temporary * new_batch / batch; everything else stays.",
        ),
        also_right=(
            {
                SCALED: "{name: size * new_batch / batch if name in grows else size for name, size in peak.items()}"
            },
            {
                f"    return {SCALED}": """    peak = dict(peak)
    for category in grows:
        peak[category] = sum(peak[category] / batch for _ in range(new_batch))
    return peak"""
            },
        ),
    ),
    Exercise(
        name="largest_batch",
        points=2,
        probe=probes.largest_batch,
        oracle=oracles.largest_batch,
        mistakes=mistakes.largest_batch,
        hints=(
            "What remains of the budget when the fixed categories are in place, and which of the two peaks must fit as well?",
            "At the turn `batch` samples add the activations and the temporary bytes. How many samples fit into what remains of the budget? Round down. The optimizer's step fits or it does not, whatever the batch.",
            "0 if step_bytes > budget, else max(0, (budget - fixed) * batch // (activations + temporary)). Multiply first: all of these are whole numbers; a sample's share of the bytes may be a fraction.",
        ),
        also_right=(
            # One sample's share, rounded up, loses a sample where a budget fits to the byte; not asked for.
            {WHOLE: "int((budget - fixed) // (grows / batch))"},
        ),
    ),
)
