"""What the lesson 5_decoders/2_accelerator asks besides its exercises."""

from exercises_tests.asking.own_runs import token_ranks_run
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise, computed

BECAUSE = question(
    "gradient divided by all targets",
    "The divisor is right for one large batch. Why is the gradient too short?",
    (
        "DDP takes the mean over the devices, and divides once more.",
        "The sum was wanted, so the loss is multiplied by the number of devices beforehand.",
    ),
    (
        "Each device sees only its own texts.",
        "That is why the contributions are added up. Nothing of any text is missing.",
    ),
    (
        "The padding is counted among the targets.",
        "Padding has the label -100 and was left out of the count.",
    ),
) | question(
    "activations with an adapter",
    "So few numbers are trained. Why do so many activations stay?",
    (
        "The gradient must pass through every layer to reach the first adapter.",
        "On its way it needs what those layers have kept. Only what the gradient of a frozen weight would have needed is let go. The softmax of the loss stays in any case.",
    ),
    (
        "An adapter's matrices are as large as the layers' own.",
        "They are thin: fewer than one number in a hundred is theirs.",
    ),
    (
        "AdamW keeps its averages for the frozen weights, too.",
        "It keeps none for them; and averages are optimizer state, not activations.",
    ),
)


LINES = {
    "token_backward": Puzzle(
        (
            "the world size forgotten",
            "sends after every micro-batch",
            "labels counted, not targets",
        ),
        exchange=((1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (9, 10)),
        moves=((10, 6, 2), (10, 7, 2), (12, 11, 2)),
    ),
}

OWN_RUNS = {
    "token_backward": token_ranks_run,
}


def divisor(draw):
    devices = draw.choice((2, 4))
    targets = [10 * draw.randint(3, 12) for _ in range(devices)]
    everywhere = sum(targets)
    return computed(
        f"DDP on {devices} devices, with {', '.join(map(str, targets))} targets in their windows. Each takes the sum of its tokens' losses. By what does the first device divide, so that the step is the mean over all targets?",
        (
            f"{everywhere / devices:g}",
            "By all targets over the number of devices, since DDP's mean divides by that number again.",
        ),
        [
            (f"{everywhere}", "DDP divides by the devices besides, and the step is too short."),
            (
                f"{targets[0]}",
                "Then a token weighs more where a device has few of them.",
            ),
            (f"{everywhere * devices}", "That divides by the number of devices twice."),
        ],
    )


def adapter(draw):
    layers, width = draw.choice((12, 24, 32)), draw.choice((1000, 2000))
    rank = draw.choice((4, 8, 16))
    return by_exercise(
        "adapter_state",
        [(width, width, True)] * layers + [(width, 4 * width, False)] * layers,
        rank,
        2,
        ask=f"{layers} layers, each with a matrix of {width:,} x {width:,} that gets a LoRA adapter of rank {rank}, and one of {width:,} x {4 * width:,} that gets none. The model is frozen in bf16. How much optimizer state has AdamW?",
        says="Two float32 numbers for each number of the two thin matrices.",
        mistakes=(
            "one of the two matrices",
            "one average",
            "a full matrix",
            "all layers adapted",
            "state for all weights",
        ),
        shown=lambda found: f"{found['optimizer state'] / 1e6:,.4g} MB",
    )


def recipe(draw):
    millions, kind = draw.choice((100, 300, 700)), draw.choice(("autocast", "bf16", "masters"))
    words = {
        "autocast": "a float32 model under autocast to bf16",
        "bf16": "model and optimizer all in bf16",
        "masters": "a bf16 model with float32 masters, its own gradients gone by then",
    }
    return by_exercise(
        "state_bytes",
        millions * 10**6,
        kind,
        ask=f"{millions} million weights, {words[kind]}, AdamW. How much do weights, gradients and averages take at the optimizer's step?",
        says="The weight, its gradient and two averages, each in the type that this recipe gives it; masters come beside the model's weights.",
        mistakes=(
            "autocast taken for bf16",
            "16 bytes with masters",
            "the model's gradients kept",
            "one of the four forgotten",
            "averages in float32",
        ),
        shown=lambda size: f"{size / 1e9:.4g} GB",
    )


RECALL = {"divisor": divisor, "adapter": adapter, "recipe": recipe}
