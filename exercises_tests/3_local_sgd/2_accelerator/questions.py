"""What the lesson 3_local_sgd/2_accelerator asks besides its exercises."""

from exercises_tests.asking.own_runs import locally_accelerated_run
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "averages in 4 optimizer steps with local_sgd_steps=8",
    "No rank makes 8 optimizer steps. Where do the averages come from?",
    (
        "`local_sgd.step()` counts its own calls, and it is called in every block.",
        "So it counts micro-batches; and the end of the context averages once more.",
    ),
    (
        "Every optimizer step but the first is averaged.",
        "That would be as many, but the source counts calls of `step`: the optimizer does not come into it.",
    ),
    (
        "Each all-reduce is an average, and a model has many parameters.",
        "The all-reduces were divided by the number of parameters already.",
    ),
)


LINES = {
    "train_locally": Puzzle(
        ("data loader not prepared", "loss not divided", "the guard the wrong way round"),
        exchange=((8, 9), (8, 10)),
        moves=(
            *((8, 4, 3), (8, 7, 3), (8, 7, 4), (8, 10, 3), (8, 10, 4), (8, 10, 5)),
            *((9, 7, 3), (7, 6, 3)),
        ),
    ),
}

OWN_RUNS = {
    "train_locally": lambda loop: locally_accelerated_run(loop, 20, 2, 2),
}


def traffic(draw):
    k, h = draw.choice((2, 4)), draw.choice((4, 8))
    micro_batches, guarded = k * draw.randint(5, 16), draw.choice((True, False))
    where = "after each optimizer step" if guarded else "in every `accumulate` block"
    return by_exercise(
        "local_sgd_traffic",
        micro_batches,
        k,
        h,
        100,
        1000,
        guarded,
        ask=f"Accelerate's `LocalSGD` with `local_sgd_steps={h}`; one rank has {micro_batches} micro-batches and {k} accumulation steps, and `local_sgd.step()` is called {where}. How often are the weights averaged?",
        says="Once in so many calls, and once more when the context is left, always.",
        mistakes=(
            "the average on exit forgotten",
            "optimizer steps counted without the guard",
            "micro-batches counted with the guard",
            "an average too many where calls are left over",
        ),
        shown=lambda found: str(found[0]),
    )


RECALL = {"traffic": traffic}
