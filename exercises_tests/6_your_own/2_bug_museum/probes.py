"""The questions of the lesson 6_your_own/2_bug_museum."""

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import LambdaLR

from exercises_tests.probing.toys import (
    Case,
    Held,
    Recorder,
    as_it_was,
    draw,
    flat,
    lopsided_loss,
    training,
    windows,
)

LEARNING_RATE = 0.1

# ---------------------------------------------------------------- name_fault


class Epoch(NamedTuple):
    """A recorded epoch: its sizes, and what is the matter with it."""

    micro_batches: int
    k: int
    fault: str

    def __str__(self):
        return f"a record of {self.micro_batches} micro-batches, k={self.k}, number {len(self.fault)} of its kind"


RIGHT, NOT_DIVIDED, TWICE, LAST, EARLY, BY_K, LOST = FAULTS = (
    "right",
    "not divided",
    "divided twice",
    "only the last",
    "early",
    "short window divided by k",
    "rest lost",
)
WITH_REST = (BY_K, LOST)  # faults of the last, shorter window


def draw_epochs(seed: int) -> list[Epoch]:
    """Each fault at k = 3, whose shares are not round, at 2, in the shortest epoch, of k + 1, and at 9, where 1/8 is near; right runs with and without a shorter window."""
    generator = random.Random(seed)
    epochs = []
    for fault in (RIGHT, *FAULTS):
        for k in (3, 2, generator.choice((4, 5)), 9):
            whole, rest = generator.randint(2, 4), generator.randint(1, k - 1)
            if k > 3:
                whole, rest = 1, 8 if k == 9 else 1
            elif fault == RIGHT and len(epochs) < 2:
                rest = 0
            elif fault not in (*WITH_REST, RIGHT):
                rest = generator.choice((0, rest))
            epochs.append(Epoch(whole * k + rest, k, fault))
    generator.shuffle(epochs)
    return epochs


def recorded(epoch: Epoch) -> list[list[float]]:
    """The shares of each micro-batch in each step."""
    n, k, fault = epoch
    numbers = list(range(n))
    steps = windows(numbers, k)
    if fault == EARLY:
        steps = [numbers[: k - 1], *windows(numbers[k - 1 :], k)]
        steps = steps if len(steps[-1]) == k else steps[:-1]
    if fault == LOST:
        steps = steps[:-1]

    def share(number, step):
        if number not in step or (fault == LAST and number != step[-1]):
            return 0.0
        size = k if fault in (BY_K, LAST, EARLY) else len(step)
        return round({NOT_DIVIDED: 1.0, TWICE: 1 / size**2}.get(fault, 1 / size), 4)

    return [[share(number, step) for number in numbers] for step in steps]


def name_fault(answer, seed):
    shown = {}
    for number, epoch in enumerate(draw_epochs(seed), start=1):
        given = recorded(epoch)
        got = answer(given, epoch.k)
        case = f"record {number}: {epoch.micro_batches} micro-batches, k={epoch.k}"
        shown[f"the name ({case})"] = (  # in quotation marks, since one of the names is "right"
            f'"{got}"'
            if isinstance(got, str)
            else got
            if got is None
            else f"of type {type(got).__name__}"
        )
        shown[f"whether the record is as it was ({case})"] = given == recorded(epoch)
    return shown


# ---------------------------------------------------------------- cured_windows

CASES = (
    Case(micro_batches=6, accumulation_steps=4),
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=5, accumulation_steps=3, twice=True),
    Case(micro_batches=2, accumulation_steps=1),
    Case(micro_batches=7, accumulation_steps=3, tied=True),
    Case(micro_batches=2, accumulation_steps=4, frozen=True),
)


def bytes_of_a_pass(model, micro_batch) -> int:
    """What one micro-batch's forward pass keeps for its backward pass."""
    with Held(model) as held:
        lopsided_loss(model(micro_batch[0]), micro_batch[1])
    return held.peak


def schedule(step: int) -> float:
    return 1 / (1 + step)


def cured_windows(answer, seed):
    shown = {}
    for case in CASES:
        model, micro_batches = draw(case, seed)
        one = bytes_of_a_pass(model, micro_batches[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        scheduler = LambdaLR(optimizer, schedule)
        recorder = Recorder(model, optimizer)
        k = case.accumulation_steps
        with Held(model, model.last) as held:
            answer(model, optimizer, scheduler, lopsided_loss, micro_batches, k)
        # Before the steps: of a window that goes forward at once the passes are counted as micro-batches.
        shown[f"the most micro-batches whose activations are held at once ({case})"] = max(
            1, round(held.inputs_peak / micro_batches[0][0].nbytes), round(held.peak / one)
        )
        shown |= training(case, recorder)
        shown[f"how often the schedule moved ({case})"] = scheduler.last_epoch
        shown[f"what is left in .grad ({case})"] = flat(model, gradients=True)
        shown[f"whether the micro-batches are as they were ({case})"] = as_it_was(
            micro_batches, draw(case, seed)[1]
        )
        optimizer.step()
        shown[f"how often the schedule has moved after one more step of the optimizer ({case})"] = (
            scheduler.last_epoch
        )
    return shown


# ---------------------------------------------------------------- cured_average


@dataclass(frozen=True)
class Averaged(Case):
    """A case with a limit for the gradient and the average's decay; the first limit is longer than any gradient here."""

    max_norm: float = 1000.0
    decay: float = 0.8
    at_rest: bool = False  # whether the average's weights ask for no gradient

    def __str__(self):
        at_rest = ", an average that asks for no gradient" * self.at_rest
        return f"{super().__str__()}{at_rest}, max_norm {self.max_norm:g}, decay {self.decay:g}"


AVERAGED = (
    Averaged(8, 4),
    Averaged(8, 4, max_norm=0.05, decay=0.6),
    Averaged(2, 1, max_norm=0.05),
    Averaged(6, 3, tied=True, max_norm=0.05),
    Averaged(6, 2, frozen=True, max_norm=0.05, decay=0.6),
    Averaged(6, 3, max_norm=0.05, at_rest=True),
    Averaged(6, 2, max_norm=0.05, twice=True),
)


def draw_average(case: Averaged, seed: int):
    """A model of the same kind with other weights."""
    average = draw(case, seed + 1)[0]
    return average.requires_grad_(False) if case.at_rest else average


def all_weights(model) -> np.ndarray:
    """Also those that are frozen."""
    return parameters_to_vector(model.parameters()).detach().double().numpy()


def cured_average(answer, seed):
    shown = {}
    for case in AVERAGED:
        (model, micro_batches), average = draw(case, seed), draw_average(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        one = bytes_of_a_pass(model, micro_batches[0])
        recorder = Recorder(model, optimizer)
        k, loss = case.accumulation_steps, lopsided_loss
        with Held(model, model.last) as held:
            answer(model, average, optimizer, loss, micro_batches, k, case.max_norm, case.decay)
        shown[f"the most micro-batches whose activations are held at once ({case})"] = max(
            1, round(held.inputs_peak / micro_batches[0][0].nbytes), round(held.peak / one)
        )
        shown |= training(case, recorder)
        shown[f"the average of the weights at the end ({case})"] = all_weights(average)
        optimizer.step()
        shown[f"the average of the weights after one more step of the optimizer ({case})"] = (
            all_weights(average)
        )
        shown[f"whether the micro-batches are as they were ({case})"] = as_it_was(
            micro_batches, draw(case, seed)[1]
        )
    return shown
