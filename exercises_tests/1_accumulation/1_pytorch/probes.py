"""The questions of the lesson 1_accumulation/1_pytorch."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Epochs(Case):
    """The micro-batches of one epoch, seen in several epochs."""

    epochs: int = 1

    def __str__(self):
        return f"{super().__str__()}, {self.epochs} epochs"


SOME_EPOCHS = (
    Epochs(micro_batches=8, accumulation_steps=4, epochs=2),
    Epochs(micro_batches=6, accumulation_steps=4, epochs=2),
    Epochs(micro_batches=3, accumulation_steps=1, epochs=2),
    Epochs(micro_batches=5, accumulation_steps=2, epochs=3, tied=True),
)


@dataclass(frozen=True)
class Clipped(Case):
    """Complete windows, whose gradients may be at most `max_norm` long."""

    max_norm: float = 1.0

    def __str__(self):
        return f"{super().__str__()}, max_norm={self.max_norm:g}"


CLIPPED = (
    Clipped(micro_batches=8, accumulation_steps=4, max_norm=0.05),
    Clipped(micro_batches=6, accumulation_steps=3, max_norm=1000.0),
    Clipped(micro_batches=3, accumulation_steps=1, max_norm=0.1),
    Clipped(micro_batches=4, accumulation_steps=2, max_norm=0.1, tied=True),
)


def logged(losses, case):
    losses = [] if losses is None else list(losses)
    on_graphs = any(getattr(loss, "requires_grad", False) for loss in losses)
    losses = [float(loss) for loss in losses]
    return {
        f"the number of losses returned ({case})": len(losses),
        f"the returned losses ({case})": torch.tensor(losses, dtype=torch.float64).numpy(),
        f"whether a returned loss still holds its graph ({case})": on_graphs,
    }


def probe_loop(cases, read_result=None, arguments=lambda case: ()):
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
                result = answer(
                    model,
                    optimizer,
                    lopsided_loss,
                    micro_batches,
                    case.accumulation_steps,
                    *arguments(case),
                )
            shown |= training(case, recorder)
            shown[f"whether the micro-batches are as they were ({case})"] = as_it_was(
                micro_batches, draw(case, seed, samples=SAMPLES)[1]
            )
            shown[f"the most micro-batches whose activations are held at once ({case})"] = round(
                held.peak / one.peak
            )
            if read_result:
                shown |= read_result(result, case)
        return shown

    return probe


train_accumulated = probe_loop(WHOLE_WINDOWS)
train_accumulated_to_the_end = probe_loop(ALL_WINDOWS)
repaired_loop = probe_loop(SOME_EPOCHS, arguments=lambda case: (case.epochs,))
train_clipped = probe_loop(CLIPPED, logged, lambda case: (case.max_norm,))


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
    with torch.random.fork_rng(devices=[]):
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
