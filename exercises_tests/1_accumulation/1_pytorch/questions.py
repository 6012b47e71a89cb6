"""What the lesson 1_accumulation/1_pytorch asks besides its exercises."""

from exercises_tests.asking.own_runs import accumulated_run, backward_run
from exercises_tests.probing.toys import windows
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = question(
    "activations at batch 64",
    "Why have the activations grown just as much as the batch?",
    (
        "Each review leaves its own, and the backward pass needs them all.",
        "Nothing of them is shared between reviews, and they are held until backward comes to their layer.",
    ),
    (
        "Attention compares every review of the batch with every other.",
        "It compares the tokens of one review with each other. Were it between reviews, sixteen times the batch would make 256 times the scores.",
    ),
    (
        "The gradients of more reviews are larger.",
        "A gradient has the shape of its weight, whatever the batch: the reviews are summed into it.",
    ),
) | question(
    "length of the undivided step",
    "With many weights this undivided step would be too long as well, but in the right direction. What makes the direction right?",
    (
        "What is missing is one divisor, the same for every weight.",
        "The sum of the micro-batches' means is their mean times the number of micro-batches, in every entry. A vector times a number keeps its direction.",
    ),
    (
        "The micro-batches have nearly the same gradient.",
        "The first two had -10 and -50. Whatever they are, their sum points where their mean does.",
    ),
    (
        "The optimizer takes only the direction from `.grad`.",
        "SGD subtracts `.grad` times the learning rate: a longer gradient is a longer step.",
    ),
)

LINES = {
    "train_accumulated": Puzzle(
        (
            "steps on the first micro-batch",
            "loss not divided",
            "divided by the number of samples",
        ),
    ),
    "train_accumulated_to_the_end": Puzzle(
        ("last window divided by k", "loss not divided", "last window dropped"),
        moves=((7, 1, 2), (7, 2, 2)),
    ),
    "first_wrong_step": Puzzle(
        (
            "every window divided by k",
            "the shorter record ends the comparison",
            "only the steps counted",
        ),
        moves=((3, 4, 3),),
    ),
    "token_weighted_backward": Puzzle(
        ("divided by its own targets only", "labels not shifted", "labels counted, not targets"),
        exchange=((3, 4),),
        moves=((1, 2, 2), (1, 3, 2), (1, 4, 2), (1, 5, 2)),
    ),
}

OWN_RUNS = {
    "train_accumulated": lambda loop: accumulated_run(loop, 6, 3),
    "train_accumulated_to_the_end": lambda loop: accumulated_run(loop, 5, 3),
    "token_weighted_backward": backward_run,
}


def number_of_steps(draw):
    k = draw.choice((3, 4, 8))
    number = k * draw.randint(2, 5) + draw.randint(1, k - 1)
    whole, steps = number // k, len(windows([*range(number)], k))
    return computed(
        f"An epoch has {number} micro-batches, and {k} of them make a step. How many steps should an epoch have?",
        (str(steps), "What is left after the last whole window is a window too, a shorter one."),
        [
            (str(whole), "Then the last micro-batches make no step in their epoch."),
            (
                str(whole + number % k),
                "What is left over makes one window together, and not a step each.",
            ),
            (str(number), "That is a step for every micro-batch: nothing is accumulated."),
        ],
    )


def divisor(draw):
    k = draw.choice((4, 5, 8))
    number = k * draw.randint(2, 4) + draw.randint(2, k - 1)
    last = len(windows([*range(number)], k)[-1])
    return computed(
        f"{number} micro-batches with equally many targets, {k} accumulation steps. By what must the loss of the very last micro-batch be divided, if its step is to be the mean of its window?",
        (str(last), "By the number of micro-batches in that window, whatever the others hold."),
        [
            (
                str(k),
                "That is right in whole windows; the last one holds fewer, and its step would be too short.",
            ),
            (str(number), "That would make one mean over the whole epoch; a step is a window's."),
            ("1", "Undivided it would count as much as all of its window should together."),
        ],
    )


RECALL = {"number of steps": number_of_steps, "divisor": divisor}
