"""What the lesson 5_decoders/3_trainer asks besides its exercises."""

from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "predictions that are collected",
    "Only two texts are evaluated at a time. Why is the array so large?",
    (
        "The logits of every text are kept until the metric is computed.",
        "It grows with the evaluation set: one row of the whole vocabulary for each of its tokens.",
    ),
    (
        "Evaluation keeps the activations of a backward pass.",
        "No graph is built in evaluation; each layer's activations go at once.",
    ),
    (
        "The predictions are kept in 64 bits.",
        "They are float32, as the model returned them.",
    ),
)


def predictions(draw):
    texts, length = draw.choice((100, 500, 1000)), draw.choice((128, 512))
    vocabulary = draw.choice((32_000, 50_000, 128_000))
    return by_exercise(
        "evaluation_bytes",
        texts,
        length,
        vocabulary,
        False,
        ask=f"{texts:,} texts of {length} tokens, a vocabulary of {vocabulary:,}. How much does the Trainer collect in float32 for `compute_metrics`?",
        says="A number of four bytes for each token of the data set and each entry of the vocabulary.",
        mistakes=("one row a text", "numbers, not bytes", "the other way round"),
        shown=lambda size: f"{size / 1e9:,.3g} GB",
    )


def weight(draw):
    targets = [draw.choice((20, 40, 50)), draw.choice((80, 100, 200))]
    across = draw.random() < 0.3
    return by_exercise(
        "token_weights",
        targets,
        across,
        ask=f"Two ranks with {targets[0]} and {targets[1]} targets in their windows, `average_tokens_across_devices={across}`. With which factor does a token of rank 0 enter the gradient?",
        says="With the argument one over all targets; without it one over its own rank's, halved by DDP's mean.",
        mistakes=(
            "DDP's mean forgotten",
            "DDP's mean not undone",
            "the other way round",
            "multiplied by the number of devices",
            "the share of the rank",
        ),
        shown=lambda found: f"{found[0]:.3g}",
    )


RECALL = {"predictions": predictions, "weight": weight}
