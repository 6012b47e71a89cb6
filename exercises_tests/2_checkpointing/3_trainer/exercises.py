"""The exercises of the lesson 2_checkpointing/3_trainer."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import COUNT, DETAILS, LOOPS, PEAK

ALL_SETTINGS = """    settings = [(n, size) for n in (1, 2, 4, 8, None) for size in range(1, effective_batch + 1)]
    settings.sort(key=lambda setting: (8 // setting[0] if setting[0] else 0, -setting[1]))
    for every_n_layers, size in settings:
        if effective_batch % size == 0:
"""
OLDER_NAMES = '{"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"every_n_layers": every_n_layers}}'

EXERCISES = (
    Exercise(
        name="peak_activations",
        points=2,
        probe=probes.peak_activations,
        oracle=oracles.peak_activations,
        mistakes=mistakes.peak_activations,
        hints=(
            "How many layers are checkpointed, how many are plain, and what does each of them hold when the forward pass ends?",
            "Then begin the backward pass: if the very last layer is a checkpointed one, its interior comes on top before anything is freed.",
            "checkpointed = math.ceil(layers / n); plain = layers - checkpointed, plus 1 if (layers - 1) % n == 0; plain * interior + layers * boundary.",
        ),
        also_right=(
            {COUNT: "len([number for number in range(layers) if number % every_n_layers == 0])"},
            {PEAK: PEAK.replace("return ", "return 1.0 * ")},
        ),
    ),
    Exercise(
        name="arguments_for_budget",
        points=3,
        probe=probes.arguments_for_budget,
        oracle=oracles.arguments_for_budget,
        mistakes=mistakes.arguments_for_budget,
        hints=(
            "In which order would you try the settings, so that the first one that fits is the answer?",
            "First without checkpointing, from the largest micro-batch down; then with every_n_layers 8, 4, 2 and 1, each from the largest micro-batch down.",
            'TrainingArguments(..., activation_checkpointing=True, activation_checkpointing_kwargs={"every_n_layers": n}) only where checkpointing is needed.',
        ),
        also_right=({LOOPS: ALL_SETTINGS}, {DETAILS: OLDER_NAMES}),
    ),
)
