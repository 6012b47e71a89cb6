"""What the exercises of the lesson 3_local_sgd/1_pytorch must do, and the mistakes known to be made."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Case, Recorder, Toy, draw, flat
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE = 0.1
LARGER_THAN_A_SIGNAL = 8  # bytes: a rank may also tell the others a number


def squared_error(model, batch):
    """The loss of a micro-batch, in the form in which the lesson's loops are given it."""
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


@dataclass(frozen=True)
class LocalCase:
    """One question to a training on several ranks; `micro_batches` are those of all ranks together."""

    micro_batches: int
    accumulation_steps: int
    averaging_period: int
    ranks: int = 2
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        return f"{self.ranks} ranks, k={self.accumulation_steps}, H={self.averaging_period}, {self.micro_batches} micro-batches{kind}"

    @property
    def steps(self) -> int:
        return self.micro_batches // (self.ranks * self.accumulation_steps)

    @property
    def averages(self) -> list[int]:
        """The optimizer steps after which the replicas are averaged."""
        return [
            step
            for step in range(1, self.steps + 1)
            if step % self.averaging_period == 0 or step == self.steps
        ]

    def shares(self, micro_batches):
        return [micro_batches[rank :: self.ranks] for rank in range(self.ranks)]

    def draw(self, seed: int, *, apart: bool):
        """The models of all ranks, which begin `apart` or equal, and the micro-batches of all ranks."""
        model, micro_batches = draw(
            Case(self.micro_batches, self.accumulation_steps, self.tied, self.frozen), seed
        )
        generator = torch.Generator().manual_seed(seed + 1)
        models = [model, *(copy.deepcopy(model) for _ in range(self.ranks - 1))]
        for other in models[1:] if apart else []:
            for parameter in other.parameters():
                parameter.data += torch.randn(parameter.shape, generator=generator) / 4
        return models, micro_batches


class Diary(Recorder):
    """What one rank did: the weights at its first step, all that a Recorder notes, and where in its training it communicated."""

    def __init__(self, model, optimizer, rank, accumulation_steps: int):
        super().__init__(model, optimizer)
        self.model, self.rank, self.at_first = model, rank, None
        optimizer.register_step_pre_hook(lambda *_: self._first())
        rank.steps = lambda: len(self.weights)
        rank.where = lambda: len(self.weights) + self.since_step / accumulation_steps

    def _first(self):
        if self.at_first is None:
            self.at_first = flat(self.model)

    def pages(self) -> dict:
        """What is compared."""
        averages = sorted(
            {
                sent.at
                for sent in self.rank.sent
                if sent.at > 0 and (sent.bytes > LARGER_THAN_A_SIGNAL or sent.kind == "broadcast")
            }
        )
        return {
            "forwards": self.forwards,
            "at_first": self.at_first,
            "gradients": self.gradients,
            "weights": self.weights,
            "averages": averages,
            "at_end": flat(self.model),
        }


def in_words(moments: list[float]) -> str:
    """Moments of a training, in optimizer steps, as a list to be read."""
    return (
        ", ".join(
            str(int(moment)) if moment == int(moment) else f"within step {int(moment) + 1}"
            for moment in moments
        )
        or "empty"
    )


def local_training(case: LocalCase, ranks: list[dict]) -> Observation:
    """What a training on several ranks shows, rank by rank and step by step."""
    shown = {
        f"the number of optimizer steps on rank {number} ({case})": len(pages["weights"])
        for number, pages in enumerate(ranks)
    }
    for number, pages in enumerate(ranks):
        if pages["at_first"] is not None:
            shown[f"rank {number}'s weight at its first optimizer step ({case})"] = pages[
                "at_first"
            ]
    # The last rank never has more micro-batches than the others, so nothing is left over there.
    shown[f"the list of optimizer steps after which the ranks communicated ({case})"] = in_words(
        ranks[-1]["averages"]
    )
    for step in range(max(len(pages["weights"]) for pages in ranks)):
        for number, pages in enumerate(ranks):
            if step < len(pages["weights"]):
                shown[
                    f"the number of micro-batches behind rank {number}'s step {step + 1} ({case})"
                ] = pages["forwards"][step]
                shown[f"rank {number}'s gradient at step {step + 1} ({case})"] = pages["gradients"][
                    step
                ]
                shown[f"rank {number}'s weight right after step {step + 1} ({case})"] = pages[
                    "weights"
                ][step]
    gap = max(float(abs(ranks[0]["at_end"] - pages["at_end"]).max()) for pages in ranks)
    shown[f"the largest difference between the ranks' weights at the end ({case})"] = (
        gap if gap > 1e-6 else 0.0
    )
    for number, pages in enumerate(ranks):
        shown[f"rank {number}'s weight at the end ({case})"] = pages["at_end"]
    return shown


def averaged(models) -> None:
    """Give all models the mean of their parameters."""
    with torch.no_grad():
        for replicas in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([replica.double() for replica in replicas]).mean(0)
            for replica in replicas:
                replica.copy_(mean)


def true_local_training(case: LocalCase, seed: int, *, apart: bool) -> Observation:
    """The truth: the replicas trained one after the other in one process, averaged where the case says."""
    models, micro_batches = case.draw(seed, apart=apart)
    models = [copy.deepcopy(models[0]) for _ in models]
    ranks = [
        {
            "forwards": [],
            "at_first": flat(model),
            "gradients": [],
            "weights": [],
            "averages": [float(step) for step in case.averages],
        }
        for model in models
    ]
    for step in range(1, case.steps + 1):
        for model, pages, share in zip(models, ranks, case.shares(micro_batches), strict=True):
            window = share[(step - 1) * case.accumulation_steps : step * case.accumulation_steps]
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
            pages["gradients"].append(flat(model, gradients=True))
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= LEARNING_RATE * parameter.grad
            pages["weights"].append(flat(model))
            pages["forwards"].append(len(window))
        if step in case.averages:
            averaged(models)
    for model, pages in zip(models, ranks, strict=True):
        pages["at_end"] = flat(model)
    return local_training(case, ranks)


# What wrong and right answers are made of


def mean_parameters(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def mean_flat(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffer = nn.utils.parameters_to_vector(parameters).detach()
    dist.all_reduce(buffer)
    nn.utils.vector_to_parameters(buffer / dist.get_world_size(), parameters)


def sum_parameters(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)


def half_parameters(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= 2


def parameters_of_rank_0(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def mean_on_rank_0_only(model):
    for parameter in model.parameters():
        total = parameter.data.clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            parameter.data.copy_(total / dist.get_world_size())


def mean_reduced_to_rank_0(model):
    for parameter in model.parameters():
        dist.reduce(parameter.data, dst=0)
        if dist.get_rank() == 0:
            parameter.data /= dist.get_world_size()


def mean_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def nothing(model):
    pass


# ---------------------------------------------------------------- train_local_sgd

LOCAL_CASES = (
    LocalCase(micro_batches=16, accumulation_steps=2, averaging_period=3),
    LocalCase(micro_batches=8, accumulation_steps=1, averaging_period=2, tied=True),
    LocalCase(micro_batches=18, accumulation_steps=2, averaging_period=2, ranks=3),
    LocalCase(
        micro_batches=9, accumulation_steps=2, averaging_period=2, frozen=True
    ),  # one left over
    LocalCase(micro_batches=7, accumulation_steps=1, averaging_period=1),  # one left over
)


def probe_local(answer, seed):
    shown = {}
    for case in LOCAL_CASES:
        models, micro_batches = case.draw(seed, apart=True)

        def train(rank, case=case, models=models, micro_batches=micro_batches):
            model = models[rank.number]
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            diary = Diary(model, optimizer, rank, case.accumulation_steps)
            answer(
                model,
                optimizer,
                squared_error,
                list(micro_batches),
                case.accumulation_steps,
                case.averaging_period,
            )
            return diary.pages()

        shown |= local_training(case, as_ranks(train, case.ranks))
    return shown


def oracle_local(seed):
    shown = {}
    for case in LOCAL_CASES:
        shown |= true_local_training(case, seed, apart=True)
    return shown


def whole_windows(rank, ranks, micro_batches, k):
    return micro_batches[rank::ranks][: len(micro_batches) // (ranks * k) * k]


def local_loop(
    *,
    start=parameters_of_rank_0,
    share=whole_windows,
    average=mean_parameters,
    due=lambda step, period, steps: step % period == 0 or step == steps,
    before_step=nothing,
    in_window=lambda number, k, period: False,
    divide=True,
    zero=True,
    short_window=False,
):
    """The training of a rank; the arguments say where it departs from the right one.

    `due(step, period, steps)` counts steps from 1; `in_window(number, k, period)` asks for an average after micro-batch `number`.
    """

    def train(model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period):
        k, rank = accumulation_steps, dist.get_rank()
        start(model)
        mine = share(rank, dist.get_world_size(), micro_batches, k)
        steps, step = len(mine) // k + (short_window and len(mine) % k > 0), 0
        for number, batch in enumerate(mine, 1):
            loss = loss_of(model, batch)
            (loss / k if divide else loss).backward()
            if in_window(number, k, averaging_period):
                average(model)
            if number % k == 0 or (short_window and number == len(mine)):
                step += 1
                before_step(model) if before_step is not mean_gradients_when_due else before_step(
                    model, due(step, averaging_period, steps)
                )
                optimizer.step()
                if zero:
                    optimizer.zero_grad()
                if due(step, averaging_period, steps):
                    average(model)

    return train


def counts_micro_batches(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period, *, last=True
):
    """Averages at the end of a round: the counter of the loop is compared with H, in and out of windows."""
    k = accumulation_steps
    parameters_of_rank_0(model)
    mine = whole_windows(dist.get_rank(), dist.get_world_size(), micro_batches, k)
    for number, batch in enumerate(mine, 1):
        (loss_of(model, batch) / k).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % averaging_period == 0 or (last and number == len(mine)):
            mean_parameters(model)


def mean_gradients_when_due(model, due):
    if due:
        mean_gradients(model)


def all_of_them(rank, ranks, micro_batches, k):
    return micro_batches[: len(micro_batches) // k * k]


def every_of_mine(rank, ranks, micro_batches, k):
    return micro_batches[rank::ranks]


def consecutive(rank, ranks, micro_batches, k):
    each = len(micro_batches) // (ranks * k) * k
    return micro_batches[rank * each : (rank + 1) * each]


def trainable_of_rank_0(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter.data, src=0)


def never(step, period, steps):
    return False


def counts_from_0(step, period, steps):
    return (step - 1) % period == 0


def gives_back_windows(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
):
    rank, ranks, k = dist.get_rank(), dist.get_world_size(), accumulation_steps
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, src=0)
    since_average = 0
    for start in range(0, len(micro_batches) - ranks * k + 1, ranks * k):
        optimizer.zero_grad()
        window = micro_batches[start + rank : start + ranks * k : ranks]
        for batch in window:
            loss_of(model, batch).div(k).backward()
        optimizer.step()
        since_average += 1
        if since_average == averaging_period:
            mean_flat(model)
            since_average = 0
    mean_flat(model)


def goes_on_without_a_step(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    mine = micro_batches[dist.get_rank() :: dist.get_world_size()]
    steps = len(micro_batches) // dist.get_world_size() // accumulation_steps
    done = 0
    for number, batch in enumerate(mine, 1):
        (loss_of(model, batch) / accumulation_steps).backward()
        if number % accumulation_steps == 0 and done < steps:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % averaging_period == 0:
                mean_parameters(model)
    mean_parameters(model)


def averages_with_the_operation(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
):
    def average(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)

    local_loop(average=average)(
        model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
    )


def with_ddp_at_every_step(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
):
    replica = nn.parallel.DistributedDataParallel(model)  # which also sends rank 0's weights
    local_loop(start=nothing)(
        replica, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
    )


def with_ddp_kept_silent(
    model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period
):
    ranks = dist.get_world_size()
    replica = nn.parallel.DistributedDataParallel(model)
    mine = micro_batches[dist.get_rank() :: ranks]
    steps = len(micro_batches) // (ranks * accumulation_steps)
    with replica.no_sync():
        for step in range(steps):
            for batch in mine[step * accumulation_steps : (step + 1) * accumulation_steps]:
                (loss_of(replica, batch) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            if (step + 1) % averaging_period == 0 or step == steps - 1:
                mean_parameters(model)


train_local_sgd = Exercise(
    name="train_local_sgd",
    points=4,
    devices=2,
    probe=probe_local,
    oracle=oracle_local,
    truth="the right one",
    mistakes=(
        Mistake(
            "gradients averaged in place of parameters",
            local_loop(before_step=mean_gradients_when_due, average=nothing),
            why="A common gradient makes one common step; the distance that the replicas have gone apart in the steps before stays as it is.",
            hint="After H steps alone the replicas have different weights: which tensors must be averaged so that they are equal again?",
        ),
        Mistake(
            "sum in place of mean",
            local_loop(average=sum_parameters),
            why="`all_reduce` adds up; without a division every weight is multiplied by the number of ranks at each average.",
            hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
        ),
        Mistake(
            "divided by two",
            local_loop(average=half_parameters),
            why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
            hint="How many summands does the sum have on three ranks?",
        ),
        Mistake(
            "first average after the first step",
            local_loop(due=counts_from_0),
            local_loop(
                due=lambda step, period, steps: counts_from_0(step, period, steps) or step == steps
            ),
            why="Counted from 0, the very first step is a multiple of H; the replicas are averaged after steps 1, H + 1, 2 H + 1.",
            hint="Which number does your counter have right after the first optimizer step?",
        ),
        Mistake(
            "no last average",
            local_loop(due=lambda step, period, steps: step % period == 0),
            why="When the number of steps is no multiple of H, the training ends in the middle of a period and every rank keeps another model.",
            hint="With 4 steps and H = 3: when did the replicas last meet, and what happened afterwards?",
        ),
        Mistake(
            "gradients averaged at every step as well",
            local_loop(before_step=mean_gradients),
            local_loop(before_step=mean_gradients, due=never),
            with_ddp_at_every_step,
            why="The replicas never go apart, so nothing is left to average: this is the every-step synchronisation that Local SGD was to avoid.",
            hint="What does a rank need from the others between two averages?",
        ),
        Mistake(
            "H counts micro-batches",
            local_loop(
                in_window=lambda number, k, period: number % period == 0,
                due=lambda step, period, steps: step == steps,
            ),
            local_loop(in_window=lambda number, k, period: number % period == 0, due=never),
            local_loop(
                due=lambda step, period, steps: False,
                in_window=lambda number, k, period: number % period == 0 and number % k,
            ),
            counts_micro_batches,
            partial(counts_micro_batches, last=False),
            why="H is a number of optimizer steps; counted in micro-batches the averages come more often, and in the middle of a window.",
            hint="By how much does your counter grow in one window of k micro-batches?",
        ),
        Mistake(
            "averaged inside the window",
            local_loop(
                in_window=lambda number, k, period: (number - 1) // k % period == period - 1,
                due=never,
            ),
            local_loop(
                in_window=lambda number, k, period: (number - 1) // k % period == period - 1,
                due=lambda step, period, steps: step == steps,
            ),
            why="The average comes before the optimizer's step, so the last step before it is not in it and the replicas part again at once.",
            hint="In which order do the last backward pass of a window, the optimizer's step and the average come?",
        ),
        Mistake(
            "replicas begin with different weights",
            local_loop(start=nothing),
            why="The ranks were given different weights; the mean of two networks that were never one is no good network.",
            hint="Which collective gives every rank the tensor of rank 0?",
        ),
        Mistake(
            "replicas begin with the mean",
            local_loop(start=mean_parameters),
            why="The replicas are equal, but the mean of random starts is a much smaller start; all ranks were to begin with rank 0's weights.",
            hint="Which collective gives every rank the tensor of rank 0?",
        ),
        Mistake(
            "frozen weights left out at the start",
            local_loop(start=trainable_of_rank_0),
            why="Frozen weights do not change, so where they differ at the start they differ for good, and each rank trains another network.",
            hint="Does a weight have to be trained in order to matter in the forward pass?",
        ),
        Mistake(
            "every rank trains on everything",
            local_loop(share=all_of_them),
            why="All ranks do the same work on the same micro-batches; the replicas never differ, and nothing is won by having several.",
            hint="Which micro-batches does rank 1 see, and which does rank 0?",
        ),
        Mistake(
            "consecutive pieces",
            local_loop(share=consecutive),
            why="Rank r takes micro-batches r, r + N, r + 2N and so on; consecutive pieces are another order of the data.",
            hint="Which slice takes every N-th element of a list, from the r-th on?",
        ),
        Mistake(
            "mean or rank 0's weights on one rank only",
            local_loop(average=mean_on_rank_0_only),
            local_loop(average=mean_reduced_to_rank_0),
            why="Only rank 0 gets the mean; the other ranks go on with their own weights.",
            hint="After the average, which weights does rank 1 hold?",
        ),
        Mistake(
            "rank 0's weights sent to all",
            local_loop(average=parameters_of_rank_0),
            why="The replicas are equal again, but what the other ranks have learned since the last average is thrown away.",
            hint="How much does the work of rank 1 count in the new weights?",
        ),
        Mistake(
            "not the same number of steps on every rank",
            local_loop(share=every_of_mine),
            local_loop(share=every_of_mine, average=mean_flat),
            local_loop(share=every_of_mine, short_window=True),
            why="With a rest in the data some ranks get a micro-batch more; they make a step or an average more and wait for ranks that have already ended.",
            hint="How many whole windows does the rank with the fewest micro-batches have?",
        ),
        Mistake(
            "loss not divided",
            local_loop(divide=False),
            why="Averaging over the ranks has nothing to do with the k micro-batches of a window: their gradients are added up, and the step is k times too long.",
            hint="What did the loop of the first unit do with the loss before `backward`?",
        ),
        Mistake(
            "gradients never zeroed",
            local_loop(zero=False),
            why="Each window begins with the sum of all gradients before it.",
            hint="Who empties `.grad` after a step?",
        ),
    ),
    hints=(
        "What must the ranks do together, and at which moments: before the first step, between steps, after the last?",
        "Before the loop: broadcast every parameter from rank 0. steps = len(micro_batches) // (world_size * k). After optimizer step number `step` (from 1), average if step % H == 0 or step == steps.",
        "mine = micro_batches[rank::world_size]; for step in range(1, steps + 1): backward of loss / k for mine[(step - 1) * k : step * k]; step, zero_grad; where an average is due, all_reduce each parameter.data and divide it by world_size.",
    ),
    also_right=(
        gives_back_windows,
        goes_on_without_a_step,
        averages_with_the_operation,
        with_ddp_kept_silent,
    ),
)

# ---------------------------------------------------------------- train_with_averager

AVERAGER_CASES = (
    LocalCase(micro_batches=10, accumulation_steps=1, averaging_period=2),
    LocalCase(micro_batches=8, accumulation_steps=1, averaging_period=4, frozen=True),
    LocalCase(micro_batches=6, accumulation_steps=1, averaging_period=1),
    LocalCase(micro_batches=9, accumulation_steps=1, averaging_period=5, ranks=3, tied=True),
)


def probe_averager(answer, seed):
    shown = {}
    for case in AVERAGER_CASES:
        models, micro_batches = case.draw(seed, apart=False)
        shares = case.shares(micro_batches)

        def train(rank, case=case, models=models, shares=shares):
            model = models[rank.number]
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            diary = Diary(model, optimizer, rank, case.accumulation_steps)
            answer(model, optimizer, squared_error, shares[rank.number], case.averaging_period)
            return diary.pages()

        shown |= local_training(case, as_ranks(train, case.ranks))
    return shown


def oracle_averager(seed):
    shown = {}
    for case in AVERAGER_CASES:
        shown |= true_local_training(case, seed, apart=False)
    return shown


def averager_loop(warmup=lambda period: 0, *, last=nothing, zero_late=False):
    """The loop of torch's documentation, with `warmup(period)` steps of warm-up and `last(model)` after the loop."""

    def train(model, optimizer, loss_of, micro_batches, averaging_period):
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        averager = PeriodicModelAverager(
            period=averaging_period, warmup_steps=warmup(averaging_period)
        )
        for batch in micro_batches:
            if not zero_late:
                optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if zero_late:
                optimizer.zero_grad()
            averager.average_parameters(model.parameters())
        last(model)

    return train


def last_asked_of_the_averager(warmup):
    def train(model, optimizer, loss_of, micro_batches, averaging_period):
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        averager = PeriodicModelAverager(
            period=averaging_period, warmup_steps=warmup(averaging_period)
        )
        for batch in micro_batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            averager.average_parameters(model.parameters())
        averager.average_parameters(model.parameters())

    return train


def mean_asked_by_rank_0(model):
    if dist.get_rank() == 0:
        mean_parameters(model)


def sets_its_counter(model, optimizer, loss_of, micro_batches, averaging_period):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(period=averaging_period)
    averager.step = 1
    local = PostLocalSGDOptimizer(optimizer, averager)
    for batch in micro_batches:
        local.zero_grad()
        loss_of(model, batch).backward()
        local.step()
    if len(micro_batches) % averaging_period:
        mean_flat(model)


def counts_by_hand(model, optimizer, loss_of, micro_batches, averaging_period, *, zero=True):
    for number, batch in enumerate(micro_batches, 1):
        loss_of(model, batch).backward()
        optimizer.step()
        if zero:
            optimizer.zero_grad()
        if number % averaging_period == 0 or number == len(micro_batches):
            mean_parameters(model)


def one_less(period):
    return period - 1


train_with_averager = Exercise(
    name="train_with_averager",
    points=3,
    devices=2,
    probe=probe_averager,
    oracle=oracle_averager,
    mistakes=(
        Mistake(
            "both surprises",
            averager_loop(),
            why="A counter that begins at 0, as the averager's does, averages after steps 1, H + 1, 2 H + 1; and after the last step nobody averages.",
            hint="After which steps did the replicas meet, and how far apart do they end?",
        ),
        Mistake(
            "still averaged after the first step",
            averager_loop(last=mean_parameters),
            why="The replicas end equal, but the periods are shifted: the first average comes after one step, not after H.",
            hint="For how many steps must the averager keep still so that its first average falls on step H?",
        ),
        Mistake(
            "no last average",
            averager_loop(one_less),
            why="The periods are right, but when the training ends in the middle of one, the replicas stay apart.",
            hint="What do the ranks hold when the number of steps is no multiple of H?",
        ),
        Mistake(
            "warm-up of H steps",
            averager_loop(lambda period: period),
            averager_loop(lambda period: period, last=mean_parameters),
            why="The averager counts its first call as 0, so a warm-up of H makes the first average fall on step H + 1.",
            hint="Which number does the averager's counter have when it is called after step H?",
        ),
        Mistake(
            "warm-up of one step",
            averager_loop(lambda period: 1, last=mean_parameters),
            averager_loop(lambda period: 1),
            why="After a warm-up of one step the first average falls on step 2, whatever H is.",
            hint="How does the number of warm-up steps depend on H?",
        ),
        Mistake(
            "the averager asked once more",
            last_asked_of_the_averager(one_less),
            last_asked_of_the_averager(lambda period: 0),
            why="After the loop the averager is asked for one more step, and its counter decides: it averages only when that number happens to suit.",
            hint="What does `average_parameters` of the averager do when its counter is no multiple of the period?",
        ),
        Mistake(
            "averaged after zero_grad",
            averager_loop(one_less, last=mean_parameters, zero_late=True),
            averager_loop(zero_late=True),
            averager_loop(one_less, zero_late=True),
            averager_loop(zero_late=True, last=mean_parameters),
            why="The averager takes only parameters that have a gradient, and after `zero_grad` there are none (torch 2.13).",
            hint="Which parameters does torch's averager leave out, and what does `zero_grad` do to `.grad`?",
        ),
        Mistake(
            "rank 0's weights in place of the last average",
            averager_loop(one_less, last=parameters_of_rank_0),
            averager_loop(last=parameters_of_rank_0),
            why="The ranks end equal, but what the others learned since the last average is thrown away.",
            hint="How much does the work of rank 1 since the last average count?",
        ),
        Mistake(
            "sum in place of the last mean",
            averager_loop(one_less, last=sum_parameters),
            averager_loop(last=sum_parameters),
            why="`all_reduce` adds up; the weights end multiplied by the number of ranks.",
            hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
        ),
        Mistake(
            "last average of the gradients",
            averager_loop(one_less, last=mean_gradients),
            why="After the last step no gradient is used any more; it is the weights that differ.",
            hint="Which tensors of the two ranks are to be equal at the end?",
        ),
        Mistake(
            "last average on rank 0 only",
            averager_loop(one_less, last=mean_asked_by_rank_0),
            averager_loop(last=mean_asked_by_rank_0),
            why="A collective needs every rank: rank 0 waits for the others, which have already ended.",
            hint="Which ranks call the last `all_reduce`?",
        ),
        Mistake(
            "gradients never zeroed",
            partial(counts_by_hand, zero=False),
            why="The averages are right, but each step takes the sum of all gradients before it.",
            hint="Who empties `.grad` between two steps?",
        ),
    ),
    hints=(
        "The averager's counter is 0 at its first call: for how many calls must it keep still so that its first average comes after step H?",
        "warmup_steps moves the first average; after the loop average once more, with your own all_reduce or with `average_parameters` from torch.distributed.algorithms.model_averaging.utils.",
        "PeriodicModelAverager(period=H, warmup_steps=H - 1); after the loop: for each parameter, dist.all_reduce(parameter.data), then divide by dist.get_world_size().",
    ),
    also_right=(sets_its_counter, counts_by_hand, averager_loop(one_less, last=mean_flat)),
)

# ---------------------------------------------------------------- communication


def models_to_count(seed: int) -> dict[str, nn.Module]:
    width = 3 + torch.randint(0, 40, (), generator=torch.Generator().manual_seed(seed)).item()
    return {
        "a small model": Toy(width),
        "tied weights": Toy(width, tied=True),
        "a frozen layer": Toy(width, frozen=True),
        "batch norm": nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)),
        "16-bit weights": Toy(width).to(torch.bfloat16),
    }


COUNT_CASES = (  # model, micro-batches of all devices, devices, accumulation steps, averaging period (None: every step)
    ("a small model", 32, 2, 1, None),
    ("a small model", 32, 2, 1, 4),
    ("a small model", 64, 4, 2, None),
    ("a small model", 64, 4, 2, 3),
    ("tied weights", 24, 2, 4, None),
    ("tied weights", 24, 2, 4, 2),
    ("a frozen layer", 24, 2, 2, None),
    ("a frozen layer", 24, 2, 2, 4),
    ("batch norm", 10, 2, 1, 8),
    ("16-bit weights", 16, 2, 1, 4),
    ("a small model", 12, 3, 2, 5),
)


def count_case(name, micro_batches, devices, k, period):
    synchronised = "every step" if period is None else f"H={period}"
    return f"{name}, {devices} devices, k={k}, {synchronised}, {micro_batches} micro-batches"


def counted(case, answer: tuple) -> Observation:
    all_reduces, payload = answer
    return {
        f"the number of all-reduces ({count_case(*case)})": all_reduces,
        f"the number of bytes ({count_case(*case)})": payload,
    }


def probe_communication(answer, seed):
    shown, models = {}, models_to_count(seed)
    for case in COUNT_CASES:
        name, micro_batches, devices, k, period = case
        returned = answer(models[name], micro_batches, devices, k, period)
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


def oracle_communication(seed):
    shown, models = {}, models_to_count(seed)
    for case in COUNT_CASES:
        name, micro_batches, devices, k, period = case
        stored = {
            parameter.untyped_storage().data_ptr(): parameter.nbytes
            for parameter in models[name].parameters()
            if parameter.requires_grad
        }
        sent, step, given_out = [], 0, 0
        while given_out < micro_batches:  # one optimizer step of all devices
            given_out += devices * k
            step += 1
            if period is None or step % period == 0 or given_out == micro_batches:
                sent.append(sum(stored.values()))
        shown |= counted(case, (len(sent), sum(sent)))
    return shown


def counting(
    *,
    parameters=lambda model: [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ],
    steps=lambda micro_batches, devices, k: micro_batches // (devices * k),
    averages=lambda steps, period: -(-steps // period),
    size=lambda parameter: parameter.nbytes,
    messages=lambda parameters: 1,
    factor=lambda devices: 1,
):
    """The count, with the arguments saying where it departs from the right one."""

    def communication(model, micro_batches, devices, accumulation_steps, averaging_period=None):
        taken = steps(micro_batches, devices, accumulation_steps)
        times = taken if averaging_period is None else averages(taken, averaging_period)
        sent = parameters(model)
        return times * messages(sent), times * sum(size(parameter) for parameter in sent) * factor(
            devices
        )

    return communication


def tied_twice(model):
    return [
        parameter
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    ]


def with_state(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad] + list(
        model.buffers()
    )


def with_everything(model):
    return list(dict(model.state_dict()).values())


def by_division(model, micro_batches, devices, accumulation_steps, averaging_period=None):
    import math

    steps = micro_batches / devices / accumulation_steps
    times = math.ceil(steps / (averaging_period or 1))
    payload = sum(
        parameter.numel() * parameter.element_size() * parameter.requires_grad
        for parameter in model.parameters()
    )
    return [times, times * payload]


communication = Exercise(
    name="communication",
    points=3,
    probe=probe_communication,
    oracle=oracle_communication,
    mistakes=(
        Mistake(
            "frozen weights counted",
            counting(parameters=lambda model: list(model.parameters())),
            why="A frozen weight has no gradient and never changes, so neither of the two ways has to send it.",
            hint="Which of the weights are different on the two ranks after a step?",
        ),
        Mistake(
            "tied weights counted twice",
            counting(parameters=tied_twice),
            why="A weight that two layers share is stored once, has one gradient and is sent once.",
            hint="How often does `model.parameters()` give a weight that two layers share?",
        ),
        Mistake(
            "buffers counted",
            counting(parameters=with_state),
            counting(parameters=with_everything),
            why="The running averages of batch norm are buffers, not parameters; they are in no gradient and in no average of the parameters.",
            hint="Which tensors of `state_dict()` are not in `parameters()`?",
        ),
        Mistake(
            "micro-batches in place of optimizer steps",
            counting(steps=lambda micro_batches, devices, k: micro_batches // devices),
            why="The ranks communicate at optimizer steps, and a step comes once in k micro-batches.",
            hint="How many optimizer steps does a rank make with 8 micro-batches and k = 4?",
        ),
        Mistake(
            "bytes sent taken for the payload",
            counting(factor=lambda devices: 2 * (devices - 1) / devices),
            why="2(N-1)/N times the payload is what a rank of a ring sends; the payload is what it hands over, whoever carries it how.",
            hint="How large are the tensors that a rank gives to `all_reduce`?",
        ),
        Mistake(
            "devices not counted",
            counting(steps=lambda micro_batches, devices, k: micro_batches // k),
            why="The micro-batches are divided among the devices, so each makes fewer steps.",
            hint="How many of the micro-batches does one rank see?",
        ),
        Mistake(
            "last average forgotten",
            counting(averages=lambda steps, period: steps // period),
            why="When the steps are no multiple of H, one more average comes after the last step.",
            hint="With 8 steps and H = 3: after which steps are the replicas averaged?",
        ),
        Mistake(
            "last average always added",
            counting(averages=lambda steps, period: steps // period + 1),
            why="When the last step is a multiple of H, the replicas have just been averaged and no further average is needed.",
            hint="With 8 steps and H = 4: after which steps are the replicas averaged?",
        ),
        Mistake(
            "not rounded",
            counting(averages=lambda steps, period: steps / period),
            why="Averages come whole: a shorter period at the end has its average, too.",
            hint="With 8 steps and H = 3: how many averages are there?",
        ),
        Mistake(
            "four bytes for every number",
            counting(size=lambda parameter: 4 * parameter.numel()),
            why="A number of 16 bits has two bytes; `element_size()` tells.",
            hint="How many bytes does a bfloat16 have?",
        ),
        Mistake(
            "numbers in place of bytes",
            counting(size=lambda parameter: parameter.numel()),
            why="`numel()` counts numbers; each of them has `element_size()` bytes.",
            hint="How many bytes does a float32 have?",
        ),
        Mistake(
            "one all-reduce for each weight",
            counting(messages=len),
            why="The bytes are right, but all weights go in one flat tensor, so it is one all-reduce each time.",
            hint="How many tensors does a rank hand over at one synchronisation?",
        ),
        Mistake(
            "the bytes of all ranks together",
            counting(factor=lambda devices: devices),
            why="The question is for the payload of one rank: what it hands to its own all-reduces.",
            hint="Whose bytes are asked for?",
        ),
        Mistake(
            "every step, whatever H",
            counting(averages=lambda steps, period: steps),
            why="With Local SGD the ranks communicate once in H steps, not at each of them.",
            hint="Which argument of your function did you not use?",
        ),
    ),
    hints=(
        "How many optimizer steps does one rank make, and after how many of them does it communicate?",
        "steps = micro_batches // (devices * k). Every step: that many all-reduces; with H: steps / H, rounded up for the last average. The payload is the same each time: the trainable parameters.",
        "payload = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad); times = steps if H is None else math.ceil(steps / H); return times, times * payload.",
    ),
    also_right=(counting(), by_division),
)

# ---------------------------------------------------------------- average_replicas


class Normed(nn.Module):
    """Batch norm (float buffers and a whole number) between two layers, the first of which may be frozen, and which may share a weight."""

    def __init__(
        self,
        width: int = 4,
        *,
        tied: bool = False,
        frozen: bool = False,
        apart: bool = False,
        double: bool = False,
    ):
        super().__init__()
        self.apart = apart  # whether the replicas begin with different weights
        self.first, self.norm, self.last = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Linear(width, width),
        )
        if tied:
            self.last.weight = self.first.weight
        self.first.requires_grad_(not frozen)
        self.to(torch.float64 if double else torch.float32)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)))


REPLICA_CASES = {  # ranks, with gradients, how the model is built
    "2 ranks": (2, True, {}),
    "3 ranks, after zero_grad": (3, False, {}),
    "2 ranks, tied weights": (2, True, {"tied": True}),
    "2 ranks, a frozen layer, after zero_grad": (2, False, {"frozen": True}),
    "2 ranks that began apart, a frozen layer": (2, True, {"frozen": True, "apart": True}),
    "2 ranks, 64-bit numbers": (2, True, {"double": True}),
}


def draw_replicas(seed: int, ranks: int, gradients: bool, how: dict) -> list[nn.Module]:
    """One trained model per rank: frozen weights are equal where the replicas began equal, everything else is different."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Normed(**how)
    models = [copy.deepcopy(model) for _ in range(ranks)]
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
    return models


def floats_and_counts(model) -> tuple[np.ndarray, np.ndarray, int]:
    parameters = torch.cat(
        [parameter.detach().double().flatten() for parameter in model.parameters()]
    ).numpy()
    buffers = torch.cat(
        [buffer.double().flatten() for buffer in model.buffers() if buffer.is_floating_point()]
    ).numpy()
    return parameters, buffers, int(model.norm.num_batches_tracked)


def probe_replicas(answer, seed):
    shown = {}
    for case, drawn in REPLICA_CASES.items():
        models = draw_replicas(seed, *drawn)

        def average(rank, models=models):
            answer(models[rank.number])
            return floats_and_counts(models[rank.number])

        shown |= replicas_seen(case, as_ranks(average, drawn[0]))
    return shown


def replicas_seen(case, seen) -> Observation:
    shown = {}
    for number, (parameters, buffers, count) in enumerate(seen):
        shown[f"the parameters of rank {number} ({case})"] = parameters
        shown[f"the running averages of rank {number} ({case})"] = buffers
        shown[f"the whole number that rank {number} counts batches with ({case})"] = count
    return shown


def oracle_replicas(seed):
    shown = {}
    for case, drawn in REPLICA_CASES.items():
        models = draw_replicas(seed, *drawn)
        parameters, buffers, counts = zip(*map(floats_and_counts, models), strict=True)
        shown |= replicas_seen(
            case, [(np.mean(parameters, 0), np.mean(buffers, 0), count) for count in counts]
        )
    return shown


def floats_of(model):
    return [
        *(parameter.data for parameter in model.parameters()),
        *(buffer for buffer in model.buffers() if buffer.is_floating_point()),
    ]


def averaging(
    tensors=floats_of, *, divisor=lambda: dist.get_world_size(), collective=dist.all_reduce
):
    def average_replicas(model):
        for tensor in tensors(model):
            collective(tensor)
            tensor /= divisor()

    return average_replicas


def float_buffers_of(model):
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def rank_0s_buffers(model):
    averaging(parameters_of)(model)
    rank_0_of(float_buffers_of)(model)


def rank_0_of(tensors):
    def average_replicas(model):
        for tensor in tensors(model):
            dist.broadcast(tensor, src=0)

    return average_replicas


def only_rank_0_of(tensors):
    def average_replicas(model):
        for tensor in tensors(model):
            total = tensor.clone()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                tensor.copy_(total / dist.get_world_size())

    return average_replicas


def rebinds(model):
    for tensor in floats_of(model):
        dist.all_reduce(tensor)
        tensor = tensor / dist.get_world_size()


def parameters_of(model):
    return [parameter.data for parameter in model.parameters()]


def with_a_gradient(model):
    return [parameter.data for parameter in model.parameters() if parameter.grad is not None]


def floats_with_a_gradient(model):
    return with_a_gradient(model) + [
        buffer for buffer in model.buffers() if buffer.is_floating_point()
    ]


def with_torchs_function(model):
    from torch.distributed.algorithms.model_averaging.utils import (
        average_parameters_or_parameter_groups,
    )

    average_parameters_or_parameter_groups(model.parameters(), None)
    averaging(lambda model: [buffer for buffer in model.buffers() if buffer.is_floating_point()])(
        model
    )


def parameters_with_torchs_function(model):
    from torch.distributed.algorithms.model_averaging.utils import (
        average_parameters_or_parameter_groups,
    )

    average_parameters_or_parameter_groups(model.parameters(), None)


def everything(model):
    return model.state_dict().values()


def everything_in_floats(model):
    for tensor in model.state_dict().values():
        mean = tensor.double()
        dist.all_reduce(mean)
        tensor.copy_(mean / dist.get_world_size())


def counts_added_up(model):
    for tensor in model.state_dict().values():
        dist.all_reduce(tensor)
        if tensor.is_floating_point():
            tensor /= dist.get_world_size()


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def gradients_and_buffers(model):
    return gradients_of(model) + [
        buffer for buffer in model.buffers() if buffer.is_floating_point()
    ]


def in_one_piece(model):
    tensors = floats_of(model)
    buffer = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(buffer)
    for tensor, mean in zip(
        tensors,
        (buffer / dist.get_world_size()).split([tensor.numel() for tensor in tensors]),
        strict=True,
    ):
        tensor.copy_(mean.view_as(tensor))


def through_the_state(model):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
                dist.all_gather(gathered, tensor)
                tensor.copy_(torch.stack(gathered).mean(0))


average_replicas = Exercise(
    name="average_replicas",
    points=2,
    devices=2,
    probe=probe_replicas,
    oracle=oracle_replicas,
    truth="the mean",
    mistakes=(
        Mistake(
            "running averages left out",
            averaging(parameters_of),
            why="The running averages of batch norm are buffers, not parameters; each rank keeps its own and they evaluate differently.",
            hint="Which tensors does a model use in the forward pass that `parameters()` does not give?",
        ),
        Mistake(
            "sum in place of mean",
            averaging(divisor=lambda: 1),
            averaging(parameters_of, divisor=lambda: 1),
            rebinds,
            why="`all_reduce` adds up; `tensor = tensor / n` makes a new tensor and leaves the model's as it was.",
            hint="What do the model's own tensors hold after your last line?",
        ),
        Mistake(
            "divided by two",
            averaging(divisor=lambda: 2),
            averaging(parameters_of, divisor=lambda: 2),
            why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
            hint="How many summands does the sum have on three ranks?",
        ),
        Mistake(
            "frozen parameters left out",
            averaging(
                lambda model: (
                    [parameter.data for parameter in model.parameters() if parameter.requires_grad]
                    + float_buffers_of(model)
                )
            ),
            averaging(
                lambda model: [
                    parameter.data for parameter in model.parameters() if parameter.requires_grad
                ]
            ),
            why="Frozen weights do not change in training, but nobody has said that they were equal before it.",
            hint="What if the ranks were built with different seeds?",
        ),
        Mistake(
            "rank 0's buffers handed out",
            rank_0s_buffers,
            why="That is what DDP does: every rank then has rank 0's running averages, and what the others have seen is lost. The mean was asked for.",
            hint="Which rank's data do the running averages know of afterwards?",
        ),
        Mistake(
            "only parameters that have a gradient",
            averaging(with_a_gradient),
            averaging(floats_with_a_gradient),
            with_torchs_function,
            parameters_with_torchs_function,
            why="After `zero_grad` no parameter has a gradient, so nothing is averaged (torch's own function then has nothing to glue together and raises).",
            hint="What is `parameter.grad` after `zero_grad`?",
        ),
        Mistake(
            "rank 0's values sent to all",
            rank_0_of(floats_of),
            rank_0_of(parameters_of),
            rank_0_of(everything),
            why="The ranks are equal again, but what the others have learned is thrown away.",
            hint="How much does rank 1 count in the result?",
        ),
        Mistake(
            "mean on rank 0 only",
            only_rank_0_of(floats_of),
            only_rank_0_of(parameters_of),
            why="Only rank 0 takes the mean; the other ranks go on with their own values.",
            hint="After your function, which values does rank 1 hold?",
        ),
        Mistake(
            "the weights left as they were",
            nothing,
            averaging(gradients_of),
            averaging(gradients_and_buffers),
            why="The model's own weights hold what they held before: the mean went into new tensors, or into the gradients.",
            hint="Into which tensors does your function write, and are they those that the model computes with?",
        ),
        Mistake(
            "only 32-bit numbers",
            averaging(
                lambda model: [
                    tensor for tensor in floats_of(model) if tensor.dtype == torch.float32
                ]
            ),
            why="Weights and buffers of 64 or 16 bits are floating-point numbers, too.",
            hint="Which method of a tensor tells that it holds floating-point numbers of any size?",
        ),
        Mistake(
            "whole numbers averaged, too",
            averaging(everything),
            everything_in_floats,
            why="`state_dict()` also holds a whole number, with which batch norm counts its batches; a mean of whole numbers is none.",
            hint="Which `dtype` has `num_batches_tracked`?",
        ),
        Mistake(
            "whole numbers added up",
            counts_added_up,
            why="The counter of batch norm was summed over the ranks; it was to stay as it is.",
            hint="For which tensors do you call `all_reduce`?",
        ),
    ),
    hints=(
        "Which tensors of a model change in training, and are not parameters?",
        "Loop over model.parameters() and over those of model.buffers() for which is_floating_point() is true; all_reduce, then divide in place.",
        "for tensor in [*(p.data for p in model.parameters()), *model.buffers()]: if tensor.is_floating_point(): dist.all_reduce(tensor); tensor /= dist.get_world_size().",
    ),
    also_right=(in_one_piece, through_the_state),
)

EXERCISES = (train_local_sgd, train_with_averager, communication, average_replicas)
