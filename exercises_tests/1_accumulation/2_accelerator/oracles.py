"""What must be seen in the lesson 1_accumulation/2_accelerator: the large batch, and a straight line to 0."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from exercises_tests.probing.toys import Recorder, draw, training, windows

from .probes import (
    CLIPPED,
    CLIPPED_REST,
    LEARNING_RATE,
    OF_EACH_RANK,
    SCHEDULES,
    distributed_draw,
    distributed_training,
    draw_epochs,
    factors_case,
    first_rate,
    only_counts,
    schedule_case,
)


def large_batches(model, groups, max_norm=math.inf) -> Recorder:
    """Each group of micro-batches glued to one large batch, one step each, by SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    recorder = Recorder(model, optimizer)
    for group in groups:
        inputs, targets = (torch.cat(parts) for parts in zip(*group, strict=True))
        mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return recorder


def train_with_accelerator(seed):
    shown = {}
    for case in (*CLIPPED, CLIPPED_REST):
        model, micro_batches = draw(case, seed)
        groups = windows(micro_batches, case.accumulation_steps)
        recorder = large_batches(model, groups, case.max_norm)
        seen = training(case, recorder, [len(window) for window in groups])
        shown |= only_counts(seen) if case is CLIPPED_REST else seen
    return shown


def linear_decay(seed):
    shown = {}
    for micro_batches, accumulation_steps, epochs, processes in SCHEDULES:
        seen_by_one_device = range(micro_batches // processes)
        steps = sum(len(windows(seen_by_one_device, accumulation_steps)) for _ in range(epochs))
        case = schedule_case(micro_batches, accumulation_steps, epochs, processes)
        shown[f"the learning rate at each optimizer step ({case})"] = [
            first_rate(seed) * (1 - step / steps) for step in range(steps)
        ]
        shown[f"the learning rate after the last step ({case})"] = 0.0
    return shown


def train_synchronised_once(seed):
    """The windows of all ranks glued together, with one all-reduce for each."""
    shown = {}
    for case in OF_EACH_RANK:
        model, shares = distributed_draw(case, seed)
        of_ranks = [windows(share, case.accumulation_steps) for share in shares]
        recorder = large_batches(model, [sum(group, []) for group in zip(*of_ranks, strict=True)])
        sizes = [len(window) for window in of_ranks[0]]
        shown |= distributed_training(case, recorder, [1] * len(sizes), sizes)
        shown[f"the largest difference between the ranks' weights ({case})"] = 0.0
        shown[f"the number of micro-batches with no_sync in the backward pass only ({case})"] = 0
    return shown


def loss_factor(seed):
    """What divided by k is one part of the window's mean, window by window."""
    shown = {}
    for n, k in draw_epochs(seed):
        sizes = [len(window) for window in windows(list(range(n)), k) for _ in window]
        shown[factors_case(n, k)] = np.array([k / size for size in sizes])
    return shown
