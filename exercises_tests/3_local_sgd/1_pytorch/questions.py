"""What the lesson 3_local_sgd/1_pytorch asks besides its exercises."""

from exercises_tests.asking.own_runs import local_run
from exercises_tests.probing.toys import windows
from trainlean.costs.links import traffic
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = question(
    "payload of a rank in one optimizer step",
    "What decides how much a rank hands over in a step?",
    (
        "The number of weights: one gradient for each of them.",
        "However many samples stand behind a gradient, it has the shape of its weight.",
    ),
    (
        "The size of the micro-batch.",
        "Samples and activations stay on their rank; gradients are averaged.",
    ),
    (
        "The number of ranks: a gradient goes to each of the others.",
        "A rank hands its gradient to the all-reduce once. What that makes of it on the link comes next.",
    ),
) | question(
    "averages for 12 steps with H = 5",
    "Where does the last of these averages come from?",
    (
        "The last period is a shorter one, and must end equal as well.",
        "After the last whole period the ranks have made further steps, each on its own.",
    ),
    (
        "The ranks average once before they begin.",
        "They begin with the same weights, so there is nothing to average.",
    ),
    (
        "Each of the ranks averages once for itself at the end.",
        "An average is a meeting of all ranks, and counts once.",
    ),
)

LINES = {
    "train_local_sgd": Puzzle(
        ("every rank trains on the same micro-batches", "no last average", "loss not divided"),
        exchange=((1, 2), (2, 4), (2, 5), (4, 5), (10, 11), (13, 14)),
        moves=((10, 6, 2),),
    ),
}

OWN_RUNS = {
    "train_local_sgd": lambda loop: local_run(loop, 20, 2, 2),
}


def averages(draw):
    h = draw.choice((3, 4, 5, 8))
    steps = h * draw.randint(2, 6) + draw.randint(1, h - 1)
    number = len(windows([*range(steps)], h))
    return computed(
        f"Local SGD, {steps} optimizer steps, H = {h}. How many averages are needed, so that the ranks end equal?",
        (
            str(number),
            "One after each period of H steps, and the last, shorter period has one too.",
        ),
        [
            (str(number - 1), "Then the ranks end with different models."),
            (str(steps), "That is how often DDP averages: at every step."),
            (
                str(number + 1),
                "One too many: no average is needed before the first step, and one is enough at the end.",
            ),
        ],
    )


def ring(draw):
    size, ranks = draw.choice((12, 24, 48, 96)), draw.choice((3, 4, 6, 8))
    _, sent = traffic("all-reduce", size, ranks)
    return computed(
        f"A gradient of {size} MiB is averaged in a ring of {ranks} ranks. How much does each rank send?",
        (
            f"{sent:.4g} MiB",
            f"Twice around the ring, {ranks - 1} messages each time, each an equal part of the gradient.",
        ),
        [
            (
                f"{size * (ranks - 1):.4g} MiB",
                "That is a rank that sends all of it to each of the others.",
            ),
            (
                f"{sent / 2:.4g} MiB",
                "The first time around adds up; the second time hands the sums on.",
            ),
            (
                f"{size / ranks:.4g} MiB",
                "That is one message; each rank sends many of them.",
            ),
        ],
    )


RECALL = {"averages": averages, "ring": ring}
