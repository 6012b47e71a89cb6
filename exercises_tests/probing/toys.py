"""Small models and a recorder, from which the exercises build their probes and oracles."""

import contextlib
import copy
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import nn

from trainlean.exercises.comparing import Observation


class Toy(nn.Module):
    """Two linear layers with a tanh between. `tied` shares one weight between them, `frozen` keeps the first one fixed."""

    def __init__(self, width: int = 4, *, tied: bool = False, frozen: bool = False):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        if tied:
            self.last.weight = self.first.weight
        self.first.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))


NEAR_NOTHING = 2.0**-12  # a power of two rounds nothing


@dataclass(frozen=True)
class Case:
    """One question to an answer: how many micro-batches, how many of them make one optimizer step, and on what model."""

    micro_batches: int
    accumulation_steps: int
    tied: bool = False
    frozen: bool = False
    epochs: int = 1  # how often the answer is called with the same model and micro-batches
    twice: bool = False  # the first micro-batch comes again as the last one
    small: bool = False  # weights and targets near nothing, and so the losses: nobody is through

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        kind += f", {self.epochs} epochs" * (self.epochs > 1)
        kind += ", the first of them again as the last" * self.twice
        kind += ", losses near nothing" * self.small
        return f"k={self.accumulation_steps}, {self.micro_batches} micro-batches{kind}"


def windows(items: list, size: int) -> list[list]:
    """Consecutive groups of `size` items; the last one holds what is left."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def draw(case: Case, seed: int, *, width: int = 4, samples: int = 3):
    """A fresh model and its micro-batches (inputs, targets), each [samples, width]; the same for the same case and seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Toy(width, tied=case.tied, frozen=case.frozen)
    data = [
        tuple(torch.randn(samples, width, generator=generator) for _ in range(2))
        for _ in range(case.micro_batches)
    ]
    if case.small:
        data = [(inputs, targets * NEAR_NOTHING) for inputs, targets in data]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(NEAR_NOTHING)
    if case.twice:
        data[-1] = data[0]
    return model, data


def in_groups(model: nn.Module) -> list[dict]:
    """A model's parameters for an optimizer, in two groups as for weight decay: matrices, and the rest."""
    parameters = list(model.parameters())
    return [
        {"params": [one for one in parameters if (one.ndim > 1) is matrices]}
        for matrices in (True, False)
    ]


def lopsided_loss(input, target):
    """The mean squared error, with twice the weight where the input is above the target: exchanged they give another loss."""
    errors = input - target
    return (errors.square() * (1 + (errors > 0))).mean()


def as_it_was(one: object, other: object) -> bool:
    """Whether lists, tuples, dictionaries and tensors hold the same, in the same order."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return False
        return one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(as_it_was(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(as_it_was, one, other))
    return one == other


def flat(model: nn.Module, *, gradients: bool = False) -> np.ndarray:
    """All trainable weights, or their gradients (zero where there is none), as one float64 vector."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tensors = [parameter.grad if gradients else parameter for parameter in parameters]
    tensors = [
        torch.zeros_like(parameter) if tensor is None else tensor
        for parameter, tensor in zip(parameters, tensors, strict=True)
    ]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).numpy()


def gradient_is_there(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether any of them has a gradient, and be it zeros."""
    return any(parameter.grad is not None for parameter in parameters)


class Recorder:
    """Notes the gradient at each step of an optimizer, the weights after it, and how many micro-batches went forward before it; and how many passes the model made in eval mode.

    Each forward pass is one micro-batch, or as many as it holds, or such a part of one, when a micro-batch is `samples` long;
    then copies of the model count, too.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, samples: int | None = None
    ):
        self.gradients, self.weights, self.forwards = [], [], []
        self.since_step = self.passed = self.in_eval_mode = 0
        self.samples = samples
        model.register_forward_hook(self._forward)
        # After the step the gradient is still the one it used, clipped by another hook or not.
        optimizer.register_step_post_hook(lambda *_: self._after_step(model))

    def _forward(self, model, inputs, _):
        self.in_eval_mode += not model.training
        self.passed += len(inputs[0]) if self.samples else 1
        whole, rest = divmod(self.passed, self.samples or 1)
        self.since_step = self.passed / self.samples if rest else whole

    def _after_step(self, model):
        self.gradients.append(flat(model, gradients=True))
        self.weights.append(flat(model))
        self.forwards.append(self.since_step)
        self.since_step = self.passed = 0

    def __deepcopy__(self, memo):
        if self.samples:
            return self
        memo[id(self)] = other = copy.copy(self)
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other


class Held:
    """What autograd keeps for backward while the context is open: `peak` is the most bytes at one time, weights not counted.

    torch.func refuses to work while that is watched. With `last`, a trained layer whose input is kept, it may: then `inputs_peak`
    is the most bytes of inputs to that layer that were there at one time.
    """

    def __init__(self, model: nn.Module, last: nn.Module | None = None):
        self.now = self.peak = self.inputs_peak = 0
        self.last, self.inputs, self.within = last, [], contextlib.ExitStack()
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (
                tensor if tensor.untyped_storage().data_ptr() in weights else _Kept(self, tensor)
            ),
            lambda kept: kept.tensor if isinstance(kept, _Kept) else kept,
        )

    def __enter__(self):
        self.hooks.__enter__()
        if self.last is not None:
            graph = torch.autograd.graph
            self.within.enter_context(
                mock.patch.object(
                    graph,
                    "disable_saved_tensors_hooks",
                    functools.partial(self._unwatched, graph.disable_saved_tensors_hooks),
                )
            )
        return self

    def __exit__(self, *error):
        self.within.close()
        self.hooks.__exit__(*error)

    @contextlib.contextmanager
    def _unwatched(self, disable, message):
        """torch.func's work, with these hooks away and the layer's inputs counted."""
        self.hooks.__exit__(None, None, None)
        watching = self.last.register_forward_pre_hook(self._input)
        try:
            with disable(message):
                yield
        finally:
            watching.remove()
            self.hooks.__enter__()

    def _input(self, _, inputs):
        tensor, functorch = inputs[0], torch._C._functorch
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        storage = tensor.untyped_storage()
        self.inputs.append((storage._weak_ref(), storage.nbytes()))
        self.inputs = [one for one in self.inputs if not torch.UntypedStorage._expired(one[0])]
        self.inputs_peak = max(self.inputs_peak, sum(size for _, size in self.inputs))


class _Kept:
    def __init__(self, held: Held, tensor: torch.Tensor):
        self.held, self.tensor = held, tensor.detach()
        held.now += tensor.nbytes
        held.peak = max(held.peak, held.now)

    def __del__(self):
        self.held.now -= self.tensor.nbytes


def training(
    case: Case, recorder: Recorder, micro_batches_per_forward: list[int] | None = None
) -> Observation:
    """What a recorded training run shows, step by step: which micro-batches, which gradient, which weights.

    `micro_batches_per_forward` overrides the counted forward passes where one pass is a whole window (the large batch).
    """
    shown = {f"the number of optimizer steps ({case})": len(recorder.gradients)}
    counts = micro_batches_per_forward or recorder.forwards
    for number, (count, gradient, weights) in enumerate(
        zip(counts, recorder.gradients, recorder.weights, strict=False), 1
    ):
        shown[f"the number of micro-batches behind step {number} ({case})"] = count
        shown[f"the gradient at step {number} ({case})"] = gradient
        shown[f"the weight after step {number} ({case})"] = weights
    shown[f"the number of micro-batches left without a step ({case})"] = recorder.since_step
    shown[f"the number of forward passes in eval mode ({case})"] = recorder.in_eval_mode
    return shown
