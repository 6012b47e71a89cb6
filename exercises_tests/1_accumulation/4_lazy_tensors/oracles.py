"""What must be seen in the lesson 1_accumulation/4_lazy_tensors: counted by hand, and trained without lazy tensors."""

import numpy as np
import torch

from exercises_tests.probing.toys import draw, flat, windows

from .probes import CASES, GRADIENTS, SGD, drawn_calls, drawn_gradients, squared_error


def oracle_training(with_losses=False):
    """Two graphs: one for each micro-batch, one for each update. The weights and losses are the large batch's, not lazy."""

    def oracle(seed):
        shown = {}
        for case in CASES:
            n, k = case.micro_batches, case.accumulation_steps
            model, data = draw(case, seed)
            optimizer = SGD(model.parameters())
            losses = []
            for window in windows(data, k):
                inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
                optimizer.zero_grad()
                loss = squared_error(model(inputs), targets)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            earlier = np.array([index + index // k for index in range(n)])
            shown[f"the number of graphs run before each optimizer step ({case})"] = np.array(
                [(step + 1) * k + step for step in range(n // k)]
            )
            shown[f"the number of gradients that still wait at each optimizer step ({case})"] = (
                np.zeros(n // k, dtype=int)
            )
            shown[f"the number of graphs run before each backward pass ({case})"] = earlier
            shown[f"the number of graphs run before each forward pass ({case})"] = earlier
            if not with_losses:
                shown[f"the number of graphs run in all ({case})"] = n + n // k
            shown[f"the number of weights whose last update was left unrun ({case})"] = 0
            shown[f"the number of gradients left unrun ({case})"] = 0
            shown[f"the weight at the end ({case})"] = flat(model)
            if with_losses:
                shown[f"the returned losses ({case})"] = np.array(losses)
        return shown

    return oracle


train_with_marks = repaired_lazy_loop = oracle_training()
train_without_breaks = oracle_training(with_losses=True)


def fallbacks(seed):
    _, calls = drawn_calls(seed)
    return {
        "what train() called without a lazy kernel": ", ".join(
            f"{name} {calls.count(name)}" for name in sorted(set(calls))
        ),
        "the same of a train() with lazy kernels only": "nothing",
        "how often train() was called, for what train() called without a lazy kernel": 1,
        "how often train() was called, for the same of a train() with lazy kernels only": 1,
        "whether counters of calls before train() are still there": True,
    }


def clip_without_fallback(seed):
    shown = {}
    gradients, limits = drawn_gradients(seed)
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for where, limit in zip(GRADIENTS, limits, strict=True):
        shown[f"the operators without a lazy kernel ({where})"] = "none"
        shown[f"whether a graph was run while clipping ({where})"] = False
        for index, gradient in enumerate(gradients):
            shown[f"gradient {index + 1} after clipping ({where})"] = gradient * min(
                1.0, limit / length.item()
            )
    return shown
