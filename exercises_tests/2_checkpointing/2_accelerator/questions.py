"""What the lesson 2_checkpointing/2_accelerator asks besides its exercises."""

from exercises_tests.asking.own_runs import checkpointed_run, layers_run
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed
from trainlean.setup import TrainingSetup

BECAUSE = question(
    "activations, accumulated and checkpointed",
    "What are the activations that are left?",
    (
        "All of one layer, which is being run again, and the inputs of the others.",
        "A layer's inside is there only while that layer has its turn in the backward pass.",
    ),
    (
        "All of the last layer, which is not checkpointed.",
        "The switch checkpoints every layer. The last one is run again, too, and that is why its inside is there.",
    ),
    (
        "The inputs of the four layers, and the gradients.",
        "Gradients are a category of their own, and have not changed by a byte. And the layer at work needs more than its input.",
    ),
)

LINES = {
    "train_checkpointed": Puzzle(
        ("the model in eval mode", "only every second layer", "backward without the accelerator"),
        exchange=((1, 2), (1, 3), (2, 3)),
        moves=((8, 4, 2), (8, 7, 2)),
    ),
}

OWN_RUNS = {
    "train_checkpointed": lambda loop: checkpointed_run(loop, 6, 4),
    "run_checkpointed": lambda run: layers_run(lambda blocks, hidden: run(blocks, hidden, None), 4),
}


def micro_batch(draw):
    size, k = draw.choice((2, 4, 8)), draw.choice((2, 4, 8))
    setup = TrainingSetup(micro_batch=size, accumulation_steps=k)
    return computed(
        f"Micro-batches of {size}, {k} accumulation steps, every layer checkpointed. How many samples have their layers' inputs in memory at the same time?",
        (
            str(setup.micro_batch),
            "Those of one micro-batch: its backward pass frees them before the next one begins.",
        ),
        [
            (
                str(setup.micro_batch * setup.accumulation_steps),
                "That is the batch of a step. Accumulation holds its gradients together, not its activations.",
            ),
            (
                "1",
                "A micro-batch goes through the model as one tensor, all samples of it together.",
            ),
            (
                str(setup.accumulation_steps),
                "Accumulation steps are counted in micro-batches, and one of these is there at a time.",
            ),
        ],
    )


RECALL = {"micro-batch": micro_batch}
