"""The exercises of the lesson 6_your_own/2_bug_museum."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    AVERAGE,
    BACKWARD,
    CLIP,
    DIVIDED,
    END,
    LOOP,
    SHORT_LAST,
    STEP,
    ZERO,
)

EXERCISES = (
    Exercise(
        name="name_fault",
        points=4,
        probe=probes.name_fault,
        oracle=oracles.name_fault,
        truth="the right one",
        mistakes=mistakes.name_fault,
        hints=(
            "Write down one epoch of six micro-batches, k = 4, for each row of the table: which numbers differ?",
            "Begin with which micro-batches are in the steps: that tells `only the last`, `early` and `rest lost`. The shares tell the others.",
            "The first step's shares: 1 is `not divided`, 1/k² is `divided twice`. Then the last step's: 1/k in a window shorter than k is the short window's fault. Compare floats with a tolerance.",
        ),
        also_right=(
            {SHORT_LAST: "abs(sum(last) - len(last) % k / k) < 0.01"},
            {"len(behind) == k - 1": "behind == list(range(k - 1))"},
        ),
    ),
    Exercise(
        name="cured_windows",
        points=3,
        probe=probes.cured_windows,
        oracle=oracles.cured_windows,
        truth="the right one",
        mistakes=mistakes.cured_windows,
        hints=(
            "What would the receipts of this loop show, and what the learning rates of its steps?",
            "Cut the list into windows first; each knows its own length.",
            "For each window: backward() of loss / len(window) for its micro-batches; then step, zero_grad, scheduler.step().",
        ),
        also_right=(
            {
                END: "        optimizer.step()\n        scheduler.step()\n        optimizer.zero_grad()\n"
            },
            {BACKWARD: "(loss * len(window) ** -1).backward()"},
            {
                LOOP: """    for index, (inputs, targets) in enumerate(micro_batches):
        size = min(k, len(micro_batches) - index // k * k)
        (loss_function(model(inputs), targets) / size).backward()
        if index % k == size - 1:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
"""
            },
        ),
    ),
    Exercise(
        name="cured_average",
        points=3,
        probe=probes.cured_average,
        oracle=oracles.cured_average,
        truth="the large batch's",
        mistakes=mistakes.cured_average,
        hints=(
            "What does the large batch do once, that this loop does for each micro-batch?",
            "Two things move into the `if`: the clipping before the step, the average behind it.",
            "if number % k == 0: clip, step, zero_grad, then the average under torch.no_grad(), once.",
        ),
        also_right=(
            {ZERO + AVERAGE: AVERAGE + ZERO},
            {
                f"            {CLIP}{STEP}{ZERO}": f"            length = {CLIP}            assert length >= 0\n{STEP}{ZERO}",
                DIVIDED: "loss.div(k).backward()",
            },
        ),
    ),
)
