"""Several trainings measured side by side, so that a passing disturbance does not hit only one of them."""

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from trainlean import measure  # by the course's name for it, wherever it lives
from trainlean.costs.runs import Run, save_run


def measure_in_turn(
    trainings: Sequence[tuple[Callable[[], object], dict]], repeats: int = 3, save: bool = True
) -> list[Run]:
    """Measure trainings that are to be compared: memory and FLOPs of each first, then the seconds of all of them in turn.

    `trainings` are pairs: a function that trains, and what `measure` takes beside it (name=..., micro_batch=..., ...), as
    a dictionary. Every one is timed once, then every one again, `repeats` times; no more often than TRAINLEAN_REPEATS
    says, where that is set. `save=False` leaves the runs out of the learner's records, to which only rank 0 adds.
    Returns the runs in their order. ValueError: no trainings at all, and whatever `measure` raises.
    """
    if not trainings:
        raise ValueError("measure_in_turn needs at least one pair of a function and its settings.")
    runs = [
        measure(train, **{**settings, "repeats": 0, "save": False}) for train, settings in trainings
    ]
    repeats = min(repeats, int(os.environ.get("TRAINLEAN_REPEATS", repeats)))
    rounds = [[_seconds(train) for train, _ in trainings] for _ in range(repeats)]
    runs = [
        replace(run, seconds=seconds)
        for run, seconds in zip(runs, zip(*rounds) if rounds else [()] * len(runs), strict=True)
    ]
    if save and not (torch.distributed.is_initialized() and torch.distributed.get_rank()):
        for run in runs:
            save_run(run)
    return runs


def _seconds(train):
    gc.collect()
    _wait()
    start = time.perf_counter()
    train()
    _wait()
    return time.perf_counter() - start


def _wait():
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
