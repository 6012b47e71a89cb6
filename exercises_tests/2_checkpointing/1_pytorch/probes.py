"""The questions of the lesson 2_checkpointing/1_pytorch."""

import math
import sys
import weakref
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import flop_registry

from exercises_tests.probing.toys import as_it_was, gradient_is_there


class Counter(TorchDispatchMode):
    """FLOPs, and the bytes of what the forward pass makes (recomputing included): `now` alive, `most` at one time."""

    def __init__(self):
        super().__init__()
        self.flops = self.now = self.most = 0
        self._alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        if not func.is_view and (
            torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1
        ):
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    self._add(tensor.untyped_storage())
        return out

    def _add(self, storage):
        address, size = storage._cdata, storage.nbytes()
        if address not in self._alive:
            self._alive[address] = weakref.ref(storage, lambda _: self._remove(address, size))
            self.now += size
            self.most = max(self.most, self.now)

    def _remove(self, address, size):
        del self._alive[address]
        self.now -= size


def gradients(parameters):
    """All gradients as one float64 vector, zero where there is none."""
    tensors = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).numpy()


# ---------------------------------------------------------------- checkpointed_bill


def draw_bills(seed):
    """(what plain training costs, layers, bytes of a boundary): layers that are all alike."""
    rng = np.random.default_rng(seed)
    for layers in (int(rng.integers(4, 9)), int(rng.integers(12, 49)), 1):
        boundary, interior = (int(size) * 64 for size in rng.integers((3, 90), (30, 200)))
        weights = int(rng.integers(100, 900)) * 32
        plain = {"weights": weights, "gradients": weights, "optimizer state": 2 * weights, "activations": layers * (boundary + interior),
                 "FLOPs": 3 * layers * int(rng.integers(10_000, 90_000)), "gradient norm": round(float(rng.uniform(0.5, 9)), 3)}  # fmt: skip
        yield plain, layers, boundary


def checkpointed_bill(answer, seed):
    shown = {}
    for plain, layers, boundary in draw_bills(seed):
        given = dict(plain)
        bill = answer(given, layers, boundary)
        if not isinstance(bill, dict) or bill.keys() != plain.keys():
            raise TypeError(
                f"checkpointed_bill must return a dictionary with the same keys as plain: {', '.join(plain)}."
            )
        shown |= {entry(name, plain, layers, boundary): whole(bill[name]) for name in plain}
        shown[f"whether plain is as it was ({layers} layers)"] = as_it_was(given, plain)
    return shown


def entry(name, plain, layers, boundary):
    each = "1 layer" if layers == 1 else f"{layers} layers"
    return f"the entry for {name} ({each} of {plain['activations'] // layers:,} bytes, {boundary:,} of them the boundary)"


def whole(value):
    """Bytes and FLOPs as whole numbers, also where a division has left a trace."""
    value = float(value)
    return round(value) if math.isfinite(value) and abs(value - round(value)) < 1e-4 else value


# ---------------------------------------------------------------- checkpoint

WIDTH, ROWS, WIDER = 3, 4, 40
OUTPUT = 4 * ROWS * WIDTH  # bytes of a block's output, which is the next one's input
IN_OUTPUTS = "the last output too, in outputs of a block"


class Block(nn.Module):
    """Up, tanh, dropout, down. `ids`: the block begins with an embedding, so that its input is whole numbers."""

    def __init__(self, *, dropout=0.0, ids=False, spare=False):
        super().__init__()
        self.embed = nn.Embedding(7, WIDTH) if ids else nn.Identity()
        self.up = nn.Linear(WIDTH, WIDER * WIDTH)
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(WIDER * WIDTH, WIDTH)
        if spare:
            self.spare = nn.Parameter(torch.ones(WIDTH))  # takes no part
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return self.down(self.drop(torch.tanh(self.up(self.embed(x)))))


class Scaled(nn.Module):
    """A block with two inputs: what the second one says is multiplied in before the product."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.runs = 0

    def forward(self, x, mask):
        self.runs += 1
        return torch.tanh(self.linear(x * mask))


def make_blocks(case):
    if case == "an input of whole numbers":
        return [Block(ids=True), Block()]
    if "two" in case:
        return [Scaled(), Scaled()]
    blocks = [
        Block(
            dropout=0.5 if "dropout" in case else 0.0, spare=case == "a weight that takes no part"
        )
        for _ in range(3)
    ]
    if "twice" in case:
        return [blocks[0], blocks[1], blocks[0]]
    if case == "tied weights":
        blocks[2].up.weight, blocks[2].down = blocks[0].up.weight, blocks[0].down
    if case == THERE:
        for weight in nn.ModuleList(blocks).parameters():
            weight.grad = torch.ones_like(weight)
    if case == "a layer under a second name":
        blocks[1].again = blocks[1].up
    if case == "a frozen layer":
        blocks[1].up.requires_grad_(False)
    return [block.train("eval mode" not in case) for block in blocks]


RELEASED = "three blocks"  # here a sum is taken of the output, after which nobody holds it
THERE = "gradients that are there already"  # as those of the micro-batch before
CHECKPOINT_CASES = (
    RELEASED,
    "a frozen layer",
    "tied weights",
    "a layer under a second name",
    THERE,
    "an input of whole numbers",
    "two inputs",
    "two inputs that are trained",
    "a weight that takes no part",
    "dropout",
    "dropout, in eval mode",
    "a block twice, dropout",
)


def checkpoint(answer, seed):
    shown = {}
    with borrowed() as calls:
        for case in CHECKPOINT_CASES:
            torch.default_generator.manual_seed(seed)
            blocks = make_blocks(case)
            weights = [list(block.parameters()) for block in blocks]
            needs = case in (RELEASED, "two inputs that are trained")
            x = (
                torch.randint(7, (ROWS,))
                if "whole" in case
                else torch.randn(ROWS, WIDTH).requires_grad_(needs)
            )
            more = (
                ((torch.rand(ROWS, WIDTH) > 0.5).float().requires_grad_(needs),)
                if "two" in case
                else ()
            )
            hidden = x
            with Counter() as counter:
                for block in blocks:
                    hidden = answer(block, hidden, *more)
                kept = counter.now
            shown[f"the output ({case})"] = hidden
            if hidden.requires_grad:
                hidden.square().sum().backward()
            shown[f"whether all blocks have the weights that they had ({case})"] = all(
                list(map(id, block.parameters())) == list(map(id, had))
                for block, had in zip(blocks, weights, strict=True)
            )
            for number, had in enumerate(weights, 1):
                trained = [weight for weight in had if weight.requires_grad]
                shown[f"whether block {number} has a gradient ({case})"] = gradient_is_there(
                    trained
                )
                shown[f"the gradient of block {number} ({case})"] = gradients(trained)
            if needs:
                for number, given in enumerate((x, *more), 1):
                    shown[f"whether input {number} has a gradient ({case})"] = gradient_is_there(
                        [given]
                    )
                    shown[f"the gradient of input {number} ({case})"] = gradients([given])
            shown[
                f"the number of inner tensors in memory between forward and backward ({case})"
            ] = kept // (WIDER * OUTPUT)
            shown[
                f"the size of all that is kept between forward and backward, {IN_OUTPUTS} ({case})"
            ] = round(kept / OUTPUT)
            shown[f"how often the blocks ran forward, together ({case})"] = sum(
                block.runs for block in dict.fromkeys(blocks)
            )
            if case == RELEASED:
                with Counter() as counter:
                    hidden = x
                    for block in blocks:
                        hidden = answer(block, hidden)
                    hidden = hidden.sum()
                    kept = counter.now
                shown[
                    f"the size of what is kept once the last output is gone, in outputs of a block ({case})"
                ] = round(kept / OUTPUT)
            shown[f"whether all blocks are in the mode in which they were ({case})"] = all(
                block.training == ("eval mode" not in case) for block in blocks
            )
            shown[f"the number of weights that have a gradient ({case})"] = sum(
                weight.grad is not None
                for weight in {id(weight): weight for had in weights for weight in had}.values()
            )
            shown[f"the random number drawn after training ({case})"] = torch.rand(1).item()
    return shown | {"the number of calls of torch's own checkpoint": len(calls)}


@contextmanager
def borrowed():
    """The calls of torch's own checkpoint while the context is open, under whatever name."""
    calls, before = [], sys.getprofile()

    def on_call(frame, event, _):
        code = frame.f_code
        if (
            event == "call"
            and code.co_name == "checkpoint"
            and code.co_filename.endswith("checkpoint.py")
            and "torch" in code.co_filename
        ):
            calls.append(code.co_filename)

    sys.setprofile(on_call)
    try:
        yield calls
    finally:
        sys.setprofile(before)


# ---------------------------------------------------------------- run_in_segments

LAYER_WIDTH, LAYER_ROWS = 4, 16
ONE = 4 * LAYER_WIDTH * LAYER_ROWS  # bytes of a layer's output
SEGMENT_CASES = (
    (8, 4, ""),
    (7, 3, ""),
    (11, 4, "an input that is trained"),
    (5, 1, ""),
    (4, 4, ""),
    (8, 3, "dropout"),
    (8, 3, "dropout, in eval mode"),
    (8, 3, "a layer three times"),
)  # layers, segments, kind; the last segment but one is never shorter than those before it


class Layer(nn.Module):
    """Linear and tanh: what it keeps is as large as what it gives on."""

    def __init__(self, width=LAYER_WIDTH, dropout=0.0):
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), dropout

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return nn.functional.dropout(x, self.dropout, self.training)


class Wide(nn.Module):
    """Four times as wide inside: it keeps five times what it gives on."""

    def __init__(self, width=LAYER_WIDTH, times=4):
        super().__init__()
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x):
        return torch.tanh(self.down(torch.tanh(self.up(x))))


class Widest(Wide):
    """Sixteen times as wide inside: so much that up to 16 layers need least memory when each is a segment."""

    def __init__(self, width=LAYER_WIDTH):
        super().__init__(width, times=16)


def run_in_segments(answer, seed):
    shown = {}
    for number, segments, kind in SEGMENT_CASES:
        case = name_case(number, segments, kind)
        torch.default_generator.manual_seed(seed)
        layers = [Layer(dropout=0.5 * ("dropout" in kind)) for _ in range(number)]
        layers = [layer.train("eval mode" not in kind) for layer in layers]
        if kind == "a layer three times":  # twice in the first segment, and first in the last
            layers[1] = layers[5] = layers[0]
        given = list(layers)
        with Counter() as counter:
            x = torch.randn(LAYER_ROWS, LAYER_WIDTH).requires_grad_(x_is_trained(kind))
            output = answer(given, x, segments)
            kept = counter.now
            if output.requires_grad:  # otherwise the gradients tell
                output.square().sum().backward()
        shown[f"the output ({case})"] = output
        if x_is_trained(kind):
            shown[f"whether the input has a gradient ({case})"] = gradient_is_there([x])
            shown[f"the gradient of the input ({case})"] = gradients([x])
        for index, layer in enumerate(layers, 1):
            shown[f"whether layer {index} has a gradient ({case})"] = gradient_is_there(
                layer.parameters()
            )
            shown[f"the gradient of layer {index} ({case})"] = gradients(layer.parameters())
        if kind != "dropout":
            shown[f"the most activations in memory, in layer outputs ({case})"] = round(
                counter.most / ONE
            )
            shown[
                f"the size of the activations kept between forward and backward, in layer outputs ({case})"
            ] = round(kept / ONE)
        shown[f"the number of FLOPs ({case})"] = counter.flops
        shown[f"whether the list of layers is as it was ({case})"] = as_it_was(given, layers)
    return shown


def name_case(number, segments, kind):
    return f"{number} layers, {segments} segments" + f", {kind}" * bool(kind)


def x_is_trained(kind):
    return kind == "an input that is trained"


# ---------------------------------------------------------------- choose_segments


@lru_cache
def measured(kind, number, segments):
    """The most activations (bytes) and the FLOPs of a step in so many segments; the layers' constants are in KINDS."""
    with Counter() as counter:
        layers = [kind() for _ in range(number)]
        x = torch.ones(LAYER_ROWS, LAYER_WIDTH)
        weights = counter.now - ONE
        cuts = [number * index // segments for index in range(segments + 1)]
        parts = [nn.Sequential(*layers[start:end]) for start, end in pairwise(cuts)]
        checkpoint_sequential(parts, segments, x, use_reentrant=False).sum().backward()
    return counter.most - weights, counter.flops


KINDS = {
    Layer: (ONE, ONE, 2 * ONE),
    Wide: (ONE, 5 * ONE, 4 * ONE),
    Widest: (ONE, 17 * ONE, 16 * ONE),
}  # boundary, interior, work


def draw_questions(seed):
    """Layers of a kind, how many, and a budget: what some segments need exactly, something between, and too little."""
    random = np.random.default_rng(seed)
    questions = []
    for kind, (boundary, interior, work) in KINDS.items():
        number = int(random.choice([9, 10, 11, 13]))
        for asked in (1, 2, 3, 4, "sqrt"):
            segments = (
                max(1, round(math.sqrt(number * interior / boundary))) if asked == "sqrt" else asked
            )
            segments = min(segments, number)
            exact = formula(number, boundary, interior, work, segments)
            questions.append((kind, number, exact + int(random.integers(0, 2)) * boundary // 4))
        least = min(
            formula(number, boundary, interior, work, segments) for segments in range(1, number + 1)
        )
        questions += [(kind, number, least), (kind, number, least - 1)]
    return questions


def draw_many(seed):
    """Questions about far more layers than are trained here: what every layer its own segment needs, what 2 of 3 segments, too little."""
    random = np.random.default_rng(seed)
    for segments_of in (lambda number: number, lambda number: number // 2 + 9):
        number, boundary = int(random.integers(130, 400)), int(random.integers(2, 9))
        sizes = number, boundary, 300 * boundary * number, int(random.integers(1, 99))
        exact = formula(*sizes, segments_of(number))
        yield *sizes, exact
    yield *sizes, formula(*sizes, number) - 1


def name_question(kind, number, budget):
    return name_sizes(number, *KINDS[kind], budget)


def name_sizes(number, boundary, interior, work, budget):
    return f"{number} layers of {boundary}, {interior} and {work} bytes, budget {budget:,}"


def formula(number, boundary, interior, work, segments):
    return work + (segments - 1) * boundary + math.ceil(number / segments) * interior


def run_again(number, segments):
    """How many of so many layers are run twice: all but those of the last segment."""
    return number * (segments - 1) // segments


def choose_segments(answer, seed):
    shown = {}
    for kind, number, budget in draw_questions(seed):
        sizes = number, *KINDS[kind], budget
        if (got := segments_in(answer(*sizes), number, name_sizes(*sizes), shown)) is not None:
            most, flops = measured(kind, number, got)
            shown[f"the number of bytes over the budget ({name_sizes(*sizes)})"] = max(
                0, most - budget
            )
            shown[f"the number of FLOPs ({name_sizes(*sizes)})"] = flops
    for *sizes, budget in draw_many(seed):
        case = name_sizes(*sizes, budget)
        if (got := segments_in(answer(*sizes, budget), sizes[0], case, shown)) is not None:
            most = formula(*sizes, got)
            shown[f"the number of bytes over the budget ({case})"] = max(0, most - budget)
            shown[f"the number of layers that run twice ({case})"] = run_again(sizes[0], got)
    return shown


def segments_in(got, number, case, shown):
    """The answer where it is a number of segments; `shown` is told what it is."""
    if isinstance(got, np.integer) or (isinstance(got, float) and got.is_integer()):
        got = int(got)
    right_kind = type(got) is int and 1 <= got <= number
    shown[f"the answer ({case})"] = "a number of segments" if right_kind else str(got)
    return got if right_kind else None


# ---------------------------------------------------------------- save_linear

TEXTS, LENGTH, SIZE, DEPTH = 2, 9, 6, 20


class Attention(nn.Module):
    """A small Transformer layer: linear layers with and without a bias, and two products of activations with each other."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.out = nn.Linear(SIZE, SIZE, bias=False)
        self.up, self.down = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE, bias=False)
        self.norm = nn.LayerNorm(SIZE)
        self.query.bias.requires_grad_(False)  # a frozen weight's result is as expensive

    def forward(self, x):
        scores = torch.bmm(self.query(x), self.key(x).transpose(1, 2))
        x = x + self.out(torch.bmm(scores.softmax(-1), self.value(x)))
        tokens = x.flatten(0, 1)  # matrices from here on, so that no shape tells a linear layer
        changed = tokens + self.down(torch.nn.functional.gelu(self.up(tokens)))
        return self.norm(changed).view_as(x)


def save_linear(answer, seed):
    def policy(ctx, op, *args, **kwargs):
        says = answer(ctx, op, *args, **kwargs)
        if not isinstance(says, CheckpointPolicy):
            raise TypeError(f"save_linear returned {says} where a CheckpointPolicy was expected.")
        return says

    def checkpointed(block, x):
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return torch_checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    return train_attention(checkpointed, seed)


def train_attention(run, seed):
    """One forward and backward pass through the layers, which `run(block, x)` runs forward."""
    torch.default_generator.manual_seed(seed)
    block = nn.Sequential(*(Attention() for _ in range(DEPTH)))  # whoever counts runs out
    x = torch.randn(TEXTS, LENGTH + seed % 3, SIZE).requires_grad_()
    with Counter() as counter:
        hidden = run(block, x)
        kept = counter.now
        hidden.square().sum().backward()
    return {
        "the output": hidden,
        "the gradient": gradients([x, *block.parameters()]),
        "the number of bytes kept between forward and backward": kept,
        "the number of FLOPs of forward and backward": counter.flops,
    }
