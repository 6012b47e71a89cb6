"""The exercises of the lesson 1_accumulation/1_pytorch."""

import torch

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    BACKWARD,
    DIVISION,
    END,
    FIRST_OF_ALL,
    LEAVE,
    LOOP,
    MICRO_BATCH,
    OWN_SIZE,
    SIDE_BY_SIDE,
    SUM,
    WINDOW,
    one_by_one,
)

# ---------------------------------------------------------------- other right ways


def by_autograd(model, optimizer, loss_function, micro_batches, accumulation_steps):
    """Gradients asked for and added up by hand, window by window."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        sums = [torch.zeros_like(weight) for weight in weights]
        for inputs, targets in window:
            parts = torch.autograd.grad(loss_function(model(inputs), targets), weights)
            for total, part in zip(sums, parts, strict=True):
                total += part / len(window)
        for weight, total in zip(weights, sums, strict=True):
            weight.grad = total
        optimizer.step()
        optimizer.zero_grad()


DIVIDE_GRADIENTS = "for p in model.parameters():\n{0}if p.grad is not None:\n{0}    p.grad /= {1}\n"

# ---------------------------------------------------------------- the exercises

EXERCISES = (
    Exercise(
        name="train_accumulated",
        points=3,
        probe=probes.train_accumulated,
        oracle=oracles.train_accumulated,
        truth="the large batch's",
        mistakes=mistakes.train_accumulated,
        hints=(
            "When does `.grad` start again from zero, and who makes it do so?",
            "A window is complete when as many micro-batches as accumulation steps have been seen: count from 1 and look for the remainder 0, or from 0 and look for k - 1.",
            "For every micro-batch: forward, loss / k, backward. When the window is complete: step, then zero_grad.",
        ),
        also_right=(
            {
                LOOP: LOOP.replace(
                    "        loss =",
                    "        if number % accumulation_steps == 1 or accumulation_steps == 1:\n            optimizer.zero_grad()\n        loss =",
                ),
                "            optimizer.step()\n            optimizer.zero_grad()": "            optimizer.step()",
            },
            {
                BACKWARD: "loss.backward()",
                "            optimizer.step()": "            "
                + DIVIDE_GRADIENTS.format(" " * 16, "accumulation_steps")
                + "            optimizer.step()",
            },
            by_autograd,
        ),
    ),
    Exercise(
        name="train_accumulated_to_the_end",
        points=3,
        probe=probes.train_accumulated_to_the_end,
        oracle=oracles.train_accumulated_to_the_end,
        truth="the large batch's",
        mistakes=mistakes.train_accumulated_to_the_end,
        hints=(
            "For 6 micro-batches and k = 4: how many steps does the large batch make, and over how many micro-batches is each one's mean?",
            "A window is also complete when the micro-batches have run out: index + 1 == len(micro_batches).",
            "Window by window is easiest: take micro_batches[start : start + k]; its own len() is the divisor, and one step follows it.",
        ),
        also_right=(
            one_by_one("(index + 1) % k == 0 or index + 1 == n", OWN_SIZE),
            {
                **one_by_one("(index + 1) % k == 0", OWN_SIZE),
                "    # END SOLUTION": "    if n % k:\n        optimizer.step()\n        optimizer.zero_grad()\n    # END SOLUTION",
            },
            {
                MICRO_BATCH: MICRO_BATCH.replace(DIVISION, "loss.backward()"),
                END: "        " + DIVIDE_GRADIENTS.format(" " * 12, "len(window)") + END,
            },
            by_autograd,
        ),
    ),
    Exercise(
        name="first_wrong_step",
        points=2,
        probe=probes.first_wrong_step,
        oracle=oracles.first_wrong_step,
        mistakes=mistakes.first_wrong_step,
        hints=(
            "Which steps, and with what in them, should the run have made?",
            "Write the record of the right run first: for each epoch, windows of `accumulation_steps` of its numbers, each number with the size of its window. Then go through both records side by side.",
            "itertools.zip_longest(steps, right) goes on to the end of the longer one; return the number, from 1, of the first pair that is not equal.",
        ),
        also_right=(
            {f"{SIDE_BY_SIDE}            return number\n    return None": FIRST_OF_ALL},
            {"dict.fromkeys(window, len(window))": "{one: len(window) for one in window}"},
        ),
    ),
    Exercise(
        name="token_weighted_backward",
        points=3,
        probe=probes.token_weighted_backward,
        oracle=oracles.token_weighted_backward,
        truth="the large batch's",
        mistakes=mistakes.token_weighted_backward,
        hints=(
            "What would be the divisor if the window were one large batch?",
            "Count first, from the labels alone: labels[:, 1:].ne(-100).sum(), added up over the window.",
            "Then for every micro-batch: cross_entropy with reduction='sum' over logits[:, :-1] and labels[:, 1:], divided by that count, backward.",
        ),
        also_right=(
            {SUM: "", LEAVE: "(loss * targets.ne(-100).sum() / targets_in_window).backward()"},
            {
                LEAVE: "loss.backward()\n    "
                + DIVIDE_GRADIENTS.format(" " * 8, "targets_in_window")
            },
        ),
    ),
    Exercise(
        name="places",
        points=3,
        probe=probes.places,
        oracle=oracles.places,
        truth="the large batch's",
        mistakes=mistakes.places,
        hints=(
            "What does the large batch do once, which your loop does once for a window?",
            "Four lines run for every micro-batch. At the end of the window the gradient is first brought back to its own length, then used, and then everything is made ready for the next window.",
            "The gradients are too long by the scaler's factor until `unscale`; so clip after it and before `step`; `update` and `schedule` come after `step`.",
        ),
        also_right=(
            {'"add", "backward"': '"backward", "add"'},
            {WINDOW: '"report", "unscale", "clip", "step", "zero", "update", "schedule"'},
            {WINDOW: '"unscale", "report", "clip", "step", "schedule", "update", "zero"'},
        ),
    ),
)
