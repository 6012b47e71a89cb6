"""The questions of the lesson 3_local_sgd/1b_averages_and_bytes."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from exercises_tests.probing.local_sgd import LocalCase, probe_on_ranks
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Toy, as_it_was
from trainlean.exercises.comparing import Observation

# ---------------------------------------------------------------- train_with_averager

AVERAGER_CASES = (
    LocalCase(micro_batches=10, accumulation_steps=1, local_steps=2),
    LocalCase(micro_batches=10, accumulation_steps=1, local_steps=2, momentum=0.9),
    LocalCase(micro_batches=8, accumulation_steps=1, local_steps=4, frozen=True),
    LocalCase(micro_batches=8, accumulation_steps=1, local_steps=1),
    LocalCase(micro_batches=9, accumulation_steps=1, local_steps=5, world_size=3, tied=True),
    LocalCase(micro_batches=8, accumulation_steps=1, local_steps=3, groups=True, twice=True),
)


train_with_averager = probe_on_ranks(
    AVERAGER_CASES,
    lambda case, micro_batches, rank: (case.shares(micro_batches)[rank], case.local_steps),
    apart=False,
)

# ---------------------------------------------------------------- communication


def models_to_count(seed: int) -> dict[str, nn.Module]:
    width = 3 + torch.randint(0, 40, (), generator=torch.Generator().manual_seed(seed)).item()
    return {
        "a small model": Toy(width),
        "tied weights": Toy(width, tied=True),
        "a frozen layer": Toy(width, frozen=True),
        "tied weights and batch norm": Normed(width, tied=True),
        "batch norm": nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)),
        "16-bit weights": Toy(width).to(torch.bfloat16),
        "weights of 32 and of 64 bits": nn.Sequential(
            nn.Linear(width, width), nn.Linear(width, 3).double()
        ),
    }


COUNT_CASES = (  # model, micro-batches of all devices, devices, accumulation steps, local steps (None: every step)
    ("a small model", 32, 2, 1, None),
    ("a small model", 32, 2, 1, 4),
    ("a small model", 64, 4, 2, None),
    ("a small model", 56, 4, 2, 3),
    ("tied weights", 24, 2, 4, None),
    ("tied weights", 24, 2, 4, 2),
    ("a frozen layer", 24, 2, 2, None),
    ("a frozen layer", 24, 2, 2, 4),
    ("batch norm", 10, 2, 1, 8),
    ("16-bit weights", 16, 2, 1, 4),
    ("weights of 32 and of 64 bits", 16, 2, 1, 4),
    ("tied weights and batch norm", 12, 2, 1, 4),
    ("a small model", 12, 3, 2, 5),
)


def count_case(name, micro_batches, devices, k, local_steps):
    synchronised = "every step" if local_steps is None else f"H={local_steps}"
    return f"{name}, {devices} devices, k={k}, {synchronised}, {micro_batches} micro-batches"


def counted(case, answer: tuple) -> Observation:
    all_reduces, payload = answer
    return {
        f"the number of all-reduces ({count_case(*case)})": all_reduces,
        f"the number of bytes ({count_case(*case)})": payload,
    }


def communication(answer, seed):
    shown, models = {}, models_to_count(seed)
    for case in COUNT_CASES:
        name, micro_batches, devices, k, local_steps = case
        returned = answer(models[name], micro_batches, devices, k, local_steps)
        try:
            all_reduces, payload = (
                int(count) if float(count).is_integer() else float(count) for count in returned
            )
        except (TypeError, ValueError):
            raise TypeError(
                f"communication returned {returned!r}; expected two whole numbers: all-reduces and bytes"
            ) from None
        shown |= counted(case, (all_reduces, payload))
    return shown


# ---------------------------------------------------------------- average_replicas


class Normed(nn.Module):
    """Batch norm (float buffers and a whole number) between two layers, the first of which may be frozen, and which may share a weight.

    Running levels of the input are buffers, too, but in no `state_dict()`: one is the model's own, the other its last buffer of all.
    The lowest input so far is a buffer that is saved, under a name that tells of no running average.
    A scale is a parameter of one number, a queue a buffer of several whole ones.
    """

    def __init__(
        self,
        width: int = 4,
        *,
        tied: bool = False,
        frozen: bool = False,
        apart: bool = False,
        double: bool = False,
        evaluating: bool = False,
    ):
        super().__init__()
        self.apart = apart  # whether the replicas begin with different weights
        self.evaluating = evaluating  # whether they are in eval mode after their training
        self.first, self.norm, self.last = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Linear(width, width),
        )
        if tied:
            self.last.weight = self.first.weight
        self.first.requires_grad_(not frozen)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("queue", torch.arange(width, dtype=torch.int32))
        self.register_buffer("lowest", torch.zeros(width))
        for module in (self, self.last):
            module.register_buffer("level", torch.zeros(width), persistent=False)
        self.to(torch.float64 if double else torch.float32)

    def forward(self, inputs):
        self.level.mul_(0.9).add_(inputs.mean(0), alpha=0.1)
        self.lowest.copy_(torch.minimum(self.lowest, inputs.amin(0)))
        self.queue.copy_(self.queue.roll(1))
        self.last.level.mul_(0.9).add_(inputs.amax(0), alpha=0.1)
        return self.scale * self.last(self.norm(self.first(inputs)))


REPLICA_CASES = {  # ranks, with gradients, how the model is built
    "2 ranks": (2, True, {}),
    "3 ranks, after zero_grad": (3, False, {}),
    "2 ranks, tied weights": (2, True, {"tied": True}),
    "2 ranks, a frozen layer, after zero_grad": (2, False, {"frozen": True}),
    "2 ranks that began apart, a frozen layer": (2, True, {"frozen": True, "apart": True}),
    "2 ranks, 64-bit numbers": (2, True, {"double": True}),
    "2 ranks, in eval mode": (2, True, {"evaluating": True}),
}


def draw_replicas(seed: int, world_size: int, gradients: bool, how: dict) -> list[nn.Module]:
    """One trained model per rank: frozen weights are equal where the replicas began equal, everything else is different."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Normed(**how)
    models = [copy.deepcopy(model) for _ in range(world_size)]
    for number, one in enumerate(models):
        if one.apart:
            one.first.weight.data += number
        optimizer = torch.optim.SGD(one.parameters(), lr=0.3)
        for _ in range(2 + number):
            optimizer.zero_grad()
            inputs, targets = (
                torch.randn(6, 4, generator=generator) + number,
                torch.randn(6, 4, generator=generator),
            )
            kind = one.first.weight.dtype
            mse_loss(one(inputs.to(kind)), targets.to(kind)).backward()
            optimizer.step()
        if not gradients:
            optimizer.zero_grad()
        one.train(not one.evaluating)
    return models


def floats_and_counts(model: nn.Module) -> tuple:
    parameters = torch.cat(
        [parameter.detach().double().flatten() for parameter in model.parameters()]
    ).numpy()
    buffers = torch.cat(
        [buffer.double().flatten() for buffer in model.buffers() if buffer.is_floating_point()]
    ).numpy()
    gradients = torch.cat(
        [
            (torch.zeros_like(one) if one.grad is None else one.grad).detach().double().flatten()
            for one in model.parameters()
        ]
    ).numpy()
    whole = torch.cat([one.flatten() for one in model.buffers() if not one.is_floating_point()])
    return parameters, buffers, whole.tolist(), gradients


def average_replicas(answer, seed):
    shown = {}
    for case, drawn in REPLICA_CASES.items():
        models = draw_replicas(seed, *drawn)

        def average(rank, models=models):
            model = models[rank.number]
            before, modes = beside_the_values(model), modes_of(model)
            answer(model)
            return (
                *floats_and_counts(model),
                as_it_was(beside_the_values(model), before),
                modes_of(model) == modes,
            )

        shown |= replicas_seen(case, as_ranks(average, drawn[0]))
    return shown


def beside_the_values(model: nn.Module) -> list[tuple]:
    """Of each parameter whether it trains, and a copy of its gradient."""
    return [(one.requires_grad, copy.deepcopy(one.grad)) for one in model.parameters()]


def modes_of(model: nn.Module) -> list[bool]:
    """Of each module whether it is in train mode."""
    return [module.training for module in model.modules()]


def finer_than_32_bits(numbers: np.ndarray) -> bool:
    return bool((numbers != numbers.astype(np.float32)).any())


def replicas_seen(case, seen) -> Observation:
    shown = {}
    for number, (parameters, buffers, counts, gradients, rest_is_same, mode_is_same) in enumerate(
        seen
    ):
        shown[f"the vector of all parameters of rank {number} ({case})"] = parameters
        shown[f"the list of running averages of rank {number} ({case})"] = buffers
        if REPLICA_CASES[case][2].get("double"):
            for what, numbers in {"parameters": parameters, "running averages": buffers}.items():
                shown[
                    f"whether rank {number}'s {what} keep the digits for which 32 bits have no room ({case})"
                ] = finer_than_32_bits(numbers)
        shown[f"the list of whole numbers in the buffers of rank {number} ({case})"] = counts
        shown[f"the vector of all gradients of rank {number} ({case})"] = gradients
        shown[f"whether rank {number}'s gradients and requires_grad are as they were ({case})"] = (
            rest_is_same
        )
        shown[f"whether rank {number}'s modules are in train or eval mode as before ({case})"] = (
            mode_is_same
        )
    return shown
