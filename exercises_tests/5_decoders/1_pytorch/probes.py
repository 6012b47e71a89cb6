"""The questions of the lesson 5_decoders/1_pytorch."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from exercises_tests.probing.one_number import one_number
from exercises_tests.probing.scores import Scores, finite, of_chunks
from exercises_tests.probing.toys import as_it_was, lopsided_loss

IGNORED = -100

# ---------------------------------------------------------------- chunked_loss


VOCABULARY, HIDDEN = 37, 5
LOSS_CASES = (  # tokens, chunk, how many are not to be predicted, what is frozen
    (12, 4, 0, ""),
    (11, 4, 3, ""),
    (9, 2, 4, "the head"),
    (10, 3, 2, "the hidden states"),
    (6, 20, 1, ""),
)


def draw_loss(case, seed):
    tokens, _, ignored, frozen = case
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    head = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator)
    if ignored:  # the first ones, as a prompt is, so that a whole chunk may have no target
        targets[:ignored] = IGNORED
    targets[-1] = 0  # a token like any other
    hidden.requires_grad_(frozen != "the hidden states")
    head.requires_grad_(frozen != "the head")
    return hidden, head, targets


def name_loss(case):
    tokens, chunk, ignored, frozen = case
    ignored = f", {ignored} of them without a target" if ignored else ""
    return f"{tokens} tokens{ignored}, chunk {chunk}" + f", {frozen} frozen" * bool(frozen)


def chunked_loss(answer, seed):
    shown = {}
    for case in LOSS_CASES:
        hidden, head, targets = draw_loss(case, seed)
        before = hidden.detach().clone(), head.detach().clone(), targets.clone()
        name, chunk = name_loss(case), case[1]
        given = hidden * 1, head * 1  # results of an operation, as they are in a model
        with Scores(VOCABULARY, HIDDEN) as scores:
            loss = answer(*given, targets, chunk)
            kept = scores.now
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise TypeError("chunked_loss must return a tensor with one number, the mean loss.")
            if loss.requires_grad:
                (loss.sum() / 2).backward()  # a training may divide the loss once more
        shown[f"the loss ({name})"] = finite(loss.detach().numpy())
        shown[f"whether the loss has a gradient ({name})"] = loss.requires_grad
        for what, tensor in (("the hidden states", hidden), ("the head", head)):
            if tensor.requires_grad:
                gradient = torch.zeros_like(tensor) if tensor.grad is None else 2 * tensor.grad
                shown[f"the gradient of {what} ({name})"] = finite(gradient.numpy())
        shown |= of_chunks(name, chunk, scores.widest, kept, scores.most)
        now = hidden.detach(), head.detach(), targets
        shown[f"whether the arguments are as they were ({name})"] = all(
            torch.equal(one, other) for one, other in zip(before, now, strict=True)
        )
        shown[f"whether what is frozen still asks for no gradient ({name})"] = all(
            one.requires_grad == other.requires_grad
            for one, other in zip(given, (hidden, head), strict=True)
        )
    return shown


# ---------------------------------------------------------------- choose_chunk


def draw_budgets(seed):
    """(tokens, vocabulary, rest, budget): exact budgets, one byte less and more, too little, more than enough."""
    random = np.random.default_rng(seed)
    for number in range(3):
        tokens, vocabulary = int(random.integers(9, 40)), int(random.integers(50, 90))
        rest, chunk = int(random.integers(1000, 9000)), int(random.integers(2, tokens - 1))
        exact = bytes_of_scores(vocabulary, chunk)
        for budget in (rest + exact, rest + exact - 1, rest + exact + 4 * vocabulary):
            yield tokens, vocabulary, rest, budget
        if number == 0:
            yield tokens, vocabulary, 0, exact
            yield tokens, vocabulary, rest, rest + bytes_of_scores(vocabulary, 3 * tokens)
            yield tokens, vocabulary, rest, rest + bytes_of_scores(vocabulary, 1) - 1
            yield tokens, vocabulary, rest, rest + bytes_of_scores(vocabulary, 1)
            yield tokens, vocabulary, rest, rest // 2


MEASURED: dict[int, float] = {}


def bytes_of_scores(vocabulary, chunk):
    """The most bytes of logits, and of what is as large as they are, while a loss of so many tokens is trained: measured."""
    if not MEASURED:
        hidden = torch.ones(8, 3, requires_grad=True)
        with Scores(50, 3) as scores:
            logits = hidden @ torch.ones(50, 3).T
            loss = nn.functional.cross_entropy(logits, torch.ones(8, dtype=torch.int64))
            del logits
            loss.backward()
        MEASURED[0] = scores.most / 8
    return round(MEASURED[0] * chunk * vocabulary * 4)


def name_budget(tokens, vocabulary, rest, budget):
    return f"{tokens} tokens, vocabulary {vocabulary}, rest {rest:,}, budget {budget:,}"


def choose_chunk(answer, seed):
    shown = {}
    for question in draw_budgets(seed):
        found = one_number(answer(*question), "choose_chunk must return a number of tokens")
        shown[f"whether the number of tokens is whole ({name_budget(*question)})"] = isinstance(
            found, int
        )
        shown[f"the number of tokens in a chunk ({name_budget(*question)})"] = found
    return shown


# ---------------------------------------------------------------- attention_keeps


def draw_shapes(seed):
    random = np.random.default_rng(seed)
    for _ in range(4):
        batch, heads, length, head_size = (
            int(number) for number in random.integers((1, 2, 17, 3), (4, 6, 40, 12))
        )
        yield batch, heads, length, 2 * head_size
    yield 1, 1, 64, 8


def name_shape(batch, heads, length, head_size):
    return f"batch {batch}, {heads} heads, {length} tokens, head size {head_size}"


class Attention(TorchDispatchMode):
    """Whether a softmax or a fused attention is `found` among what torch runs, on tensors with bytes or without."""

    found = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found |= any(name in func.name() for name in ("softmax", "attention"))
        return func(*args, **(kwargs or {}))


def attention_keeps(answer, seed):
    shown = {}
    for shape in draw_shapes(seed):
        with Attention() as ran:
            found = answer(*shape)
        if not isinstance(found, dict) or set(found) != {"eager", "sdpa"}:
            raise TypeError(
                'attention_keeps must return a dictionary with the keys "eager" and "sdpa".'
            )
        shown[f"whether attention is run ({name_shape(*shape)})"] = ran.found
        for kind in ("eager", "sdpa"):
            value = float(found[kind])
            if math.isfinite(value) and abs(value - round(value)) < 1e-4:
                value = round(value)
            shown[f"the bytes that {kind} keeps ({name_shape(*shape)})"] = value
    return shown


# ---------------------------------------------------------------- train_with_masters

LEARNING_RATE = 2e-3
MASTER_CASES = (  # micro-batches, accumulation steps, kind
    (8, 4, ""),
    (16, 8, "a frozen layer"),
    (4, 1, "tied weights"),
)


# Here no weight comes near the middle between two numbers of bf16 (to a thousandth of their distance), where sums in another order are rounded to the other.
STEADY = (
    *(1, 3, 4, 5, 7, 9, 10, 13, 14, 18, 19, 20, 21, 22, 25, 26, 27, 29, 30, 32, 33, 35, 36, 37),
    *(
        38,
        41,
        43,
        44,
        47,
        48,
        49,
        50,
        53,
        55,
        63,
        68,
        72,
        74,
        76,
        79,
        84,
        85,
        86,
        87,
        88,
        90,
        92,
        93,
    ),
)


def name_masters(case):
    number, steps, kind = case
    return f"k={steps}, {number} micro-batches" + f", {kind}" * bool(kind)


def draw_masters(case, seed):
    """A bf16 model and its micro-batches. Most of a window's gradient comes from its first, so that the rest are small beside it."""
    number, steps, kind = case
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(STEADY[seed % len(STEADY)])
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2))
        if kind == "a frozen layer":
            model[0].requires_grad_(False)
        if kind == "tied weights":
            model[2].weight = model[0].weight
        micro_batches = []
        for index in range(number):
            size = 1.0 if index % steps == 0 else 0.02
            inputs = torch.randn(4, 6, dtype=torch.bfloat16)
            micro_batches.append((inputs, size * torch.randn(4, 2) + (5 * size)))
    return model.to(torch.bfloat16), micro_batches


def loss_in_float32(outputs, targets):
    return lopsided_loss(outputs.float(), targets)


class Watched(torch.optim.SGD):
    """Notes at each step the gradients, and what was stepped."""

    def __init__(self, tensors, model):
        self.read_once = isinstance(tensors, Iterator)
        tensors = list(tensors)
        super().__init__(tensors, lr=LEARNING_RATE)
        self.model, self.gradients, self.masters, self.models = model, [], [], []
        self.types = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}

    def step(self, closure=None):
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        if self.gradients:  # what the model had, when the next window was through
            self.models.append(vector(self.model.parameters()))
        self.gradients.append(
            vector(
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                for tensor in tensors
            )
        )
        super().step(closure)
        state = self.state[tensors[0]]
        state["steps"] = state.get("steps", 0) + 1
        self.masters.append(vector(tensors))


def vector(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).numpy()


def train_with_masters(answer, seed):
    shown = {}
    for case in MASTER_CASES:
        model, micro_batches = draw_masters(case, seed)
        given, name, made = list(micro_batches), name_masters(case), []

        def make_optimizer(tensors, model=model, made=made):
            made.append(Watched(tensors, model))
            return made[-1]

        answer(model, make_optimizer, loss_in_float32, given, case[1])
        shown[f"the number of optimizers made ({name})"] = len(made)
        if len(made) != 1:
            continue
        [optimizer] = made
        shown[
            f"whether the optimizer's tensors can be read twice ({name})"
        ] = not optimizer.read_once
        counted = max((one.get("steps", 0) for one in optimizer.state.values()), default=0)
        shown[f"the number of steps in the optimizer's state ({name})"] = counted
        optimizer.models.append(vector(model.parameters()))
        shown |= masters_shown(
            name,
            optimizer.gradients,
            optimizer.masters,
            optimizer.models,
            ", ".join(sorted(optimizer.types)),
        )
        shown[f"the type of the model's weights ({name})"] = ", ".join(
            sorted({str(one.dtype).removeprefix("torch.") for one in model.parameters()})
        )
        left = [one.grad for one in model.parameters() if one.grad is not None]
        shown[f"what every .grad of the model is at the end ({name})"] = (
            "None" if not left else "a gradient" if any(map(torch.any, left)) else "zeros"
        )
        shown[f"whether the list of micro-batches is as it was ({name})"] = as_it_was(
            given, draw_masters(case, seed)[1]
        )
        inputs, targets = micro_batches[0]
        model.to(torch.bfloat16)  # whatever types the answer left in it
        loss_in_float32(model(inputs), targets).backward()
        shown[f"whether a backward pass afterwards leaves gradients in the model ({name})"] = all(
            one.grad is not None for one in model.parameters() if one.requires_grad
        )
    return shown


def masters_shown(name, gradients, masters, models, types):
    shown = {
        f"the number of optimizer steps ({name})": len(gradients),
        f"the type of what the optimizer steps ({name})": types,
    }
    for step, parts in enumerate(zip(gradients, masters, models, strict=False), 1):
        gradient, master, model = parts
        shown[f"the gradient at step {step} ({name})"] = gradient
        shown[f"the masters after step {step} ({name})"] = master
        shown[f"the model's weights after step {step} ({name})"] = model
    return shown
