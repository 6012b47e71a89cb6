"""What the lesson 0_start/1_where_memory_goes asks besides its exercises."""

from exercises_tests.asking.sizes import Parameters
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "peak memory as a multiple of the weights",
    "By far the largest row is `activations`. Why is it so large?",
    (
        "Every layer leaves something of its own for each of the 16 reviews.",
        "The backward pass needs it, and where forward turns into backward all of it is still there.",
    ),
    (
        "There is a copy of the weights for each of the 16 reviews.",
        "All reviews of a batch go through the same weights, and the first row has them once.",
    ),
    (
        "What the two training steps have left lies there together.",
        "The backward pass of the first step has used up what that step left; the second one begins without it.",
    ),
)

LINES = {
    "training_state_bytes": Puzzle(
        ("gradients forgotten", "one average for AdamW", "numbers instead of bytes"),
        exchange=((1, 2),),
        moves=((1, 3, 2), (1, 4, 2), (1, 5, 3)),
    ),
    "largest_batch": Puzzle(
        ("rounded to the nearest", "temporary memory left out", "gradients left out"),
        exchange=((1, 3), (1, 4), (3, 4)),
    ),
}


def state(draw):
    millions, kind = draw.choice((10, 30, 110, 340)), draw.choice(("sgd", "momentum", "adamw"))
    frozen = draw.choice((0, 50))
    model = Parameters(millions * 10**6, frozen / 100)
    named = {"sgd": "plain SGD", "momentum": "SGD with momentum", "adamw": "AdamW"}[kind]
    half = f"; {frozen} % of them are frozen" if frozen else ""
    return by_exercise(
        "training_state_bytes",
        model,
        kind,
        ask=f"A model has {millions} million weights in `float32`{half}. It is trained with {named}. How large is its training state?",
        says="One copy of every weight; for each that is trained a gradient, and what the optimizer keeps.",
        mistakes=(
            "gradients forgotten",
            "optimizer state forgotten",
            "frozen weights given gradients",
            "one average for AdamW",
            "two averages for momentum",
            "numbers instead of bytes",
        ),
        shown=lambda size: f"{size / 1e6:,.0f} MB",
    )


def peak(draw):
    batch = draw.choice((4, 8, 16))
    new = batch * draw.choice((2, 3, 4))
    weights = draw.randint(4, 12)
    measured = {
        "weights": weights,
        "gradients": 1,
        "optimizer state": 2 * weights,
        "activations": 2 * batch,
        "temporary": batch // 4,
    }
    listed = ", ".join(f"{name} {size}" for name, size in measured.items())
    return by_exercise(
        "peak_at_batch",
        measured,
        batch,
        new,
        ask=f"With {batch} samples the peak lies at the turn to backward. In MiB: {listed}. How large is it with {new} samples?",
        says="Activations and what is temporary grow with the batch; the training state does not.",
        mistakes=(
            "everything grows",
            "gradients grow too",
            "only the activations grow",
            "measured bytes taken for one sample's",
            "nothing grows",
        ),
        shown=lambda bill: f"{sum(bill.values()):,.0f} MiB",
    )


def largest(draw):
    weights, one = draw.randint(5, 20), draw.randint(2, 6)
    measured = {
        "weights": weights,
        "gradients": 0,
        "optimizer state": 2 * weights,
        "activations": 8 * one - 8,
        "temporary": 8,
    }
    step = 4 * weights
    budget = max(step, 3 * weights) + one * draw.randint(3, 9) + draw.randint(0, one - 1)
    return by_exercise(
        "largest_batch",
        measured,
        step,
        8,
        budget,
        ask=f"Measured with 8 samples, in MiB: weights {weights}, gradients 0, optimizer state {2 * weights}, activations {8 * one - 8}, temporary 8. The optimizer's step needs {step}. What is the largest batch for a budget of {budget} MiB?",
        says="The budget, less what is there whatever the batch, divided by what one sample needs, and rounded down.",
        mistakes=(
            "rounded up",
            "temporary memory left out",
            "both peaks added up",
            "only the weights taken off",
            "first batch that does not fit",
        ),
    )


RECALL = {"state": state, "peak": peak, "largest": largest}
