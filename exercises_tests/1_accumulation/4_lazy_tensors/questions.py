"""What the lesson 1_accumulation/4_lazy_tensors asks besides its exercises."""

from exercises_tests.asking.own_runs import marked_run
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

OPTIONAL = True

BECAUSE = question(
    "graphs run with one mark in a window",
    "The marks run four graphs. What can have run all the others?",
    (
        "Something within each micro-batch needs a value that has not been computed yet.",
        "Whoever needs a value runs what leads to it. The next section looks up who that is.",
    ),
    (
        "Each layer of the model is a graph of its own.",
        "A recording goes on through all layers: at a mark everything that waits runs as one graph.",
    ),
    (
        "Each micro-batch has another size, and every size is another graph.",
        "All micro-batches are padded to one length. Besides, another size is compiled anew, but it makes no further run.",
    ),
) | question(
    "graphs run with one mark and .item()",
    "Where do these runs come from?",
    (
        "Each `.item()` runs what leads to its loss, and each mark runs what still waits.",
        "One for every micro-batch, and one for every window: as many as with two marks, but other graphs.",
    ),
    (
        "`.item()` is a mark behind the backward pass.",
        "It needs the loss alone: the backward pass goes on waiting, until the mark of the window.",
    ),
    (
        "Each loss is one run, and a few graphs had to run twice to be compiled.",
        "A graph that is compiled runs once, like one from the cache; the others are the marks' own.",
    ),
)

LINES = {
    "train_with_marks": Puzzle(
        ("loss not divided", "the loss read before the mark", "steps on the first micro-batch"),
        moves=((8, 7, 2),),
    ),
    "breaking_lines": Puzzle(
        ("the marks, too", "a line about a mark taken for one", "the last row not looked at"),
    ),
}

OWN_RUNS = {"train_with_marks": lambda loop: marked_run(loop, 6, 3)}


def marks(draw):
    k, number_of_windows = draw.choice((2, 4, 8)), draw.randint(2, 6)
    number = k * number_of_windows
    return computed(
        f"{number} micro-batches on the lazy device, {k} accumulation steps; a mark behind every backward pass, and one behind every update. Nothing falls back. How many graphs are run?",
        (
            str(number + number_of_windows),
            "One for the forward and backward pass of each micro-batch, one for each update.",
        ),
        [
            (str(number), "The updates have marks of their own, so each of them is a graph, too."),
            (
                str(number_of_windows),
                "So many are run with the marks behind the updates alone, each of them a whole window.",
            ),
            (
                str(2 * number),
                "There are fewer updates than micro-batches: one in each window.",
            ),
        ],
    )


RECALL = {"marks": marks}
