"""What the oracles of several lessons share: the large batch, from which accumulation must not differ."""

import torch

from exercises_tests.probing.toys import Case, Recorder, draw, training, windows
from trainlean.exercises.comparing import Observation


def large_batch_training(case: Case, seed: int, loss_function, learning_rate: float) -> Observation:
    """The truth of accumulation: the micro-batches of each window glued to one large batch, one step each, by SGD."""
    model, micro_batches = draw(case, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    recorder = Recorder(model, optimizer)
    groups = windows(micro_batches, case.accumulation_steps)
    for window in groups:
        inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
        loss_function(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return training(case, recorder, [len(window) for window in groups])
