"""What the oracles of several lessons share: the large batch, from which accumulation must not differ."""

import math

import torch
from torch.nn.utils import clip_grad_norm_

from exercises_tests.probing.toys import Case, Recorder, draw, training, windows
from trainlean.exercises.comparing import Observation


def large_batches(
    model, groups, loss_function, learning_rate: float, max_norm: float = math.inf
) -> Recorder:
    """Each group of micro-batches (inputs, targets) glued to one large batch, one clipped step each, by SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    recorder = Recorder(model, optimizer)
    for group in groups:
        inputs, targets = (torch.cat(parts) for parts in zip(*group, strict=True))
        loss_function(model(inputs), targets).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return recorder


def large_batch_training(
    case: Case, seed: int, loss_function, learning_rate: float, max_norm: float = math.inf
) -> Observation:
    """The truth of accumulation: the micro-batches of each window glued to one large batch, one step each, by SGD."""
    model, micro_batches = draw(case, seed)
    groups = windows(micro_batches, case.accumulation_steps) * case.epochs
    recorder = large_batches(model, groups, loss_function, learning_rate, max_norm)
    return training(case, recorder, [len(window) for window in groups])
