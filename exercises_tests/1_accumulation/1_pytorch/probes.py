"""The questions of the lesson 1_accumulation/1_pytorch."""

import random
from collections import Counter
from collections.abc import Callable
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
    gradient_is_there,
    in_groups,
    lopsided_loss,
    training,
    windows,
)

LEARNING_RATE = 0.1
SAMPLES = 3  # in a micro-batch

WHOLE_WINDOWS = (
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1, small=True),
    Case(micro_batches=6, accumulation_steps=3, tied=True),
    Case(micro_batches=6, accumulation_steps=2, frozen=True, epochs=2),
)

ALL_WINDOWS = (
    Case(micro_batches=6, accumulation_steps=4),
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=2, accumulation_steps=1, small=True),
    Case(micro_batches=7, accumulation_steps=3, tied=True),
    Case(micro_batches=2, accumulation_steps=4, frozen=True, epochs=2),
)


def probe_loop(cases):
    """A probe that trains on every case and shows all steps, and how many micro-batches' activations lived at once."""

    def probe(answer, seed):
        shown = {}
        for case in cases:
            model, micro_batches = draw(case, seed, samples=SAMPLES)
            inputs, targets = micro_batches[0]
            with Held(model) as one:
                lopsided_loss(model(inputs), targets)
            optimizer = torch.optim.SGD(in_groups(model), lr=LEARNING_RATE)
            recorder = Recorder(model, optimizer, SAMPLES)
            with Held(model, model.last) as held:
                model.zero_grad()  # every .grad is empty at the start of the training
                for _ in range(case.epochs):
                    answer(model, optimizer, lopsided_loss, micro_batches, case.accumulation_steps)
            shown |= training(case, recorder)
            shown[f"the weight at the end ({case})"] = flat(model)
            shown[f"whether the micro-batches are as they were ({case})"] = as_it_was(
                micro_batches, draw(case, seed, samples=SAMPLES)[1]
            )
            # A micro-batch may be cut smaller still.
            shown[f"the most micro-batches whose activations are held at once ({case})"] = max(
                1,
                round(held.inputs_peak / inputs.nbytes),
                round(held.peak / one.peak),
            )
        return shown

    return probe


train_accumulated = probe_loop(WHOLE_WINDOWS)
train_accumulated_to_the_end = probe_loop(ALL_WINDOWS)


# ---------------------------------------------------------------- first_wrong_step


class Run(NamedTuple):
    """A run whose record is to be read: its sizes, and what is the matter with one of its steps (counted from 0)."""

    micro_batches: int
    accumulation_steps: int
    epochs: int
    fault: str
    step: int

    def __str__(self):
        return f"a run with {self.fault} (k={self.accumulation_steps}, {self.epochs} x {self.micro_batches} micro-batches)"


FAULTS: dict[
    str, Callable
] = {  # what becomes of a step, as a list of those that stand in its place
    "nothing wrong": lambda step: [step],
    "a step missing": lambda step: [],
    "an empty step": lambda step: [{}, step],
    "a micro-batch missing": lambda step: [{n: d for n, d in step.items() if n != min(step)}],
    "a micro-batch of the next window": lambda step: [step | {max(step) + 1: len(step)}],
    "a window one micro-batch late": lambda step: [{n + 1: d for n, d in step.items()}],
    "another divisor of its first micro-batch": lambda step: [step | {min(step): len(step) + 1}],
    "another divisor of its last micro-batch": lambda step: [step | {max(step): len(step) - 1}],
}
ORDER = "nothing wrong, the last micro-batch of each step named first"
NOTHING_WRONG = ("nothing wrong", ORDER)
MISSING = "the last two steps missing"
AT_THE_END: dict[str, Callable] = {  # what comes behind the last step
    "an empty step at its end": lambda last: {},
    "its last step made twice": lambda last: last,
}
OVER_THE_END = "a window over the end of an epoch"
DIVISORS = "other divisors from a step on"  # several wrong steps in a run of the right length
LAST_WINDOWS: dict[str, Callable] = {  # what becomes of the last, short window of each epoch
    "no step for what is left of an epoch": lambda step, k: [],
    "what is left of an epoch divided by k": lambda step, k: [dict.fromkeys(step, k)],
}
EXCHANGED: dict[str, Callable] = {  # a step's first two divisors, for windows of at least three
    "divisors whose sum is right": lambda n: (n + 1, n - 1),
    "divisors whose shares add up to one": lambda n: (
        (n // 2 + 1, n * (n + 2) // 4) if n % 2 == 0 else ((n + 1) // 2, n * (n + 1) // 2)
    ),
}
OF_A_WHOLE_WINDOW: dict[str, Callable] = {  # what becomes of it, in a run of so many micro-batches
    "a micro-batch missing in the middle of a window": lambda step, _: {
        n: d for n, d in step.items() if n != min(step) + 1
    },
    "a window of the epoch before": lambda step, epoch: {n - epoch: d for n, d in step.items()},
}


def draw_runs(seed: int) -> list[Run]:
    """Runs with short last windows (of one where nothing is wrong, else of two or more), and with whole ones only; a fault is in any step, the last one too."""
    generator = random.Random(seed)
    runs = [Run(8, generator.choice((1, 2, 4)), 2, "nothing wrong", 0)]
    runs.append(Run(7, generator.choice((2, 3)), 2, "nothing wrong", 0))
    for fault in [*FAULTS, "a step missing", DIVISORS, DIVISORS, *AT_THE_END, OVER_THE_END]:
        k, epochs = generator.randint(3, 5), generator.randint(2, 3)
        whole, rest = generator.randint(1, 3), generator.randint(2, k - 1)
        last = epochs * (whole + 1) - 1
        again = any(run.fault == fault for run in runs) and fault != "nothing wrong"
        step = whole if fault == OVER_THE_END else last if again else generator.randint(1, last - 1)
        runs.append(Run(whole * k + rest, k, epochs, fault, step))
    # In the first window of the second epoch, which is a whole one.
    for fault in (*EXCHANGED, *OF_A_WHOLE_WINDOW):
        k = generator.randint(3, 5)
        runs.append(Run(k + 2, k, 2, fault, 2))
    for fault in LAST_WINDOWS:
        k = generator.randint(3, 5)
        runs.append(Run(k + 2, k, 2, fault, 1))
    runs.append(Run(8, 4, 2, ORDER, 0))
    runs.append(Run(11, 4, 2, MISSING, 4))
    return runs


def recorded_steps(run: Run) -> list[dict[int, int]]:
    """For each step its micro-batches, and by what the loss of each was divided."""
    n, epochs, steps = run.micro_batches, run.epochs, []
    if run.fault == OVER_THE_END:
        n, epochs = n * epochs, 1
    for epoch in range(epochs):
        for window in windows(list(range(n * epoch, n * epoch + n)), run.accumulation_steps):
            steps.append(dict.fromkeys(window, len(window)))
    if run.fault in LAST_WINDOWS:
        left, k = LAST_WINDOWS[run.fault], run.accumulation_steps
        return [one for step in steps for one in ([step] if len(step) == k else left(step, k))]
    if run.fault == ORDER:
        return [dict(reversed(step.items())) for step in steps]
    if run.fault == MISSING:
        return steps[: run.step]
    if run.fault in AT_THE_END:
        return [*steps, AT_THE_END[run.fault](steps[-1])]
    if run.fault == DIVISORS:
        steps[run.step :] = [{n: d + 1 for n, d in step.items()} for step in steps[run.step :]]
    if run.fault in EXCHANGED:
        step = steps[run.step]
        steps[run.step] = step | dict(zip(step, EXCHANGED[run.fault](len(step)), strict=False))
    if run.fault in OF_A_WHOLE_WINDOW:
        steps[run.step] = OF_A_WHOLE_WINDOW[run.fault](steps[run.step], n)
    if run.fault in FAULTS:
        steps[run.step : run.step + 1] = FAULTS[run.fault](steps[run.step])
    return steps


def first_wrong_step(answer, seed):
    shown, untouched = {}, True
    for run in draw_runs(seed):
        given = recorded_steps(run)
        shown[f"the first wrong step of {run}"] = answer(given, *run[:3])
        untouched &= as_it_was(given, recorded_steps(run))
    return shown | {"whether all records are as they were": untouched}


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
    two = isinstance(answer, dict) and set(answer) == {EACH, END}
    if not (two and all(isinstance(names, list | tuple) for names in answer.values())):
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
    wanted, found = Counter([*LINES]), Counter([*names])
    return {
        "what the two lists lack": ", ".join((wanted - found).elements()) or "nothing",
        "what they have too much of": ", ".join((found - wanted).elements()) or "nothing",
    }


def logged(rates, reported, stopped, case):
    return {
        f"what stops the run ({case})": stopped.rstrip("."),
        f"the learning rate at each step ({case})": np.array(rates),
        f"the number of losses reported ({case})": len(reported),
        f"the list of reported losses ({case})": np.array(reported),
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
        # Scores far apart give gradients longer than 1: somebody who clips them there is seen.
        nn.init.normal_(self.head.weight, std=4.0)
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
    empty: int | None = None  # the micro-batch in which there is nothing to predict, counted from 0
    evaluated: bool = False  # the model is given in eval mode

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        kind += ", a model in eval mode" * self.evaluated
        if self.empty is not None:
            kind += f", nothing to predict in micro-batch {self.empty + 1}"
        sizes = (f"{n} x {length}" for n, length in zip(self.texts, self.lengths, strict=True))
        return f"micro-batches of {', '.join(sizes)} tokens{kind}"


WINDOWS = (
    Window((10, 4, 6, 2), texts=(2, 3, 2, 4)),
    Window((5,), texts=(2,)),
    Window((3, 9), texts=(3, 2), tied=True, evaluated=True),
    Window((8, 3, 3), texts=(2, 2, 4), frozen=True),
    Window((4, 3, 5), texts=(2, 2, 3), empty=1),
)


def draw_window(case: Window, seed: int):
    """A fresh model and window: input_ids and labels, each [texts, length]; padding and the start of some texts are not to be learned."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = TinyLanguageModel(tied=case.tied, frozen=case.frozen)
    model.train(not case.evaluated)
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
        # The padding's number may be a token, too: the window's first text ends with it.
        if not micro_batches:
            labels[0, -1], input_ids[0, -1] = 0, 0
        if len(micro_batches) == case.empty:
            labels[:, 1:] = IGNORED  # a first label is nobody's target
        micro_batches.append({"input_ids": input_ids, "labels": labels})
    return model, micro_batches


def losses_of_targets(model, micro_batch, reduction):
    """The loss over the prediction targets of one micro-batch: position t predicts the label at t + 1."""
    scores, targets = model(micro_batch["input_ids"])[:, :-1], micro_batch["labels"][:, 1:]
    return cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=IGNORED
    )


def more_than_one(peak, parts):
    """Whether what was held at once is nearer to all parts than to the largest."""
    return peak > (max(parts) + sum(parts)) / 2


def token_weighted_backward(answer, seed):
    shown = {}
    for case in WINDOWS:
        model, window = draw_window(case, seed)
        held_by_each, of_the_head = [], []
        for micro_batch in window:
            of_the_head.append(4 * model.head.in_features * micro_batch["input_ids"].numel())
            with Held(model) as one:
                losses_of_targets(model, micro_batch, "sum")
            held_by_each.append(one.peak)
        modes, given = [], model.training
        model.register_forward_pre_hook(lambda one, _, modes=modes: modes.append(one.training))
        with Held(model, model.head) as held:
            answer(model, window)
        modes.append(model.training)
        shown[f"whether there is a gradient ({case})"] = gradient_is_there(model.parameters())
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"the weight afterwards ({case})"] = flat(model)
        shown[f"whether the activations of the whole window are held at once ({case})"] = len(
            window
        ) > 1 and (
            more_than_one(held.peak, held_by_each) or more_than_one(held.inputs_peak, of_the_head)
        )
        shown[f"whether the model stays in its mode ({case})"] = set(modes) == {given}
        shown[f"whether the window is as it was ({case})"] = as_it_was(
            window, draw_window(case, seed)[1]
        )
    return shown
