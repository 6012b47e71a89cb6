"""What the lesson 2_checkpointing/1_pytorch asks besides its exercises."""

from exercises_tests.asking.own_runs import layers_run, one_by_one
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "forward units with checkpoints",
    "A second forward pass is a whole unit. Why was less than that spent?",
    (
        "The recomputation stops when the backward pass has all that it needs.",
        "The last product of a block gives the block's output, and no slope is computed from that: it is left out.",
    ),
    (
        "Some of the blocks are not checkpointed.",
        "All eight are. Each of them is run again, but not to its end.",
    ),
    (
        "The backward pass leaves out the gradients of the blocks' inputs.",
        "Every block passes one on to the block before it, and the first input asks for one, too.",
    ),
) | question(
    "FLOPs of LoRA with checkpoints",
    "Checkpointing adds one forward pass here, too. Why does that weigh more than where everything trains?",
    (
        "Plain training of frozen matrices has one product less: no gradient of the weights.",
        "A unit more than two is a half, a unit more than three is a third.",
    ),
    (
        "The adapters are run forward twice more.",
        "Each layer is run again once, adapters included, and they are small beside the frozen matrices.",
    ),
    (
        "Frozen layers must keep their activations besides being run again.",
        "They do not: the printed activations went down. And keeping costs bytes, not FLOPs.",
    ),
)

OWN_RUNS = {
    "checkpoint": lambda checkpoint: layers_run(one_by_one(checkpoint), 3),
    "run_in_segments": lambda run: layers_run(
        lambda layers, x: run(layers, x, 3), 6, " in three segments"
    ),
}


def activations(draw):
    layers, boundary = draw.choice((4, 6, 8, 12, 24)), draw.randint(1, 4)
    plain = layers * boundary * draw.randint(5, 12)
    bill = {"weights": 0, "gradients": 0, "optimizer state": 0, "FLOPs": 0, "gradient norm": 0}
    return by_exercise(
        "checkpointed_bill",
        bill | {"activations": plain},
        layers,
        boundary,
        ask=f"Plain training of {layers} equal layers keeps {plain} MiB of activations; the input of a layer takes {boundary} of them. How many MiB are there at the peak with every layer checkpointed?",
        says="The inputs of all layers, and what one layer makes inside, which comes back while that layer has its turn.",
        mistakes=(
            "the boundaries alone",
            "one layer alone",
            "all interiors at once",
            "one boundary too many",
            "nothing changed",
        ),
        shown=lambda bill: f"{bill['activations']:.4g}",
    )


def segments(draw):
    layers, boundary = draw.choice((12, 16, 24)), draw.choice((1, 2))
    kept, work = boundary * draw.choice((4, 6, 8)), 2 * boundary
    number = draw.randint(2, 3)  # no more than the square root, of which is said that it fits
    longest = -(-layers // number)
    budget = work + (number - 1) * boundary + longest * kept + draw.randint(0, 1)
    return by_exercise(
        "choose_segments",
        layers,
        boundary,
        kept,
        work,
        budget,
        ask=f"A chain of {layers} layers: each keeps {kept} MiB, its input takes {boundary}, and the running operation needs {work}. No recomputation is stopped early. The budget is {budget} MiB. How many segments take the fewest FLOPs?",
        says="The fewest that fit: the more segments, the more layers are run again.",
        mistakes=(
            "always every layer",
            "the most segments that fit",
            "always the square root",
            "the least memory instead of the least work",
            "always one segment",
        ),
    )


RECALL = {"activations": activations, "segments": segments}
