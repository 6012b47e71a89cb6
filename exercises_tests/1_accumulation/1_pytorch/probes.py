"""The questions of the lesson 1_accumulation/1_pytorch."""

import itertools
import operator
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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
SAMPLES = 3  # in a micro-batch

WHOLE_WINDOWS = (
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1),
    Case(micro_batches=6, accumulation_steps=3, tied=True),
    Case(micro_batches=6, accumulation_steps=2, frozen=True),
)

ALL_WINDOWS = (
    Case(micro_batches=6, accumulation_steps=4),
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=2, accumulation_steps=1),
    Case(micro_batches=5, accumulation_steps=3, tied=True),
    Case(micro_batches=2, accumulation_steps=4, frozen=True),
)


def probe_loop(cases):
    """A probe that trains on every case and shows all steps, and how many micro-batches' activations lived at once."""

    def probe(answer, seed):
        shown = {}
        for case in cases:
            model, micro_batches = draw(case, seed, samples=SAMPLES)
            with Held(model) as one:
                lopsided_loss(model(micro_batches[0][0]), micro_batches[0][1])
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            recorder = Recorder(model, optimizer, SAMPLES)
            with Held(model) as held:
                answer(model, optimizer, lopsided_loss, micro_batches, case.accumulation_steps)
            shown |= training(case, recorder)
            shown[f"whether the micro-batches are as they were ({case})"] = as_it_was(
                micro_batches, draw(case, seed, samples=SAMPLES)[1]
            )
            shown[f"the most micro-batches whose activations are held at once ({case})"] = round(
                held.peak / one.peak
            )
        return shown

    return probe


train_accumulated = probe_loop(WHOLE_WINDOWS)
train_accumulated_to_the_end = probe_loop(ALL_WINDOWS)


# ---------------------------------------------------------------- first_wrong_step


class Run(NamedTuple):
    """A run whose record is to be read: what its loop does, and its sizes."""

    loop: str
    micro_batches: int
    accumulation_steps: int
    epochs: int

    def __str__(self):
        return f"a run that {self.loop}: k={self.accumulation_steps}, {self.epochs} x {self.micro_batches} micro-batches"


def window_by_window(run: Run) -> list[dict[int, int]]:
    """The record from which the others are made: for each step its micro-batches, and what each was divided by."""
    n = run.micro_batches
    epochs = [list(range(n * epoch, n * epoch + n)) for epoch in range(run.epochs)]
    groups = [window for numbers in epochs for window in windows(numbers, run.accumulation_steps)]
    return [dict.fromkeys(window, len(window)) for window in groups]


def as_published(_, run):
    n, k = run.micro_batches, run.accumulation_steps
    steps, behind = [], {}
    for number in range(n * run.epochs):
        behind[number] = k
        if number % n % k == 0:
            steps.append(behind)
            behind = {}
    return steps


def with_the_rest_carried_on(steps, run):
    carried, rest = [], {}
    for step in steps:
        if len(step) < run.accumulation_steps:
            rest = step
        else:
            carried.append(rest | step)
            rest = {}
    return carried


def by_one_more(step):
    return step | {max(step): len(step) + 1}


def over_the_end(_, run):
    return window_by_window(Run("", run.micro_batches * run.epochs, run.accumulation_steps, 1))


LOOPS = {
    "is right": lambda steps, run: steps,
    "steps on the first micro-batch": as_published,
    "leaves out the last window of each epoch": lambda steps, run: [
        step for step in steps if len(step) == run.accumulation_steps
    ],
    "carries the rest of an epoch into the next": with_the_rest_carried_on,
    "cuts its windows over the end of an epoch": over_the_end,
    "divides its last windows by k, too": lambda steps, run: [
        dict.fromkeys(step, run.accumulation_steps) for step in steps
    ],
    "does not divide": lambda steps, run: [dict.fromkeys(step, 1) for step in steps],
    "divides a micro-batch at its end by one more": lambda steps, run: [
        *steps[:-1],
        by_one_more(steps[-1]),
    ],
    "never zeroes": lambda steps, run: list(itertools.accumulate(steps, operator.or_)),
    "begins one micro-batch late": lambda steps, run: [
        {number + 1: size for number, size in step.items()} for step in steps
    ],
    "makes a step too many at its end": lambda steps, run: [*steps, {}],
    "leaves out its last step": lambda steps, run: steps[:-1],
}


def draw_runs(seed: int) -> list[Run]:
    """A run of every loop with short last windows, and a right one without."""
    generator = random.Random(seed)
    runs = []
    for loop in LOOPS:
        k = generator.randint(3, 5)
        rest = generator.randint(1, k - 1)
        runs.append(Run(loop, generator.randint(1, 3) * k + rest, k, generator.randint(2, 3)))
    return [*runs, Run("is right", 8, generator.choice((1, 2, 4)), 2)]


def recorded_steps(run: Run) -> list[dict[int, int]]:
    return LOOPS[run.loop](window_by_window(run), run)


def first_wrong_step(answer, seed):
    return {
        f"the first wrong step of {run}": answer(recorded_steps(run), *run[1:])
        for run in draw_runs(seed)
    }


# ---------------------------------------------------------------- places

LINES = {
    "add": "window_loss += loss.item()",
    "backward": "scaler.scale(loss).backward()",
    "clip": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    "divide": "loss = loss / size",
    "forward": "loss = loss_function(model(inputs), targets)",
    "report": "reported.append(window_loss); window_loss = 0.0",
    "schedule": "scheduler.step()",
    "step": "scaler.step(optimizer)",
    "unscale": "scaler.unscale_(optimizer)",
    "update": "scaler.update()",
    "zero": "optimizer.zero_grad()",
}
EACH, END = "micro-batch", "window"


@dataclass(frozen=True)
class Clipped(Case):
    """Windows whose gradients may be at most `max_norm` long; the default is longer than any gradient here."""

    max_norm: float = 1000.0

    def __str__(self):
        return f"{super().__str__()}, max_norm={self.max_norm:g}"


CLIPPED = (
    Clipped(micro_batches=10, accumulation_steps=4),
    Clipped(micro_batches=8, accumulation_steps=4, max_norm=0.05),
    Clipped(micro_batches=5, accumulation_steps=3, max_norm=0.1, tied=True),
)


def falling_rate(optimizer):
    """A schedule that takes a tenth off the learning rate at each step."""
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)


def run_lines(places: dict[str, list[str]], case: Clipped, seed: int):
    """A training run of these lines: its recorder, the learning rates of its steps, what it reported, and what stopped it."""
    model, micro_batches = draw(case, seed, samples=SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    recorder, rates = Recorder(model, optimizer), []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    names = {"nn": nn, "model": model, "optimizer": optimizer, "loss_function": lopsided_loss}
    names |= {"scheduler": falling_rate(optimizer), "max_norm": case.max_norm, "reported": []}
    names |= {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0), "window_loss": 0.0}
    line, at, stopped = "", "", "nothing"
    try:
        for number, window in enumerate(windows(micro_batches, case.accumulation_steps), 1):
            names["size"] = len(window)
            for names["inputs"], names["targets"] in window:
                at = f"in window {number}"
                for line in places[EACH]:
                    exec(LINES[line], names)
            at = f"behind window {number}"
            for line in places[END]:
                exec(LINES[line], names)
    except (RuntimeError, AssertionError, NameError) as error:
        stopped = f"{line!r} {at}: {error}"
    return recorder, rates, names["reported"], stopped


def as_places(answer) -> dict[str, list[str]]:
    """The answer as two lists of names. TypeError: it is no such dictionary."""
    if not isinstance(answer, dict) or set(answer) != {EACH, END}:
        raise TypeError(f"places must be a dictionary with two lists, {EACH!r} and {END!r}.")
    return {key: [str(name) for name in names] for key, names in answer.items()}


def places(answer, seed):
    given = as_places(answer)
    shown = used(given[EACH] + given[END])
    if shown != used(LINES):
        return shown
    for case in CLIPPED:
        recorder, *rest = run_lines(given, case, seed)
        shown |= logged(*rest, case) | training(case, recorder)
    return shown


def used(names):
    return {"the names in both lists together": ", ".join(sorted(names))}


def logged(rates, reported, stopped, case):
    return {
        f"what stops the run ({case})": stopped,
        f"the learning rate at each step ({case})": np.array(rates),
        f"the number of losses reported ({case})": len(reported),
        f"the reported losses ({case})": np.array(reported),
    }


# ---------------------------------------------------------------- token_weighted_backward

IGNORED = -100
VOCABULARY = 7


class TinyLanguageModel(nn.Module):
    """Token numbers [samples, length] in, a score for every possible token [samples, length, VOCABULARY] out."""

    def __init__(self, *, tied: bool, frozen: bool):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.middle = nn.Linear(5, 5)
        self.head = nn.Linear(5, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.embedding.requires_grad_(not frozen)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.middle(self.embedding(input_ids))))


@dataclass(frozen=True)
class Window:
    """The longest text of each micro-batch in one window, and how many texts it holds."""

    lengths: tuple[int, ...]
    texts: tuple[int, ...]
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        sizes = (f"{n} x {length}" for n, length in zip(self.texts, self.lengths, strict=True))
        return f"micro-batches of {', '.join(sizes)} tokens{kind}"


WINDOWS = (
    Window((10, 4, 6, 2), texts=(2, 3, 2, 4)),
    Window((5,), texts=(2,)),
    Window((3, 9), texts=(3, 2), tied=True),
    Window((8, 3, 3), texts=(2, 2, 4), frozen=True),
)


def draw_window(case: Window, seed: int):
    """A fresh model and window: input_ids and labels, each [texts, length]; padding and the start of some texts are not to be learned."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TinyLanguageModel(tied=case.tied, frozen=case.frozen)
    micro_batches = []
    for texts, length in zip(case.texts, case.lengths, strict=True):
        input_ids = torch.randint(1, VOCABULARY, (texts, length), generator=generator)
        labels = input_ids.clone()
        if (
            length > 2
        ):  # the second text is shorter: padding at its end, and its first tokens are a prompt
            labels[1, -1], input_ids[1, -1] = IGNORED, 0
        if length > 4:
            labels[1, :2] = IGNORED
        micro_batches.append({"input_ids": input_ids, "labels": labels})
    return model, micro_batches


def losses_of_targets(model, micro_batch, reduction):
    """The loss over the prediction targets of one micro-batch: position t predicts the label at t + 1."""
    scores, targets = model(micro_batch["input_ids"])[:, :-1], micro_batch["labels"][:, 1:]
    return cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=IGNORED
    )


def token_weighted_backward(answer, seed):
    shown = {}
    for case in WINDOWS:
        model, window = draw_window(case, seed)
        held_by_each = []
        for micro_batch in window:
            with Held(model) as one:
                losses_of_targets(model, micro_batch, "sum")
            held_by_each.append(one.peak)
        with Held(model) as held:
            answer(model, window)
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"the weight afterwards ({case})"] = flat(model)
        shown[f"whether the activations of the whole window are held at once ({case})"] = (
            len(window) > 1 and held.peak > (max(held_by_each) + sum(held_by_each)) / 2
        )
        shown[f"whether the window is as it was ({case})"] = as_it_was(
            window, draw_window(case, seed)[1]
        )
    return shown
