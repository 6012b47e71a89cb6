"""What the lesson 1_accumulation/2_accelerator asks besides its exercises."""

from exercises_tests.asking.own_runs import accelerated_run, synchronised_run
from exercises_tests.probing.toys import windows
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise, computed

BECAUSE = (
    question(
        "last gradient with Accelerate",
        "Why is the last gradient too small?",
        (
            "The losses were divided by the accumulation steps, and the last window holds fewer micro-batches.",
            "Each micro-batch got the share that it would have in a whole window, and two of them are there.",
        ),
        (
            "The last micro-batches hold fewer samples.",
            "All ten are equally large. It is their number that is smaller, in the last window.",
        ),
        (
            "Only the last micro-batch was counted; the one before was thrown away.",
            "Both are in the third step's receipt, with equal shares.",
        ),
    )
    | question(
        "learning rate at the end, length 10",
        "Why did the rate not come down to 0?",
        (
            "The scheduler moved with the optimizer, and fewer steps were taken than the line is long.",
            "In the middle of a window the prepared scheduler stands still, like the prepared optimizer.",
        ),
        (
            "The scheduler moved with every micro-batch, but in smaller parts.",
            "Look at the printed rates: from one optimizer step to the next it fell by one tenth, a single whole move.",
        ),
        (
            "The last window is short, so its step did not count for the schedule.",
            "It did: after the third step the rate is lower than at the third step.",
        ),
    )
    | question(
        "all-reduces with no_sync around backward",
        "Why was nothing saved?",
        (
            "The model looks at `no_sync`'s flag in its forward pass, which stands outside of the block.",
            "When the block begins, it has been decided already that the coming backward pass will synchronise.",
        ),
        (
            "`no_sync` needs Accelerate to work.",
            "It is a method of torch's own DistributedDataParallel. Around both passes it works.",
        ),
        (
            "Every micro-batch must be averaged over the ranks, or the step is wrong.",
            "The mean over the ranks may be taken of the sum, once: around both passes the gradient is as right.",
        ),
    )
)

LINES = {
    "train_with_accelerator": Puzzle(
        ("a sum over the window, not its mean", "divided twice", "data loader not prepared"),
        moves=((5, 4, 2), (7, 6, 4), (7, 6, 2), (8, 7, 2), (8, 7, 4), (8, 2, 2)),
    ),
    "train_synchronised_once": Puzzle(
        ("never synchronised", "loss not divided", "synchronised on the first micro-batch"),
        moves=((6, 5, 3), (8, 1, 2), (8, 2, 2)),
    ),
}

OWN_RUNS = {
    "train_with_accelerator": lambda loop: accelerated_run(loop, 5, 2),
    "train_synchronised_once": lambda loop: synchronised_run(loop, 10, 3),
}


def factor(draw):
    k = draw.choice((4, 6, 8))
    number = k * draw.randint(1, 3) + draw.choice((k // 2, k // 2 + 1))
    return by_exercise(
        "loss_factor",
        number - 1,
        number,
        k,
        ask=f"{number} micro-batches, {k} accumulation steps, Accelerate. By what is the loss of the last micro-batch multiplied, so that the last step is its window's mean?",
        says="The accelerator divides by the accumulation steps; multiplied with their ratio to the window's size, it is divided by that size.",
        mistakes=(
            "the last window as it is",
            "the ratio upside down",
            "not divided at all",
        ),
        shown=lambda value: f"{value:.3g}",
    )


def rate(draw):
    k, epochs = draw.choice((2, 4, 5)), draw.choice((2, 3))
    number = k * draw.randint(2, 4)
    length = number * epochs
    steps = len(windows([*range(number)], k)) * epochs
    left = 1 - steps / length
    return computed(
        f"{number} micro-batches an epoch, {epochs} epochs, {k} accumulation steps, one device. A prepared scheduler falls in a straight line from 1 to 0, and its length was given as {length}. At which rate does the training end?",
        (f"{left:.2g}", f"It moves once for each optimizer step, {steps} times in all."),
        [
            (
                "0",
                "It would, if the scheduler moved with every micro-batch; it waits for the step.",
            ),
            (
                f"{1 - steps / epochs / length:.2g}",
                "So it stands after the first epoch; the schedule goes on through the others.",
            ),
            ("1", "It moves with each optimizer step, so it does come down a little."),
        ],
    )


RECALL = {"factor": factor, "rate": rate}
