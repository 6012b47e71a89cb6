"""The questions of the lesson 3_local_sgd/5_sharding."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from exercises_tests.probing.local_sgd import squared_error
from exercises_tests.probing.own_globals import for_every_rank
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Case, Toy, as_it_was, draw, flat
from trainlean.exercises.comparing import Observation

# ---------------------------------------------------------------- train_sharded


@dataclass(frozen=True)
class ShardedCase:
    """One question: so many steps on so many ranks, with AdamW or with SGD and momentum."""

    steps: int
    world_size: int = 2
    adamw: bool = True
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen weight" * self.frozen
        return f"{self.world_size} ranks, {self.steps} steps, {'AdamW' if self.adamw else 'SGD with momentum'}{kind}"

    def draw(self, seed: int):
        """A model and the micro-batches of all ranks: rank r takes number r, r + N and so on.

        The targets are so far away that a limit of 1 would cut the gradients; each rank's last micro-batch is its first one again.
        """
        model, micro_batches = draw(Case(self.steps * self.world_size, 1, self.tied), seed)
        micro_batches = [(inputs, 9 * targets) for inputs, targets in micro_batches]
        micro_batches[-self.world_size :] = micro_batches[: self.world_size]
        model.first.weight.requires_grad_(not self.frozen)
        return model, micro_batches

    def optimizer(self, parameters) -> torch.optim.Optimizer:
        if self.adamw:
            return torch.optim.AdamW(parameters, lr=0.03)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


SHARDED_CASES = (
    ShardedCase(steps=3, adamw=False),
    ShardedCase(steps=4),
    ShardedCase(steps=3, world_size=3),
    ShardedCase(steps=3, tied=True),
    ShardedCase(steps=3, frozen=True),
    ShardedCase(steps=2, world_size=4, adamw=False),
)


def owned(model: nn.Module, rank: int, world_size: int) -> list[nn.Parameter]:
    """The trained parameters that belong to a rank."""
    return [one for one in model.parameters() if one.requires_grad][rank::world_size]


class ShardDiary:
    """What one rank did: which parameters its optimizers were made for, their gradients at each step, the weights before each micro-batch."""

    def __init__(self, model: nn.Module, case: ShardedCase, rank):
        self.model, self.case = model, case
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.made, self.gradients, self.weights, self.optimizers = [], [], [], []
        model.register_forward_pre_hook(lambda *_: self.weights.append(flat(model)))
        self.mine = owned(model, rank.number, case.world_size)
        rank.steps = lambda: len(self.gradients)

    def make(self, parameters):
        """The function that the answer is given."""
        once = " (a generator, which can be read once)" * isinstance(parameters, Iterator)
        parameters = list(parameters)
        names = (self.names.get(one, "another tensor") for one in parameters)
        self.made.append(", ".join(names) + once)
        optimizer = self.case.optimizer(parameters)
        # Behind the step, which leaves gradients as they are: so a hook of the answer's may make the mean.
        optimizer.register_step_post_hook(lambda *_: self._note())
        self.optimizers.append(optimizer)
        return optimizer

    def _note(self):
        gradients = [
            torch.zeros_like(one) if one.grad is None else one.grad.detach() for one in self.mine
        ]
        self.gradients.append(torch.cat([one.double().flatten() for one in gradients]).numpy())

    def pages(self) -> dict:
        state = [
            tensor
            for optimizer in self.optimizers
            for of_one in optimizer.state.values()
            for tensor in of_one.values()
            if isinstance(tensor, torch.Tensor) and tensor.dim()
        ]
        return {
            "made": "; ".join(self.made),
            "gradients": self.gradients,
            "weights": [*self.weights, flat(self.model)],
            "kept": sum(tensor.numel() for tensor in state),
        }


def sharded_training(case: ShardedCase, ranks: list[dict]) -> Observation:
    """What a training with shared-out optimizers shows, rank by rank and step by step."""
    shown = {}
    for number, pages in enumerate(ranks):
        shown[f"the parameters of rank {number}'s optimizer ({case})"] = pages["made"]
        shown[f"the number of optimizer steps on rank {number} ({case})"] = len(pages["gradients"])
    for step in range(case.steps + 1):
        for number, pages in enumerate(ranks):
            if step < len(pages["weights"]):
                when = f"before step {step + 1}" if step < case.steps else "at the end"
                shown[f"rank {number}'s weight {when} ({case})"] = pages["weights"][step]
        for number, pages in enumerate(ranks):
            if step < len(pages["gradients"]):
                shown[f"rank {number}'s own gradient at step {step + 1} ({case})"] = pages[
                    "gradients"
                ][step]
    for number, pages in enumerate(ranks):
        shown[f"the number of values in rank {number}'s optimizer state ({case})"] = pages["kept"]
        shown[f"the number of forward passes on rank {number} ({case})"] = len(pages["weights"]) - 1
        shown[f"whether rank {number}'s micro-batches are as they were ({case})"] = pages[
            "as_before"
        ]
    return shown  # fmt: skip


def train_sharded(answer, seed):
    shown = {}
    answers = for_every_rank(answer, max(case.world_size for case in SHARDED_CASES))
    for case in SHARDED_CASES:
        model, micro_batches = case.draw(seed)
        models = [copy.deepcopy(model) for _ in range(case.world_size)]

        def train(rank, case=case, models=models, micro_batches=micro_batches):
            diary = ShardDiary(models[rank.number], case, rank)
            share = micro_batches[rank.number :: case.world_size]
            before = copy.deepcopy(share)
            answers[rank.number](models[rank.number], diary.make, squared_error, share)
            return diary.pages() | {"as_before": as_it_was(share, before)}

        shown |= sharded_training(case, as_ranks(train, case.world_size))
    return shown


# ---------------------------------------------------------------- shard_bytes


def models_to_shard(seed: int) -> dict[str, nn.Module]:
    rows = 5 + torch.randint(0, 30, (), generator=torch.Generator().manual_seed(seed)).item()
    return {
        "a layer": nn.Linear(3, 2 * rows, bias=False),
        "rows that do not divide evenly": nn.Linear(4, 12 * rows + 5),
        "fewer rows than ranks": nn.Sequential(nn.Linear(rows, 2), nn.Linear(2, 1)),
        "tied weights": Toy(rows, tied=True),
        "a frozen layer": Toy(rows, frozen=True),
        "two batch norms": nn.Sequential(  # of equal numbers, and not shared
            nn.Linear(rows, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        ),
        "convolution": nn.Conv2d(3, rows, 3),
        "16-bit and 64-bit weights": nn.Sequential(
            nn.Linear(rows, 6).bfloat16(), nn.Linear(6, rows).double()
        ),
    }


SHARD_CASES = (  # model, world size
    ("a layer", 2),
    ("rows that do not divide evenly", 3),
    ("rows that do not divide evenly", 4),
    ("rows that do not divide evenly", 12),
    ("fewer rows than ranks", 4),
    ("tied weights", 2),
    ("a frozen layer", 2),
    ("two batch norms", 3),
    ("convolution", 2),
    ("16-bit and 64-bit weights", 4),
    ("a layer", 1),
)


def shards_seen(name: str, kept: list[int]) -> Observation:
    world_size = len(kept)
    return {f"the number of ranks in the list ({name}, {world_size} ranks)": world_size} | {
        f"the bytes of rank {rank}'s shards ({name}, {world_size} ranks)": size
        for rank, size in enumerate(kept)
    }


def shard_bytes(answer, seed):
    shown, models = {}, models_to_shard(seed)
    for name, world_size in SHARD_CASES:
        kept = answer(models[name], world_size)
        if isinstance(kept, Iterator):
            raise TypeError(
                f"shard_bytes must return a list with the bytes of each rank, not a {type(kept).__name__}."
            )
        kept = [float(size) for size in kept]
        kept = [int(size) if size.is_integer() else size for size in kept]
        seen = shards_seen(name, (kept + [0] * world_size)[:world_size])
        shown |= seen | {f"the number of ranks in the list ({name}, {world_size} ranks)": len(kept)}
    return shown
