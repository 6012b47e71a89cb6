"""The questions of the lesson 2_checkpointing/2_accelerator."""

import contextlib
import copy
import functools
import random
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.bert import draw_samples, tiny_bert
from exercises_tests.probing.toys import (
    Case,
    Recorder,
    as_it_was,
    flat,
    gradient_is_there,
    in_groups,
    training,
)
from trainlean.exercises.comparing import Observation

LEARNING_RATE = 0.1


@contextlib.contextmanager
def one_thread():
    """For tensors this small, threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Again:
    """Notes in which order parts of a model are run again during backward passes, by number from 1.

    `parts` are modules inside what is checkpointed. It counts when a part is entered: a checkpoint stops as soon as it has
    what it needs, so a part may not be left a second time.
    """

    def __init__(self, model: nn.Module, parts):
        self.passes = []
        model.register_forward_pre_hook(self._next_pass)
        for part in dict.fromkeys(parts):  # a part that is used twice is one module
            part.register_forward_pre_hook(
                functools.partial(self._enter, list(parts).index(part) + 1)
            )

    def _next_pass(self, *_):
        if not in_backward():
            self.passes.append([])

    def _enter(self, number, *_):
        if in_backward():
            self.passes[-1].append(str(number))

    def __str__(self):
        orders = dict.fromkeys(", ".join(numbers) or "none" for numbers in self.passes)
        return " and elsewhere ".join(orders) or "none"


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


# ---------------------------------------------------------------- train_checkpointed

PREPARED = "how many of the accelerator's model, optimizer and data loader take part"
SEEDED = "the number of micro-batches before which the random state was set by a new seed"
WITHIN = "the number of optimizer steps within a window, before its last micro-batch"
LAYERS, MICRO_BATCH = 3, 2
WHOLE_WINDOWS = (
    Case(micro_batches=4, accumulation_steps=2),
    Case(micro_batches=2, accumulation_steps=1, frozen=True),
    Case(micro_batches=2, accumulation_steps=2, tied=True),
)
WITH_A_REST = Case(
    micro_batches=3, accumulation_steps=2
)  # only counted: its last gradient is the last unit's matter


class Masks:
    """Gives each micro-batch dropout masks of its own, the same in every loop, and counts by `seeded` where somebody else has set a seed since the one before."""

    def __init__(self, seed: int):
        self.seed, self.last, self.seeded = seed, 10**9 + seed, 0  # which nobody else sets
        torch.default_generator.manual_seed(self.last)

    def __call__(self, model, args, named):
        if not in_backward():
            self.seeded += self.last != torch.initial_seed()
        self.last = self.seed + int(named["input_ids"].sum())
        torch.default_generator.manual_seed(self.last)


def draw_classifier(case: Case, seed: int):
    """A fresh tiny BERT, its samples and its masks; where weights are frozen or shared it comes in eval mode, as after an evaluation."""
    model = tiny_bert(seed, LAYERS, dropout=0.3, tied=case.tied, frozen=case.frozen)
    model.train(not (case.tied or case.frozen))
    masks = Masks(seed)
    model.register_forward_pre_hook(masks, with_kwargs=True)
    return model, draw_samples(case.micro_batches * MICRO_BATCH, seed), masks


def only_counts(shown: Observation) -> Observation:
    return {name: value for name, value in shown.items() if name.startswith("the number of")}


@contextlib.contextmanager
def read_from():
    """The prepared data loaders whose batches are read while the context is open."""
    from accelerate.data_loader import DataLoaderShard

    loaders, begin = [], DataLoaderShard.begin
    with mock.patch.object(
        DataLoaderShard, "begin", lambda loader: (loaders.append(loader), begin(loader))
    ):
        yield loaders


def steps_within(accelerator, optimizer) -> list[bool]:
    """For each step that the optimizer will take, whether the accelerator was still in the middle of a window."""
    within: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: within.append(not accelerator.sync_gradients))
    return within


@one_thread()
def train_checkpointed(answer, seed):
    from accelerate import Accelerator

    shown = {}
    for case in (*WHOLE_WINDOWS, WITH_A_REST):
        model, samples, masks = draw_classifier(case, seed)
        again = Again(model, [layer.attention for layer in model.bert.encoder.layer])
        optimizer = torch.optim.SGD(in_groups(model), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        with fresh_accelerate(), read_from() as loaders:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
            within = steps_within(accelerator, optimizer)
            answer(accelerator, model, optimizer, DataLoader(samples, batch_size=MICRO_BATCH))
            prepared = [
                accelerator._models,
                accelerator._optimizers,
                [loader for loader in accelerator._dataloaders if loader in loaders],
            ]
        shown |= looked_at(case, training(case, recorder), again)
        shown[f"{PREPARED} ({case})"] = sum(bool(kind) for kind in prepared)
        shown[f"{SEEDED} ({case})"] = masks.seeded
        shown[f"{WITHIN} ({case})"] = sum(within)
    return shown


def looked_at(case, seen, again):
    """What a training shows, the number of its steps first, then what was run again."""
    steps = f"the number of optimizer steps ({case})"
    order = {
        steps: seen[steps],
        f"the order in which layers are run again in a backward pass ({case})": str(again),
    }
    return order | (only_counts(seen) if case is WITH_A_REST else seen)


# ---------------------------------------------------------------- run_checkpointed

BLOCKS, WIDTH, LENGTH = 4, 8, 5


class Block(nn.Module):
    """A Transformer block of our own: attention and a small network, each added to what came in. Dropout after both."""

    def __init__(self, width=WIDTH, heads=2, dropout=0.3):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden, padding):
        batch, length, width = hidden.shape
        parts = (
            self.queries_keys_values(self.attention_norm(hidden))
            .view(batch, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        scores = parts[0] @ parts[1].transpose(-1, -2) / (width // self.heads) ** 0.5
        if padding is not None:  # as torch's own attention takes it
            scores = scores.masked_fill(padding[:, None, None], float("-inf"))
        shares = scores.softmax(-1)
        hidden = hidden + self.dropout(self.project((shares @ parts[2]).transpose(1, 2).flatten(2)))
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))


class Stack(nn.Module):
    """Embedding, blocks, head; how the blocks are run is the question."""

    def __init__(self, run, *, tied=False, frozen=False):
        super().__init__()
        self.run = run
        self.embed, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 2)
        self.scale = nn.Parameter(torch.ones(WIDTH))  # these two are of the model itself
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        if tied:
            self.blocks[2] = self.blocks[1]
        self.embed.requires_grad_(not frozen)

    def forward(self, tokens, padding):
        self.embedded = self.embed(tokens)
        hidden = self.run(self.blocks, self.embedded, padding)
        return self.head(self.scale * hidden.mean(dim=1) + self.shift)


INPUT_GRADIENT = "whether hidden, which needed no gradient, has one afterwards"
STACKS = {
    "": {},
    " with frozen embeddings": {"frozen": True},
    " with a shared block": {"tied": True},
}


def draw_stack(run, seed, **kind):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Stack(run, **kind)
    tokens = torch.randint(20, (3, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (3, 1), generator=generator)
    lengths[0].clamp_(max=LENGTH - 1)  # there is always padding to look at
    padding = torch.arange(LENGTH) >= lengths
    return model, tokens, padding, torch.randint(2, (3,), generator=generator)


def gradients_by_part(model, where) -> Observation:
    shown = {}
    parts = {
        f"block {number}": block
        for number, block in enumerate(model.blocks, 1)
        if block is not model.blocks[number - 2] or number == 1
    }
    for name, part in {**parts, "the embedding": model.embed}.items():
        if any(parameter.requires_grad for parameter in part.parameters()):
            shown[f"whether {name} has a gradient ({where})"] = gradient_is_there(part.parameters())
            shown[f"the gradient of {name} ({where})"] = flat(part, gradients=True)
    return shown


@one_thread()
def run_checkpointed(answer, seed):
    shown = {}
    for name, kind in STACKS.items():
        where = f"a model{name}"
        model, tokens, padding, labels = draw_stack(answer, seed, **kind)
        again = Again(model, [block.project for block in model.blocks])
        model.register_forward_pre_hook(
            lambda *_: torch.default_generator.manual_seed(seed) and None
        )
        output = model(tokens, padding)
        shown[f"the output ({where})"] = output
        cross_entropy(output, labels).backward()
        shown[f"the order in which blocks are run again in the backward pass ({where})"] = str(
            again
        )
        shown |= gradients_by_part(model, where)
        if model.embedded.is_leaf:
            shown[f"{INPUT_GRADIENT} ({where})"] = model.embedded.grad is not None
        model.eval()
        shown[f"the output in eval mode ({where})"] = model(tokens, padding)
        model.train().run = one_after_the_other
        cross_entropy(model(tokens, padding), labels).backward()
        shown[f"whether blocks are run again when they are called plainly afterwards ({where})"] = (
            bool(again.passes[-1])
        )
    return shown


def one_after_the_other(blocks, hidden, padding):
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden


# ---------------------------------------------------------------- untrained_parameters


def draw_after_backward(seed: int, reentrant: bool, frozen: bool, lost: list[str]):
    """A model after one backward pass, `lost` parameters without a gradient, one with a gradient of zeros."""
    from torch.utils.checkpoint import checkpoint

    def run(blocks, hidden, padding):
        for index, block in enumerate(blocks):
            hidden = (
                checkpoint(block, hidden, padding, use_reentrant=True)
                if reentrant and index == 0
                else block(hidden, padding)
            )
        return hidden

    model, tokens, padding, labels = draw_stack(run, seed, tied=not reentrant)
    model.embed.requires_grad_(not frozen)
    model.blocks[3].project.requires_grad_(not frozen)
    cross_entropy(model(tokens, padding), labels).backward()
    model.blocks[3].mlp_norm.weight.grad.zero_()  # a gradient of zeros is a gradient
    for name in lost:
        model.get_parameter(name).grad = None
    return model


def draw_lost(seed: int) -> list[str]:
    """Five parameters: two of the model itself, one in its head, one in a block, and the very last one."""
    generator = torch.Generator().manual_seed(seed)
    return [
        "scale",
        "shift",
        "head.bias",
        f"blocks.1.mlp.{2 * int(torch.randint(2, (), generator=generator))}.weight",
        "blocks.3.mlp.2.bias",
    ]


AFTERWARDS = {  # reentrant, frozen, whether parameters have lost their gradients
    "a plain model": (False, False, True),
    "a reentrant checkpoint behind frozen embeddings": (True, True, True),
    "a model in which all train": (False, False, False),
    "a model in which all train that should": (False, True, False),
}


@one_thread()
def untrained_parameters(answer, seed):
    shown = {}
    for where, (reentrant, frozen, loses) in AFTERWARDS.items():
        model = draw_after_backward(seed, reentrant, frozen, draw_lost(seed) if loses else [])
        before = state_of(model)
        names = answer(model)
        shown |= listed(where, names)
        if shown[f"what is returned ({where})"] == NAMES:
            shown |= changes(before, state_of(model), where)
    return shown


def state_of(model: nn.Module) -> dict[str, list]:
    """What a look at a model must leave as it is, module by module or parameter by parameter."""
    parameters = list(model.parameters())
    return {
        "mode": [module.training for module in model.modules()],
        "requires_grad": [one.requires_grad for one in parameters],
        "gradient": [copy.deepcopy(one.grad) for one in parameters],
        "values": [one.detach().clone() for one in parameters],
    }


def changes(before: dict[str, list], after: dict[str, list], where: str) -> Observation:
    """How many of the model's modules and parameters were changed, by what was done to them."""

    def count(what, changed):
        return sum(map(changed, before[what], after[what]))

    def other(one, now):
        return not as_it_was(one, now)

    counts = {
        "modules put into another mode": count("mode", other),
        "parameters with another requires_grad": count("requires_grad", other),
        "parameters that were given a gradient": count(
            "gradient", lambda one, now: one is None and now is not None
        ),
        "parameters that lost their gradient": count(
            "gradient", lambda one, now: one is not None and now is None
        ),
        "parameters with other numbers in their gradient": count(
            "gradient",
            lambda one, now: torch.is_tensor(one) and torch.is_tensor(now) and other(one, now),
        ),
        "parameters with other values": count("values", other),
    }
    return {f"the number of {what} afterwards ({where})": number for what, number in counts.items()}


NAMES = "a list of names"


def listed(where: str, names: object) -> Observation:
    """What was returned."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        kind = "nothing" if names is None else f"of type {type(names).__name__}"
        if isinstance(names, list | tuple):
            others = {type(name).__name__ for name in names if not isinstance(name, str)}
            kind = f"a {type(names).__name__} with elements of type {' and '.join(sorted(others))}"
        return {f"what is returned ({where})": kind}
    return {
        f"what is returned ({where})": NAMES,
        f"the number of names ({where})": len(names),
        f"the list of names ({where})": ", ".join(sorted(names)),
    }


# ---------------------------------------------------------------- runs_twice_alike


class Plain(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Identity() if dropout is None else nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(torch.tanh(self.linear(x)))


class Normed(Plain):
    """Batch norm: in training its output does not depend on its buffers, but every run changes them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(super().forward(x))


class Counted(Plain):
    """What `change` makes of its output and the number of its calls, which no buffer tells."""

    def __init__(self, change):
        super().__init__()
        self.change, self.calls = change, 0

    def forward(self, x, *sides):
        self.calls += 1
        return self.change(super().forward(x), self.calls, *sides)


class Emptying(Plain):
    """Takes a scale from a list at each call; after two calls there is none left."""

    def __init__(self):
        super().__init__()
        self.scales = [2.0]

    def forward(self, x):
        return super().forward(x) * (self.scales.pop() if self.scales else 1.0)


class Noisy(Plain):
    """Adds noise from a generator of its own, which nobody sets back; `always` or in training only."""

    def __init__(self, always=True):
        super().__init__()
        self.always, self.generator = always, torch.Generator().manual_seed(0)

    def forward(self, x):
        noise = torch.rand(x.shape, generator=self.generator)
        return super().forward(x) + (noise if self.always or self.training else 0)


class Averaging(Plain):
    """Keeps a running mean of its own, changed in place or `anew`, outside its state_dict; its output does not depend on it."""

    def __init__(self, anew=False):
        super().__init__()
        self.anew = anew
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, x):
        with torch.no_grad():
            mean = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.anew:
                self.mean = mean
            else:
                self.mean.copy_(mean)
        return super().forward(x)


class Counting(Plain):
    """Counts its runs in the second of its buffers, or in `whole` numbers in the first; the other one stays. Its output is divided by the count or not."""

    def __init__(self, weakens=False, whole=False):
        super().__init__()
        self.weakens = weakens
        buffers = {
            "scale": torch.tensor(2.0),
            "runs": torch.zeros((), dtype=torch.long if whole else None),
        }
        for name in sorted(buffers, reverse=not whole):
            self.register_buffer(name, buffers[name])

    def forward(self, x):
        self.runs += 1
        return self.scale * super().forward(x) / (self.runs.item() if self.weakens else 1)


class Alternating(Plain):
    """Turns a flag over at each run; its output does not depend on it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("odd", torch.tensor(False))

    def forward(self, x):
        self.odd.logical_not_()
        return super().forward(x)


class Queueing(Plain):
    """Moves a queue on in a buffer: the same numbers in other places."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.arange(4.0))

    def forward(self, x):
        self.queue.copy_(self.queue.roll(1))
        return super().forward(x)


class Remembering(Plain):
    """Keeps what went into it, one run behind the other, in a buffer that grows; its output does not depend on it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.empty(0, WIDTH))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.detach()])
        return super().forward(x)


class InPlace(Plain):
    """Halves what it is given, in place."""

    def forward(self, x):
        return super().forward(x.div_(2))


class Measuring(Plain):
    """Fills a buffer at its first run and only reads it from then on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, x):
        if self.scale == 0:
            self.scale.copy_(x.detach().std())
        return super().forward(x) / self.scale


TWICE = {  # how to make the block
    "plain": lambda: Plain(dropout=None),
    "dropout": lambda: Plain(dropout=0.5),
    "batch norm": Normed,
    "batch norm in eval mode": lambda: Normed().eval(),
    "weaker with each call": lambda: Counted(lambda output, calls: output / calls),
    "stronger by a thousandth": lambda: Counted(lambda output, calls: output * (1 + calls / 1000)),
    "the same numbers in other places": lambda: Counted(
        lambda output, calls: (8 * output).round().roll(calls, 0)
    ),
    "two inputs": lambda: Counted(lambda output, calls, side: output + calls * side),
    "takes from a list": Emptying,
    "a generator of its own": Noisy,
    "noise in training only": lambda: Noisy(always=False),
    "a running mean of its own": Averaging,
    "a running mean put anew at each run": lambda: Averaging(anew=True),
    "a count in its second buffer": Counting,
    "a count in whole numbers": lambda: Counting(whole=True),
    "a count in a buffer that its output depends on": lambda: Counting(weakens=True),
    "a queue that moves on": Queueing,
    "a memory that grows": Remembering,
    "an input that is changed in place": InPlace,
    "a mask of numpy's random numbers": lambda: Counted(
        lambda output, _: output * torch.from_numpy(np.random.rand(WIDTH)).float()
    ),
    "a factor of Python's random numbers": lambda: Counted(
        lambda output, _: output * random.uniform(1, 2)
    ),
    "a flag that each run turns over": Alternating,
    "a buffer that the first run fills": Measuring,
}


def draw_twice(seed):
    """(kind, name, block, inputs) of all kinds, in an order of this seed."""
    kinds = list(TWICE)
    for number, place in enumerate(np.random.default_rng(seed).permutation(len(kinds)), 1):
        kind = kinds[place]
        torch.default_generator.manual_seed(seed + number)
        name = f"the answer for block {number} ({kind})"
        inputs = torch.randn(1 + (kind == "two inputs"), 6, WIDTH).unbind()
        yield kind, name, TWICE[kind](), inputs


STATE_AFTER = (
    "whether your function leaves torch's random state as it found it where the block draws nothing"
)


@one_thread()
def runs_twice_alike(answer, seed):
    shown = {}
    for _, name, block, inputs in draw_twice(seed):
        says = answer(block, *inputs)
        shown[name] = bool(says) if isinstance(says, torch.Tensor) and says.numel() == 1 else says
    plain, found = Plain(), torch.get_rng_state()
    answer(plain, torch.ones(6, WIDTH))
    return shown | {STATE_AFTER: torch.equal(torch.get_rng_state(), found)}
