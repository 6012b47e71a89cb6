"""What the lesson 1_accumulation/3_trainer asks besides its exercises."""

from exercises_tests.probing.toys import windows
from trainlean.exercises.questions import question
from trainlean.exercises.recall import computed

BECAUSE = question(
    "peak memory of 4 x 4, 16 x 1 being 100",
    "The activations went down by three quarters. Why did the peak go down by less?",
    (
        "The weights are what they were, and the sum of the gradients waits while the next micro-batch goes forward.",
        "With 16 x 1 no gradients are left when the next forward pass begins. What waits here takes back a part of what was saved.",
    ),
    (
        "The Trainer holds all four micro-batches' activations until the step.",
        "Each backward pass frees its own before the next forward pass begins; that is why the activations have shrunk.",
    ),
    (
        "The Trainer keeps a second copy of the weights to accumulate in.",
        "It accumulates in `.grad`, and the weights are there once, in both runs.",
    ),
) | question(
    "first gradient of 4 x 4, relative to the large batch's",
    "What must have happened to the micro-batches' losses?",
    (
        "They were added up, and nobody divided by their number.",
        "Loss and gradient are both too large by the number of micro-batches. Who should have divided, the section *The proof* looks up.",
    ),
    (
        "They were divided, but each of them twice.",
        "Then the gradient would be shorter than the large batch's, not longer.",
    ),
    (
        "They were taken over other reviews than the large batch's.",
        "Both first steps are made of the same 16 reviews; other reviews would not give a whole number of times.",
    ),
)


def steps(draw):
    size, k, devices = draw.choice((2, 4, 8)), draw.choice((2, 4, 8)), draw.choice((1, 2, 4))
    step = size * k * devices
    samples = step * draw.randint(3, 20)
    number = len(windows([*range(samples)], step))
    return computed(
        f"`per_device_train_batch_size={size}`, `gradient_accumulation_steps={k}`, {devices} device{'s' * (devices > 1)}. How many optimizer steps does an epoch of {samples:,} samples make?",
        (
            f"{number:,}",
            f"A step takes {step} samples: micro-batch times accumulation steps times devices.",
        ),
        [
            (
                f"{samples // size:,}",
                "That is the number of micro-batches; a step is made of several.",
            ),
            (
                f"{samples // (size * k):,}",
                "That would be right on one device; each of them takes its own micro-batches.",
            ),
            (
                f"{samples // (size * devices):,}",
                "Without accumulation; a step waits for all micro-batches of its window.",
            ),
        ],
    )


RECALL = {"steps": steps}
