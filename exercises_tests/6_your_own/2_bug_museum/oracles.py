"""What must be seen in the lesson 6_your_own/2_bug_museum: the drawn faults' names, and the large batch."""

import torch
from torch.nn.utils import clip_grad_norm_

from exercises_tests.probing.toys import Recorder, draw, flat, lopsided_loss, training, windows

from .probes import AVERAGED, CASES, LEARNING_RATE, all_weights, draw_average, draw_epochs, schedule


def name_fault(seed):
    shown = {}
    for number, epoch in enumerate(draw_epochs(seed), start=1):
        case = f"record {number}: {epoch.micro_batches} micro-batches, k={epoch.k}"
        shown[f"the name ({case})"] = f'"{epoch.fault}"'
        shown[f"whether the record is as it was ({case})"] = True
    return shown


def at_once(case, seed):
    """A model that is trained on large batches, its optimizer and recorder, and for each window its large batch."""
    model, micro_batches = draw(case, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    groups = windows(micro_batches, case.accumulation_steps)
    batches = [[torch.cat(parts) for parts in zip(*group, strict=True)] for group in groups]
    sizes = [len(group) for group in groups]
    return model, optimizer, Recorder(model, optimizer), batches, sizes


def cured_windows(seed):
    shown = {}
    for case in CASES:
        model, optimizer, recorder, batches, sizes = at_once(case, seed)
        for step, (inputs, targets) in enumerate(batches):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * schedule(step)
            lopsided_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        recorder.since_step = 0
        shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
        shown |= training(case, recorder, sizes)
        shown[f"how often the schedule moved ({case})"] = len(batches)
        shown[f"what is left in .grad ({case})"] = 0 * flat(model)
        shown[f"whether the micro-batches are as they were ({case})"] = True
        shown[f"how often the schedule has moved after one more step of the optimizer ({case})"] = (
            len(batches)
        )
    return shown


def cured_average(seed):
    shown = {}
    for case in AVERAGED:
        model, optimizer, recorder, batches, sizes = at_once(case, seed)
        average = all_weights(draw_average(case, seed))
        for inputs, targets in batches:
            lopsided_loss(model(inputs), targets).backward()
            clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            average = case.decay * average + (1 - case.decay) * all_weights(model)
        shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
        shown |= training(case, recorder, sizes)
        for when in ("at the end", "after one more step of the optimizer"):
            shown[f"the average of the weights {when} ({case})"] = average
        shown[f"whether the micro-batches are as they were ({case})"] = True
    return shown
