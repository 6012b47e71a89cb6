"""What the lesson 2_checkpointing/4_budgets asks besides its exercises."""

from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

OPTIONAL = True

BECAUSE = question(
    "FLOPs of four levels",
    "Computing every layer again once costs a third more. Why do the four levels cost more than that?",
    (
        "A layer lies in a first half at several levels, and is computed again for each of them.",
        "The first layer at all of them, the last at none; on average it is half of the levels.",
    ),
    (
        "Keeping the inputs of the halves costs FLOPs.",
        "Keeping costs bytes. Only products are counted, and there are more of them because layers run again.",
    ),
    (
        "Every layer is computed again at each level.",
        "Only those of a first half are: the second half of each level goes on plainly.",
    ),
)


def keep(draw):
    results = [(draw.randint(2, 9), draw.randint(10, 60)) for _ in range(4)]
    budget = sum(size for size, _ in results) // 2
    listed = ", ".join(f"{size} and {flops}" for size, flops in results)
    return by_exercise(
        "least_recomputation",
        results,
        budget,
        ask=f"Four results of a forward pass, each with the MiB that it takes and the GFLOP that compute it again: {listed}. {budget} MiB may be kept. How many GFLOP must be computed again at the least?",
        says="Of all choices that fit, the one that keeps the most FLOPs, whatever the order of single results.",
        mistakes=(
            "greedy by FLOPs per byte",
            "greedy by FLOPs",
            "what is kept, not what is recomputed",
            "nothing is kept",
            "kept in the order of the list",
        ),
    )


RECALL = {"keep": keep}
