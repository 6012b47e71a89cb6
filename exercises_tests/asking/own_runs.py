"""Short runs of a learner's loop on a model of one weight, recorded for questions about it."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from trainlean.exercises.own_loop import OwnRun, Watched

SAMPLES = 2  # of a micro-batch


def micro_batches_of(number: int) -> list[tuple]:
    """`number` micro-batches (inputs, targets), each [samples, 1]; the targets are twice the inputs, as in the lesson."""
    inputs = torch.arange(1.0, number * SAMPLES + 1).reshape(number, SAMPLES, 1)
    return [(one, 2 * one) for one in inputs]


def one_weight() -> nn.Linear:
    """The model w * x, with w = 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def said(number: int, k: int) -> str:
    """The run in words."""
    return f"run on {number} micro-batches (numbered from 1) with {k} accumulation steps and a model of one weight"


def accumulated_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(model, optimizer, loss_function, micro_batches, accumulation_steps)."""
    model, data = one_weight(), micro_batches_of(number)
    watched = Watched(data, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    trace = watched.record(loop, model, optimizer, mse_loss, data, k)
    return OwnRun(said(number, k), trace)


def accelerated_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(accelerator, model, optimizer, dataloader, loss_of, max_norm); the learner's own Accelerator is left alone."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from exercises_tests.probing.accelerate import fresh_accelerate

    model, data = one_weight(), micro_batches_of(number)
    watched = Watched(data, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=SAMPLES)

    def loss_of(model, batch):
        inputs, targets = batch
        return mse_loss(model(inputs), targets)

    with fresh_accelerate():
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
        trace = watched.record(loop, accelerator, model, optimizer, loader, loss_of, 1e6)
    return OwnRun(said(number, k), trace)


class OneWeightClassifier(nn.Module):
    """The model w * x in the form of transformers' models: it returns its loss, and its one layer can be checkpointed."""

    def __init__(self):
        super().__init__()
        self.layer, self.checkpointed = one_weight(), False

    def gradient_checkpointing_enable(self, *_, **__):
        self.checkpointed = True

    def forward(self, inputs, labels):
        run = partial(checkpoint, self.layer, use_reentrant=False)
        outputs = (run if self.checkpointed else self.layer)(inputs)
        return SimpleNamespace(loss=mse_loss(outputs, labels))


def checkpointed_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(accelerator, model, optimizer, dataloader), whose batches are dictionaries."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from exercises_tests.probing.accelerate import fresh_accelerate

    model, data = OneWeightClassifier(), micro_batches_of(number)
    watched = Watched(data, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    samples = [
        {"inputs": one, "labels": target}
        for inputs, targets in data
        for one, target in zip(inputs, targets, strict=True)
    ]
    with fresh_accelerate():
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
        loader = DataLoader(samples, batch_size=SAMPLES)
        trace = watched.record(loop, accelerator, model, optimizer, loader)
    return OwnRun(said(number, k), trace)


class OneWeightLanguageModel(nn.Module):
    """Token numbers [texts, length] in, scores of two tokens out: the first is w times the number, the second 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids):
        scores = self.weight * (1.0 + input_ids)
        return torch.stack([scores, torch.zeros_like(scores)], dim=2)


def backward_run(loop) -> OwnRun:
    """A run of loop(model, window) on three micro-batches of texts, whose first tokens tell which they are."""
    model = OneWeightLanguageModel()
    window = [
        {"input_ids": torch.full((1, length), number), "labels": torch.ones(1, length).long()}
        for number, length in enumerate((4, 6, 3), start=1)
    ]
    watched = Watched([(one["input_ids"], None) for one in window], model)
    return OwnRun(
        "run on three micro-batches (numbered from 1) and a model of one weight",
        watched.record(loop, model, window),
    )
