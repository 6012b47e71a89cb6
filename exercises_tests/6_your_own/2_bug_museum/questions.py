"""What the lesson 6_your_own/2_bug_museum asks besides its exercises."""

from exercises_tests.asking.own_runs import average_run, windows_run
from exercises_tests.probing.toys import windows
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = (
    question(
        "sum of a step's shares in exhibit 1",
        "Why can the loss fall all the same, with steps this long?",
        (
            "They point the right way; only their length is wrong.",
            "A sum points where the mean does, and at a small learning rate a step 4 times as long still goes down. A finite loss says even less.",
        ),
        (
            "Most of the four gradients cancel in the sum.",
            "In the mean they cancel just as much; the sum is 4 times as long as it.",
        ),
        (
            "Each micro-batch lowers the loss of its own samples.",
            "There is one step for four micro-batches, with one gradient for all of them.",
        ),
    )
    | question(
        "micro-batches in exhibit 6",
        "Why is a window only half as long?",
        (
            "The accelerator counts blocks, and each micro-batch opens two.",
            "With an even k, it has counted a whole window after half of the micro-batches.",
        ),
        (
            "The two models share the micro-batches among them.",
            "Every micro-batch goes through both blocks; none is left out.",
        ),
        (
            "The other model has no gradient in half of the steps.",
            "It gets none at all here, and the count does not depend on gradients.",
        ),
    )
    | question(
        "sum of the second step of exhibit 8",
        "Where does the surplus come from?",
        (
            "The rest of the first epoch was left in `.grad`.",
            "Nobody stepped with it and nobody emptied it, so it is added to the next epoch's first window.",
        ),
        (
            "The second epoch divides by its own, shorter window.",
            "Every micro-batch is divided by the same number in both epochs.",
        ),
        (
            "Some micro-batches are read twice in an epoch.",
            "Each epoch reads each once. In the receipt, two numbers come from the epoch before.",
        ),
    )
)

OWN_RUNS = {
    "cured_windows": lambda loop: windows_run(loop, 5, 3),
    "cured_average": lambda loop: average_run(loop, 6, 3),
}


FAULTS = {
    "every window divided by its own length": (
        len,
        "Then the shares of each window add up to 1, those of the short one as well.",
    ),
    "short window divided by k": (
        lambda window: None,
        "Then the shares are the same in all windows, and those of the short one add up to less than 1.",
    ),
    "not divided": (lambda window: 1, "Then each share is 1."),
    "divided twice": (
        lambda window: len(window) ** 2,
        "Then each share is 1 over the square of its window's length.",
    ),
}


def fault(draw):
    k = draw.choice((3, 4, 5))
    number = k + draw.randint(2, k - 1)
    name = draw.choice([*FAULTS])
    divisor, says = FAULTS[name]
    steps = [[1 / (divisor(window) or k)] * len(window) for window in windows([*range(number)], k)]
    shares = "; ".join(" ".join(f"{share:.3g}" for share in step) for step in steps)
    return computed(
        f"{number} micro-batches, k = {k}. The shares of the micro-batches in the two steps: {shares}. What did this run do?",
        (name, says.replace("Then the", "The").replace("Then each", "Each")),
        [(other, why) for other, (_, why) in FAULTS.items() if other != name],
    )


def leaked(draw):
    k = draw.choice((4, 5, 8))
    number = k + draw.randint(1, k - 1)
    left = len(windows([*range(number)], k)[-1])
    return computed(
        f"An epoch has {number} micro-batches and k = {k}. Each loss is divided by k, a loop steps where the epoch's count is a multiple of k, and what is left stays in `.grad`. What do the shares of the second epoch's first step add up to?",
        (
            f"{(k + left) / k:.3g}",
            "A whole window, and what the first epoch has left.",
        ),
        [
            ("1", "It would be, had the first epoch left nothing in `.grad`."),
            (f"{left / k:.3g}", "That is the part which the first epoch has left."),
            (
                f"{number / k + 1:.3g}",
                "The first epoch's whole windows were stepped with and emptied.",
            ),
        ],
    )


def unscaled(draw):
    k, scale = draw.choice((3, 4, 5)), draw.choice((2, 4, 8, 16))
    return computed(
        f"A gradient scaler with scale {scale}, k = {k}, and `unscale_` and `update` after every micro-batch's backward pass in place of once (the scale stays the same). By what is the first micro-batch's scaled gradient divided in all when the optimizer steps?",
        (
            f"{scale**k:,}",
            "Everything that is in `.grad` is divided each time, and the first micro-batch is there from the beginning.",
        ),
        [
            (f"{scale}", "That is right for the last micro-batch only: it was there once."),
            (f"{scale * k:,}", "It is divided again and again, so the divisors are multiplied."),
            (f"{scale ** (k - 1):,}", "There is one division more: the last, before the step."),
        ],
    )


RECALL = {"leaked": leaked, "unscaled": unscaled, "fault": fault}
