"""Short runs of a learner's loop on a model of one weight, recorded for questions about it."""

import linecache
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from trainlean.exercises.own_loop import OwnRun, Watched
from trainlean.recordings.loops import record

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


def rank_run(loop, number: int, k: int, local_steps: int) -> OwnRun:
    """Rank 0's run of loop(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps) on two ranks."""
    from exercises_tests.probing.local_sgd import squared_error
    from exercises_tests.probing.own_globals import for_every_rank
    from exercises_tests.probing.rank_threads import as_ranks

    loops = for_every_rank(loop, 2)
    data = [(inputs / (number * SAMPLES), targets) for inputs, targets in micro_batches_of(number)]

    def train(rank):
        model = one_weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        given = (model, optimizer, squared_error, list(data), k, local_steps)
        if rank.number:
            return loops[rank.number](*given)
        watched = Watched(data, model)
        watched.watch["met"] = lambda _: len(rank.sent)
        return watched.record(loops[0], *given)

    words = f"as rank 0 of 2, {number} micro-batches (numbered from 1) in all, {k} accumulation steps, H = {local_steps}"
    return OwnRun(words, as_ranks(train)[0])


def marked_run(loop, number: int, k: int) -> OwnRun:
    """A run of a lazy loop(model, optimizer, loss_function, micro_batches, accumulation_steps), in a process of its own."""
    from trainlean.devices.lazy import in_fresh_process

    path = loop.__code__.co_filename
    return in_fresh_process(_marked, loop, number, k, path, linecache.getlines(path))


def _marked(loop, number, k, path, lines):
    import torch._lazy.metrics
    import torch._lazy.ts_backend

    linecache.cache[path] = (
        sum(map(len, lines)),
        None,
        lines,
        path,
    )  # a cell is known to its kernel
    torch._lazy.ts_backend.init()
    seen = {"micro-batch": 0, "steps": 0}

    def count(name):
        seen[name] += 1

    def graphs():
        names = ("UncachedCompile", "CachedCompile")
        return sum(torch._lazy.metrics.counter_value(name) or 0 for name in names)

    def squared_error(outputs, targets):
        difference = outputs - targets
        return (difference * difference).mean()

    model = one_weight().to("lazy")
    model.weight.grad = torch.zeros_like(model.weight)
    data = [(one.to("lazy"), two.to("lazy")) for one, two in micro_batches_of(number)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, foreach=False)
    torch._lazy.mark_step(wait=True)
    before = graphs()
    model.register_forward_pre_hook(lambda *_: count("micro-batch"))
    optimizer.register_step_post_hook(lambda *_: count("steps"))
    watch = {name: lambda _, name=name: seen[name] for name in seen}
    watch["graphs"] = lambda _: graphs() - before
    trace = record(loop, model, optimizer, squared_error, data, k, watch=watch)
    return OwnRun(said(number, k), trace)
