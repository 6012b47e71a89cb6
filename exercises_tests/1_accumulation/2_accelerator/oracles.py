"""What must be seen in the lesson 1_accumulation/2_accelerator: the large batch, and a straight line to 0."""

import numpy as np
from torch.nn.functional import mse_loss

from exercises_tests.probing.toys import windows
from exercises_tests.truth.large_batch import large_batch_training, large_batches

from .probes import (
    CLIPPED,
    CLIPPED_REST,
    GROUPS,
    LEARNING_RATE,
    OF_EACH_RANK,
    SCHEDULES,
    distributed_draw,
    distributed_training,
    draw_epochs,
    factors_case,
    first_rate,
    held_at_once,
    only_counts,
    schedule_case,
)


def train_with_accelerator(seed):
    shown = {}
    for case in (*CLIPPED, CLIPPED_REST):
        seen = large_batch_training(case, seed, mse_loss, LEARNING_RATE, case.max_norm)
        shown |= only_counts(seen) if case is CLIPPED_REST else seen
        shown |= held_at_once(1, case)
    return shown


def linear_decay(seed):
    shown = {}
    for micro_batches, accumulation_steps, epochs, processes in SCHEDULES:
        seen_by_one_device = range(micro_batches // processes)
        steps = sum(len(windows(seen_by_one_device, accumulation_steps)) for _ in range(epochs))
        case = schedule_case(micro_batches, accumulation_steps, epochs, processes)
        for whose, times in GROUPS.items():
            shown[f"the learning rate{whose} at each optimizer step ({case})"] = [
                times * first_rate(seed) * (1 - step / steps) for step in range(steps)
            ]
            shown[f"the learning rate{whose} after the last step ({case})"] = 0.0
    return shown


def train_synchronised_once(seed):
    """The windows of all ranks glued together, with one all-reduce for each."""
    shown = {}
    for case in OF_EACH_RANK:
        model, shares = distributed_draw(case, seed)
        of_ranks = [windows(share, case.accumulation_steps) for share in shares]
        groups = [sum(group, []) for group in zip(*of_ranks, strict=True)]
        recorder = large_batches(model, groups, mse_loss, LEARNING_RATE)
        sizes = [len(window) for window in of_ranks[0]]
        shown |= distributed_training(case, recorder, [1] * len(sizes), sizes)
        shown[f"the largest difference between the ranks' weights ({case})"] = 0.0
        shown[f"the number of micro-batches with no_sync in the backward pass only ({case})"] = 0
        shown |= held_at_once(1, case)
        shown[f"whether the micro-batches are as they were ({case})"] = True
        shown[f"whether the model synchronises afterwards ({case})"] = True
    return shown


def loss_factor(seed):
    """What divided by k is one part of the window's mean, window by window."""
    shown = {}
    for n, k in draw_epochs(seed):
        sizes = [len(window) for window in windows(list(range(n)), k) for _ in window]
        shown[factors_case(n, k)] = np.array([k / size for size in sizes])
    return shown
