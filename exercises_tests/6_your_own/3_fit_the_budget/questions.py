"""What the lesson 6_your_own/3_fit_the_budget asks besides its exercises."""

from types import SimpleNamespace

from exercises_tests.asking.own_runs import parts_run
from exercises_tests.asking.sizes import Parameters
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "share of the vocabulary",
    "Why does the vocabulary take so much of this model?",
    (
        "It has many more tokens than a hidden state has numbers.",
        "Embedding, output layer and logits have a row or column for each token. The layers between have only widths.",
    ),
    (
        "AdamW keeps more for an embedding than for a layer.",
        "It keeps two numbers for each weight, whichever it is.",
    ),
    (
        "Each text brings its own embedding into memory.",
        "The embedding is there once. What grows with texts are the logits.",
    ),
)

OWN_RUNS = {
    "train_within": lambda loop: parts_run(loop, 2),
}


def row(draw):
    millions, percent = draw.choice((10, 20, 50)), draw.choice((50, 80, 90))
    micro_batch, length = draw.choice((2, 4, 8)), draw.choice((128, 512))
    vocabulary, part = draw.choice((16_000, 32_000)), draw.choice(("logits", "optimizer state"))
    model = Parameters(millions * 10**6, percent / 100)
    model.config = SimpleNamespace(vocab_size=vocabulary)
    return by_exercise(
        "explain_row",
        model,
        micro_batch,
        length,
        ask=f"A decoder with {millions} million `float32` weights, {percent} % of them frozen, and a vocabulary of {vocabulary:,}; AdamW, micro-batches of {micro_batch} x {length} tokens. How much memory is for the {part}?",
        says="Logits are four bytes times the tokens of the micro-batch times those of the vocabulary; state is two numbers for each trained weight.",
        mistakes=(
            "logits of one text",
            "logits of one place",
            "frozen weights with state",
            "one average in the state",
            "three numbers in the state",
            "numbers instead of bytes",
            "the logits counted, not their bytes",
        ),
        shown=lambda found: f"{found[part] / 1e6:,.4g} MB",
    )


def settings(draw):
    batch, each, fixed = draw.choice((12, 18, 20, 24)), draw.choice((2, 3)), draw.randint(4, 9)
    most = draw.choice([size for size in range(2, batch) if batch % size == 0])
    budget = fixed + each * most
    return by_exercise(
        "settings_that_fit",
        batch,
        [False],
        lambda micro_batch, way: fixed + each * micro_batch,
        budget,
        ask=f"A batch of {batch}; {fixed} MB are needed anyway and {each} MB for each sample of a micro-batch. How many settings (micro-batch, accumulation steps) fit into {budget} MB?",
        says="Each divisor of the batch whose peak is at most the budget.",
        mistakes=(
            "strictly below the budget",
            "micro-batches that do not divide the batch",
            "powers of two only",
            "micro-batch 1 left out",
            "the budget forgotten",
        ),
        shown=lambda found: str(len(found)),
    )


RECALL = {"row": row, "settings": settings}
