"""What the lesson 4_whole_picture/1_published_table asks besides its exercises."""

from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "tensors of vanilla on a card of 2022",
    "Why did the card hold more than a CPU of today?",
    (
        "Gradients kept their memory between steps, and the softmax kept its input.",
        "From the second column to the third gradients and activations grow.",
    ),
    (
        "Numbers take more bytes on a card than in a processor's memory.",
        "A `float32` has four bytes everywhere; the mask of a dropout even takes fewer there.",
    ),
    (
        "What CUDA's context takes is counted among them.",
        "The context is no tensor. It comes on top, with what the allocator rounds up.",
    ),
) | question(
    "sequences at once with checkpointing",
    "What leaves room for so many more sequences?",
    (
        "Each sequence keeps only the layers' inputs, and one layer's activations at a time.",
        "Weights, gradients and state take what they took; the rest of the card is shared by sequences that need far less.",
    ),
    (
        "Gradients and optimizer state are recomputed as well.",
        "Checkpointing leaves them as they are.",
    ),
    (
        "The activations are moved to the CPU's memory.",
        "Nothing is moved. What is not kept is computed again, for one more forward pass.",
    ),
)


LINES = {
    "ratios": Puzzle(
        ("context left in", "seconds of unequal work", "vanilla divided by the row"),
        exchange=((1, 2), (4, 5)),
        moves=((1, 3, 2),),
    ),
}


def row(draw):
    rows = [
        {"name": name, "speed": speed, "memory": memory}
        for name, speed, memory in (
            ("vanilla", draw.randint(40, 60), draw.randint(120, 150)),
            ("accumulation", draw.randint(30, 39), draw.randint(70, 90)),
            ("checkpointing", draw.randint(20, 29), draw.randint(50, 65)),
            ("both", draw.randint(10, 19), draw.randint(30, 45)),
        )
    ]
    context = draw.randint(8, 14)
    budget = rows[draw.randint(0, 2)]["memory"] + draw.randint(0, 2 * context)
    listed = ", ".join(f"{r['name']} {r['speed']} samples/s and {r['memory']} MiB" for r in rows)
    return by_exercise(
        "choose_row",
        rows,
        budget,
        context,
        ask=f"The context takes {context} MiB, and these figures leave it out: {listed}. Which do you take for a budget of {budget} MiB?",
        says="The fastest of those that fit together with the context.",
        mistakes=(
            "context forgotten",
            "leanest row",
            "fastest row whether it fits or not",
            "slowest row that fits",
        ),
    )


RECALL = {"row": row}
