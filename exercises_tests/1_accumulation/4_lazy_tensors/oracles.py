"""What must be seen in the lesson 1_accumulation/4_lazy_tensors: counted by hand, and trained without lazy tensors."""

import numpy as np
import torch

from exercises_tests.probing.toys import draw, flat, windows

from .probes import (
    CASES,
    GRADIENTS,
    HERE,
    MARKS,
    SGD,
    TRAININGS,
    draw_loops,
    drawn_calls,
    drawn_gradients,
    in_order,
    squared_error,
)


def train_with_marks(seed):
    """Two graphs: one for each micro-batch, one for each update. The weights are the large batch's, not lazy."""
    shown = {}
    for case in CASES:
        n, k = case.micro_batches, case.accumulation_steps
        model, data = draw(case, seed)
        optimizer = SGD(model.parameters())
        for window in windows(data, k):
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            optimizer.zero_grad()
            squared_error(model(inputs), targets).backward()
            optimizer.step()
        earlier = np.array([index + index // k for index in range(n)])
        shown |= {
            f"the number of graphs run before each optimizer step ({case})": np.array(
                [(step + 1) * k + step for step in range(n // k)]
            ),
            f"the number of gradients whose backward pass waits at each optimizer step ({case})": np.zeros(
                n // k, dtype=int
            ),
            f"the number of graphs run before each backward pass ({case})": earlier,
            f"the number of graphs run before each forward pass ({case})": earlier,
            f"the number of graphs run in all ({case})": n + n // k,
            f"the number of weights whose last update was left unrun ({case})": 0,
            f"the number of gradients left unrun ({case})": 0,
            f"the weight at the end ({case})": flat(model),
            f"whether the list of micro-batches is as it was ({case})": True,
        }
    return shown


def breaking_lines(seed):
    """Each row beside the one above it."""
    shown = {}
    for what, before, rows in draw_loops(seed):
        above = [before, *(graphs for _, graphs in rows[:-1])]
        broken = {line for (line, graphs), one in zip(rows, above, strict=True) if graphs != one}
        shown[f"the set of breaking lines of a loop {what}"] = in_order(broken.difference(MARKS))
    return shown | {"whether all rows are as they were": True}


def fallbacks(seed):
    _, calls = drawn_calls(seed)
    called = [f"{name} {calls.count(name)}" for name in sorted(set(calls))]
    shown = {}
    for which, words in zip(TRAININGS, (", ".join(called), "nothing"), strict=True):
        shown[f"the process in which {which} was called"] = HERE
        shown[f"what {which} called without a lazy kernel"] = words
        shown[f"the number of times that {which} was called"] = "1"
    return shown | {"whether counters of calls before train() are still there": True}


def clip_without_fallback(seed):
    shown = {}
    gradients, limits = drawn_gradients(seed)
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for where, limit in zip(GRADIENTS, limits, strict=True):
        shown[f"the list of operators without a lazy kernel ({where})"] = "none"
        shown[f"whether a graph was run while clipping ({where})"] = False
        for index, gradient in enumerate(gradients):
            shown[f"gradient {index + 1} after clipping ({where})"] = gradient * min(
                1.0, limit / length.item()
            )
        shown[f"whether a parameter without a gradient still has none ({where})"] = True
        shown[f"whether the weights are as they were ({where})"] = True
    return shown
