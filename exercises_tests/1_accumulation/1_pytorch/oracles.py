"""What must be seen in the lesson 1_accumulation/1_pytorch: the large batch, one micro-batch in memory at a time."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from exercises_tests.probing.toys import Recorder, draw, flat, lopsided_loss, training, windows
from exercises_tests.truth.large_batch import large_batch_training

from .probes import (
    ALL_WINDOWS,
    CLIPPED,
    IGNORED,
    LEARNING_RATE,
    SAMPLES,
    SOME_EPOCHS,
    WHOLE_WINDOWS,
    WINDOWS,
    draw_window,
    logged,
    losses_of_targets,
)


def one_at_a_time(case):
    """What every case must leave behind, apart from the weights."""
    return {
        f"the most micro-batches whose activations are held at once ({case})": 1,
        f"whether the micro-batches are as they were ({case})": True,
    }


def oracle_loop(cases):
    """The large batch on every case, and one micro-batch in memory at a time."""

    def oracle(seed):
        shown = {}
        for case in cases:
            shown |= large_batch_training(case, seed, lopsided_loss, LEARNING_RATE)
            shown |= one_at_a_time(case)
        return shown

    return oracle


train_accumulated = oracle_loop(WHOLE_WINDOWS)
train_accumulated_to_the_end = oracle_loop(ALL_WINDOWS)


def repaired_loop(seed):
    """The large batches of one epoch after the other, in one run."""
    shown = {}
    for case in SOME_EPOCHS:
        model, micro_batches = draw(case, seed, samples=SAMPLES)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = windows(micro_batches, case.accumulation_steps) * case.epochs
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            lopsided_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= training(case, recorder, [len(window) for window in groups])
        shown |= one_at_a_time(case)
    return shown


def token_weighted_backward(seed):
    """All texts of the window padded to one length, in one batch: the mean over its prediction targets."""
    shown = {}
    for case in WINDOWS:
        model, window = draw_window(case, seed)
        longest = max(case.lengths)
        input_ids, labels = (
            torch.cat(
                [
                    nn.functional.pad(
                        micro_batch[key], (0, longest - micro_batch[key].shape[1]), value=fill
                    )
                    for micro_batch in window
                ]
            )
            for key, fill in (("input_ids", 0), ("labels", IGNORED))
        )
        losses_of_targets(model, {"input_ids": input_ids, "labels": labels}, "mean").backward()
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"the weight afterwards ({case})"] = flat(model)
        shown[f"whether the activations of the whole window are held at once ({case})"] = False
        shown[f"whether the window is as it was ({case})"] = True
    return shown


def train_clipped(seed):
    shown = {}
    for case in CLIPPED:
        model, micro_batches = draw(case, seed, samples=SAMPLES)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups, losses = windows(micro_batches, case.accumulation_steps), []
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            loss = lopsided_loss(model(inputs), targets)
            loss.backward()
            clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        shown |= training(case, recorder, [len(window) for window in groups])
        shown |= one_at_a_time(case)
        shown |= logged(losses, case)
    return shown
