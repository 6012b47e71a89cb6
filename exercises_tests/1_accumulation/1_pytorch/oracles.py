"""What must be seen in the lesson 1_accumulation/1_pytorch: the large batch, one micro-batch in memory at a time."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from exercises_tests.probing.toys import Recorder, draw, flat, lopsided_loss, training, windows
from exercises_tests.truth.large_batch import large_batch_training

from .probes import (
    ALL_WINDOWS,
    AT_THE_END,
    CLIPPED,
    IGNORED,
    LEARNING_RATE,
    LINES,
    NOTHING_WRONG,
    SAMPLES,
    WHOLE_WINDOWS,
    WINDOWS,
    draw_runs,
    draw_window,
    falling_rate,
    logged,
    losses_of_targets,
    used,
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
            *_, last = (name for name in shown if name.startswith("the weight after step"))
            shown[f"the weight at the end ({case})"] = shown[last]
            shown |= one_at_a_time(case)
        return shown

    return oracle


train_accumulated = oracle_loop(WHOLE_WINDOWS)
train_accumulated_to_the_end = oracle_loop(ALL_WINDOWS)


def first_wrong_step(seed):
    """Where the fault was put; a step too many at the end is one more than all windows of all epochs."""
    shown = {}
    for run in draw_runs(seed):
        steps = run.epochs * -(-run.micro_batches // run.accumulation_steps)
        wrong = steps + 1 if run.fault in AT_THE_END else run.step + 1
        shown[f"the first wrong step of {run}"] = None if run.fault in NOTHING_WRONG else wrong
    return shown | {"whether all records are as they were": True}


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
        shown[f"whether there is a gradient ({case})"] = True
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"the weight afterwards ({case})"] = flat(model)
        shown[f"whether the activations of the whole window are held at once ({case})"] = False
        shown[f"whether the model stays in its mode ({case})"] = True
        shown[f"whether the window is as it was ({case})"] = True
    return shown


def places(seed):
    """The large batch of each window, clipped; the learning rate falls and the loss is noted once for each."""
    shown = used(LINES)
    for case in CLIPPED:
        model, micro_batches = draw(case, seed, samples=SAMPLES)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder, rates, losses = Recorder(model, optimizer), [], []
        scheduler = falling_rate(optimizer)
        groups = windows(micro_batches, case.accumulation_steps)
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            loss = lopsided_loss(model(inputs), targets)
            loss.backward()
            clip_grad_norm_(model.parameters(), case.max_norm)
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.item())
        shown |= logged(rates, losses, "nothing", case)
        shown |= training(case, recorder, [len(window) for window in groups])
    return shown
