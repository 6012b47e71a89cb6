"""Short runs of a learner's loop on a model of one weight, recorded for questions about it."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from trainlean.exercises.own_loop import OwnRun, Watched
from trainlean.recordings.loops import record

SAMPLES = 2  # of a micro-batch
RANKS = 2
LAYERS = 3
IGNORED = -100
SGD = partial(torch.optim.SGD, lr=0.002)


def micro_batches_of(number: int, largest: float = 0) -> list[tuple]:
    """`number` micro-batches (inputs, targets), each [samples, 1]; the targets are twice the inputs, as in the lesson.

    The inputs are 1, 2 and so on, or these numbers as parts of a `largest`.
    """
    inputs = torch.arange(1.0, number * SAMPLES + 1).reshape(number, SAMPLES, 1)
    scale = largest / (number * SAMPLES) if largest else 1.0
    return [(scale * one, 2 * scale * one) for one in inputs]


def one_weight(bias: bool = False) -> nn.Linear:
    """The model w * x, with w = 0; with `bias` w * x + b."""
    model = nn.Linear(1, 1, bias=bias)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def squared_error(model, batch):
    """The loss of a micro-batch (inputs, targets)."""
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


def said(number: int, k: int) -> str:
    """The run in words."""
    return f"run on {number} micro-batches (numbered from 1) with {k} accumulation steps and a model of one weight"


# ---------------------------------------------------------------- on one device


def accumulated_run(loop, number: int, k: int, given: Callable | None = None) -> OwnRun:
    """A run of loop(*given(model, optimizer, micro_batches)), by default of loop(model, optimizer, loss_function, micro_batches, k)."""
    model, data = one_weight(), micro_batches_of(number)
    optimizer = SGD(model.parameters())
    watched = Watched(data, model, optimizer)
    arguments = given(model, optimizer, data) if given else (model, optimizer, mse_loss, data, k)
    return OwnRun(said(number, k), watched.record(loop, *arguments))


def windows_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(model, optimizer, scheduler, loss_function, micro_batches, k)."""

    def given(model, optimizer, data):
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        return model, optimizer, scheduler, mse_loss, data, k

    return accumulated_run(loop, number, k, given)


def average_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay)."""

    def given(model, optimizer, data):
        return model, one_weight(), optimizer, mse_loss, data, k, 1e6, 0.5

    return accumulated_run(loop, number, k, given)


def masters_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(model, make_optimizer, loss_function, micro_batches, accumulation_steps) on a bf16 model."""
    model = one_weight().bfloat16()
    data = [(inputs.bfloat16(), targets) for inputs, targets in micro_batches_of(number)]

    def loss_function(outputs, targets):
        return mse_loss(outputs.float(), targets.float())

    trace = Watched(data, model).record(loop, model, SGD, loss_function, data, k)
    return OwnRun(said(number, k), trace)


def accelerated_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(accelerator, model, optimizer, dataloader, loss_of, max_norm); the learner's own Accelerator is left alone."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    from exercises_tests.probing.accelerate import fresh_accelerate

    model, data = one_weight(), micro_batches_of(number)
    optimizer = SGD(model.parameters())
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=SAMPLES)
    with fresh_accelerate():
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
        watched = Watched(data, model, optimizer, accelerator)
        trace = watched.record(loop, accelerator, model, optimizer, loader, squared_error, 1e6)
    return OwnRun(said(number, k), trace)


# ---------------------------------------------------------------- layers


class Layer(nn.Module):
    """A layer that keeps something for its backward pass; the first one of a model has the weight."""

    def __init__(self, number: int):
        super().__init__()
        self.linear = one_weight() if number == 1 else nn.Identity()

    def forward(self, hidden, *_, **__):
        return torch.tanh(self.linear(hidden))


class Outputs(dict):
    """What a model returns, by name, by number or as attributes."""

    __getattr__ = dict.__getitem__

    def __getitem__(self, name):
        return [*self.values()][name] if isinstance(name, int) else super().__getitem__(name)


class LayeredClassifier(nn.Module):
    """A chain of layers in the form of transformers' models: it returns its loss, and its layers can be checkpointed."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(number) for number in range(1, LAYERS + 1))
        self.checkpointed = False

    def gradient_checkpointing_enable(self, *_, **__):
        self.checkpointed = True

    activation_checkpointing_enable = gradient_checkpointing_enable

    def forward(self, inputs, labels):
        hidden = inputs
        for layer in self.layers:
            run = partial(checkpoint, layer, use_reentrant=False) if self.checkpointed else layer
            hidden = run(hidden)
        return Outputs(loss=mse_loss(hidden, labels))


def loader_of(data: list[tuple]):
    """A data loader whose batches are dictionaries of inputs and labels."""
    from torch.utils.data import DataLoader

    samples = [
        {"inputs": one, "labels": target}
        for inputs, targets in data
        for one, target in zip(inputs, targets, strict=True)
    ]
    return DataLoader(samples, batch_size=SAMPLES)


def checkpointed_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(accelerator, model, optimizer, dataloader), whose batches are dictionaries."""
    from accelerate import Accelerator

    from exercises_tests.probing.accelerate import fresh_accelerate

    model, data = LayeredClassifier(), micro_batches_of(number)
    optimizer = SGD(model.parameters())
    with fresh_accelerate():
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
        watched = Watched(data, model, optimizer, accelerator, model.layers)
        trace = watched.record(loop, accelerator, model, optimizer, loader_of(data))
    return OwnRun(f"{said(number, k)} in {LAYERS} layers", trace)


def one_by_one(run: Callable) -> Callable:
    """The chain that runs each layer with run(layer, hidden)."""

    def chain(layers, hidden):
        for layer in layers:
            hidden = run(layer, hidden)
        return hidden

    return chain


def layers_run(chain: Callable, number: int, how: str = "") -> OwnRun:
    """A run of chain(layers, hidden), which returns what `number` layers made, and its backward pass."""
    layers = [Layer(1) for _ in range(number)]
    watched = Watched([], nn.ModuleList(layers), layers=layers)

    def passes():
        hidden = chain(layers, torch.ones(1, 1))
        hidden.sum().backward()

    trace = replace(watched.record(passes), source="")  # these lines are not the learner's
    return OwnRun(f"run on {number} layers (numbered from 1){how}, and backward once", trace)


# ---------------------------------------------------------------- tokens


class OneWeightLanguageModel(nn.Module):
    """Token numbers [texts, length] in, scores of two tokens out: the first is w times the number, the second 0.

    With labels it returns its loss, as transformers' models do.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **_):
        scores = self.weight * (1.0 + input_ids)
        logits = torch.stack([scores, torch.zeros_like(scores)], dim=2)
        if labels is None:
            return logits
        scores, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if num_items_in_batch is None:
            return Outputs(loss=cross_entropy(scores, targets), logits=logits)
        total = cross_entropy(scores, targets, reduction="sum")
        return Outputs(loss=total / num_items_in_batch, logits=logits)


def texts_of(lengths: tuple[int, ...], first: int = 1) -> list[dict]:
    """Micro-batches of one text each, of so many tokens, whose numbers tell which they are."""
    return [
        {"input_ids": torch.full((1, length), number), "labels": torch.ones(1, length).long()}
        for number, length in enumerate(lengths, first)
    ]


def gradient_of_sum(window: list[dict]) -> float:
    """The gradient of the sum of all tokens' losses."""
    model = OneWeightLanguageModel()
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        cross_entropy(logits, one["labels"][:, 1:].flatten(), reduction="sum").backward()
    assert model.weight.grad is not None
    return model.weight.grad.item()


def targets_in(window: list[dict]) -> int:
    """How many tokens are predicted."""
    return sum(int(one["labels"][:, 1:].ne(IGNORED).sum()) for one in window)


def labels_in(window: list[dict]) -> int:
    """How many labels there are, the first ones of texts too."""
    return sum(int(one["labels"].ne(IGNORED).sum()) for one in window)


def backward_run(loop) -> OwnRun:
    """A run of loop(model, window) on three micro-batches of texts."""
    model, window = OneWeightLanguageModel(), texts_of((4, 6, 3))
    watched = Watched([(one["input_ids"], None) for one in window], model)
    first = targets_in(window[:1])
    return OwnRun(
        "run on three micro-batches of 4, 6 and 3 tokens (numbered from 1) and a model of one weight",
        watched.record(loop, model, window),
        undivided=gradient_of_sum(window),
        divisors=(
            (labels_in(window), "So many tokens there are. The first one of a text is predicted by nothing."),
            (len(window), "So many micro-batches there are: a token in a short one would count for more."),
            (first, "So many are predicted in the first micro-batch; the others have their own."),
        ),
    )  # fmt: skip


def parts_run(loop, micro_batch: int) -> OwnRun:
    """A run of loop(model, optimizer, batch, micro_batch, checkpointing) on five texts."""
    model, optimizer_of, window = OneWeightLanguageModel(), SGD, texts_of((6,) * 5)
    for number, one in enumerate(window):
        one["labels"][:, : 1 + number] = IGNORED  # of the first text nothing is left out
    batch = {name: torch.cat([one[name] for one in window]) for name in window[0]}
    parts = [batch["input_ids"][start:] for start in range(0, len(window), micro_batch)]
    optimizer = optimizer_of(model.parameters())
    watched = Watched([(part, None) for part in parts], model, optimizer)
    return OwnRun(
        f"run on {len(window)} texts, {micro_batch} at a time (these micro-batches are numbered from 1), and a model of one weight",
        watched.record(loop, model, optimizer, batch, micro_batch, False),
        undivided=gradient_of_sum(window),
        divisors=(
            (len(parts), "So many micro-batches there are: a token in a short one would count for more."),
            (len(window), "So many texts there are: a token of a text in which few count would count for more."),
            (batch["labels"].numel(), "So many places there are; where the label is -100 nothing is predicted."),
        ),
    )  # fmt: skip


# ---------------------------------------------------------------- on ranks


def ranks_run(
    loop, data: list[tuple], words: str, given: Callable, model_of: Callable = one_weight
) -> OwnRun:
    """Rank 0's run, and rank 1's, of loop(*given(rank, model, optimizer, watched)); micro-batches are numbered over all ranks."""
    from exercises_tests.probing.own_globals import for_every_rank
    from exercises_tests.probing.rank_threads import as_ranks

    loops = for_every_rank(loop, RANKS)

    def train(rank):
        model = model_of()
        optimizer = SGD(model.parameters())
        watched = Watched(data, model, optimizer)
        arguments = given(rank.number, model, optimizer, watched)
        watched.meets(rank)
        return watched.record(loops[rank.number], *arguments)

    sizes = [parameter.numel() for parameter in model_of().parameters()]
    held = "one weight" if sum(sizes) == 1 else f"{sum(sizes)} weights, each"
    known = (f"{len(data)} micro-batches (numbered from 1) in all", words, f"a model of {held}")
    said = f"as rank 0 of {RANKS}, {', '.join(filter(None, known))} of 4 bytes"
    return OwnRun(said, *as_ranks(train, RANKS))


def _share(rank: int, data: list[tuple]) -> list[tuple]:
    return data[rank::RANKS]


def local_run(loop, number: int, k: int, local_steps: int) -> OwnRun:
    """A run of loop(model, optimizer, loss_of, micro_batches of all ranks, accumulation_steps, local_steps)."""
    data = micro_batches_of(number, largest=1)

    def given(_, model, optimizer, watched):
        return model, optimizer, squared_error, list(data), k, local_steps

    return ranks_run(loop, data, f"{k} accumulation steps, H = {local_steps}", given)


def averager_run(loop, number: int, local_steps: int) -> OwnRun:
    """A run of loop(model, optimizer, loss_of, micro_batches of this rank, local_steps)."""
    data = micro_batches_of(number, largest=1)

    def given(rank, model, optimizer, _):
        return model, optimizer, squared_error, _share(rank, data), local_steps

    return ranks_run(loop, data, f"H = {local_steps}", given)


def diloco_run(loop, number: int, local_steps: int) -> OwnRun:
    """A run of loop(model, inner optimizer, outer optimizer, loss_of, micro_batches of this rank, local_steps)."""
    data = micro_batches_of(number, largest=1)

    def given(rank, model, inner, _):
        outer = torch.optim.SGD(model.parameters(), lr=0.7)
        return model, inner, outer, squared_error, _share(rank, data), local_steps

    return replace(ranks_run(loop, data, f"H = {local_steps}", given), outer=True)


def synchronised_run(loop, number: int, k: int) -> OwnRun:
    """A run of loop(model in DistributedDataParallel, optimizer, loss_of, micro_batches of this rank, accumulation_steps)."""
    data = micro_batches_of(number, largest=1)

    def given(rank, model, optimizer, _):
        model = nn.parallel.DistributedDataParallel(model)
        return model, optimizer, squared_error, _share(rank, data), k

    return ranks_run(loop, data, f"{k} accumulation steps", given)


def sharded_run(loop, number: int) -> OwnRun:
    """A run of loop(model, make_optimizer, loss_of, micro_batches of this rank) on a model of a weight and a bias."""
    data = micro_batches_of(number, largest=1)

    def given(rank, model, _, watched):
        def make_optimizer(parameters):
            optimizer = SGD(parameters)
            watched.steps_of(optimizer)
            return optimizer

        return model, make_optimizer, squared_error, _share(rank, data)

    return ranks_run(loop, data, "", given, partial(one_weight, bias=True))


def locally_accelerated_run(loop, number: int, k: int, local_steps: int) -> OwnRun:
    """A run of loop(accelerator, model, optimizer, dataloader, local_steps) with Accelerate on ranks."""
    import accelerate.local_sgd  # noqa: F401  before the ranks start: threads must not import it at once
    from accelerate import Accelerator

    from exercises_tests.probing.accelerate import accelerate_on_ranks

    data = micro_batches_of(number, largest=1)

    def given(_, model, optimizer, watched):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
        return accelerator, model, optimizer, loader_of(data), local_steps

    words = f"{k} accumulation steps, H = {local_steps}"
    with accelerate_on_ranks(RANKS):
        return ranks_run(loop, data, words, given, LayeredClassifier)


def token_ranks_run(loop) -> OwnRun:
    """A run of loop(model in DistributedDataParallel, window of this rank)."""
    windows = texts_of((4, 6)), texts_of((9, 3), 3)
    whole = [*windows[0], *windows[1]]

    def given(rank, model, optimizer, watched):
        return nn.parallel.DistributedDataParallel(model), windows[rank]

    run = ranks_run(
        loop,
        [(one["input_ids"], None) for one in whole],
        "of 4 and 6 tokens here, of 9 and 3 on the other rank",
        given,
        OneWeightLanguageModel,
    )
    targets, here = targets_in(whole), targets_in(windows[0])
    return replace(
        run,
        undivided=gradient_of_sum(whole),
        divisors=(
            (RANKS * targets, "So it would be without the number of ranks in the factor: DDP divides by that as well."),
            (here, "So many tokens are predicted on this rank; the other one has its own."),
            (labels_in(whole), "So many tokens there are. The first one of a text is predicted by nothing."),
        ),
    )  # fmt: skip


# ---------------------------------------------------------------- a lazy device


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
    looks: list = []  # within a line that does more than one thing

    def count(name):
        if name == "micro-batch":
            looks[0]()
        seen[name] += 1
        if name == "steps":
            looks[0]()

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
    trace = record(loop, model, optimizer, squared_error, data, k, watch=watch, hook=looks.append)
    return OwnRun(said(number, k), trace)
