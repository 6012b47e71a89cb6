"""The exercises of the lesson 1_accumulation/1_pytorch."""

import torch

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    BACKWARD,
    CLIP,
    DIVIDED,
    DIVISION,
    END,
    LEAVE,
    LOOP,
    MICRO_BATCH,
    OWN_SIZE,
    SUM,
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


def in_epochs(model, optimizer, loss_function, micro_batches, accumulation_steps, epochs):
    """The repaired loop as `by_autograd`, once for each epoch."""
    for _ in range(epochs):
        by_autograd(model, optimizer, loss_function, micro_batches, accumulation_steps)


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
            "A window is complete when as many micro-batches as accumulation steps have been seen: count from 1, or compare the remainder with k - 1.",
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
        name="repaired_loop",
        points=2,
        probe=probes.repaired_loop,
        oracle=oracles.repaired_loop,
        truth="the large batch's",
        mistakes=mistakes.repaired_loop,
        hints=(
            "Which micro-batches stand behind the first step of the published loop, and what is left when an epoch ends?",
            "Three faults: the loss needs the targets, the condition must hold for the last micro-batch of a window, and the rest of an epoch needs its own step.",
            "(index + 1) % k == 0 or index + 1 == len(micro_batches); divide by the size of the window the micro-batch is in.",
        ),
        also_right=(
            {
                "if index + 1 == start + size:": "if (index + 1) % accumulation_steps == 0 or index + 1 == len(micro_batches):"
            },
            in_epochs,
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
        name="train_clipped",
        points=3,
        probe=probes.train_clipped,
        oracle=oracles.train_clipped,
        truth="the large batch's",
        mistakes=mistakes.train_clipped,
        hints=(
            "What does the large batch clip, and what does it report?",
            "Between the last backward of the window and the step: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).",
            "Add up loss.item() / k beside backward; when the window is complete, append the sum to your list and start it from zero again.",
        ),
        also_right=(
            {"append(window_loss)": "append(torch.tensor(window_loss))"},
            {
                DIVIDED: "loss = loss_function(model(inputs), targets)",
                "        window_loss += loss.item()\n": "        window_loss += loss.item() / accumulation_steps\n",
                CLIP: "            "
                + DIVIDE_GRADIENTS.format(" " * 16, "accumulation_steps")
                + CLIP,
            },
        ),
    ),
)
