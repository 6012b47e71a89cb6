"""What the lesson 2_checkpointing/3_trainer asks besides its exercises."""

from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "BERT-large's activations with every_n_layers=2",
    "Why is so much left?",
    (
        "Every second layer is as it was, and keeps its interior.",
        "One layer in two is checkpointed; the others keep all that they kept before.",
    ),
    (
        "A segment of two layers comes back at once.",
        "There are no segments: `every_n_layers` says which layers are checkpointed, each by itself.",
    ),
    (
        "What was run again stays until the step.",
        "A layer that was run again is freed as soon as its backward pass is done.",
    ),
)


def interiors(draw):
    layers, n = draw.choice((12, 16, 24)), draw.choice((2, 3, 4))
    interior, boundary = draw.randint(20, 60), draw.randint(2, 6)
    return by_exercise(
        "peak_activations",
        layers,
        n,
        interior,
        boundary,
        ask=f"{layers} layers, `every_n_layers={n}`. A layer's interior takes {interior} MiB, its boundary {boundary}. How many MiB of activations are there at the peak?",
        says="Every layer keeps its boundary; the interiors are those of the plain layers, and one more where the last layer is checkpointed.",
        mistakes=(
            "groups of n layers",
            "checkpointed and plain layers swapped",
            "one interior too many",
            "the boundaries forgotten",
            "no boundary for a plain layer",
        ),
        shown=lambda size: f"{size:,.0f}",
    )


RECALL = {"interiors": interiors}
