"""The exercises of the lesson 3_local_sgd/1b_averages_and_bytes."""

import torch
from torch import distributed as dist
from torch import nn

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import ALL_STEPS, AVERAGES, LAST

# ---------------------------------------------------------------- other right ways


def by_torchs_optimizer(model, optimizer, loss_of, micro_batches, local_steps):
    """The optimizer that asks the averager itself; its counter is set to 1, so that no warm-up is needed."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(period=local_steps)
    averager.step = 1
    local = PostLocalSGDOptimizer(optimizer, averager)
    for batch in micro_batches:
        local.zero_grad()
        loss_of(model, batch).backward()
        local.step()
    if len(micro_batches) % local_steps:
        in_one_piece(model)


def counted_by_hand(model, optimizer, loss_of, micro_batches, local_steps):
    for number, batch in enumerate(micro_batches, 1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % local_steps == 0 or number == len(micro_batches):
            in_one_piece(model)


def in_one_piece(model):
    """One message for all numbers of the model."""
    tensors = [*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())]
    together = torch.cat([tensor.detach().flatten() for tensor in tensors])
    dist.all_reduce(together)
    nn.utils.vector_to_parameters(together / dist.get_world_size(), tensors)


def with_all_gathered(model):
    """Every rank gathers the tensors of all and takes the mean itself."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, tensor.detach())
            tensor.data.copy_(torch.stack(gathered).mean(0))


# ---------------------------------------------------------------- the exercises

EXERCISES = (
    Exercise(
        name="train_with_averager",
        points=3,
        devices=2,
        probe=probes.train_with_averager,
        oracle=oracles.train_with_averager,
        mistakes=mistakes.train_with_averager,
        hints=(
            "The averager's counter is 0 at its first call: for how many calls must it keep still so that its first average comes after step H?",
            "warmup_steps moves the first average; after the loop average once more, with your own all_reduce or with `average_parameters(model.parameters(), None)` from torch.distributed.algorithms.model_averaging.utils.",
            "PeriodicModelAverager(period=H, warmup_steps=H - 1); after the loop: for each parameter, dist.all_reduce(parameter.data), then divide by dist.get_world_size().",
        ),
        also_right=(
            by_torchs_optimizer,
            counted_by_hand,
            {
                LAST: """    total = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(total)
    nn.utils.vector_to_parameters(total / dist.get_world_size(), model.parameters())
"""
            },
        ),
    ),
    Exercise(
        name="communication",
        points=3,
        probe=probes.communication,
        oracle=oracles.communication,
        mistakes=mistakes.communication,
        hints=(
            "How many optimizer steps does one rank make, and after how many of them does it communicate?",
            "steps = micro_batches // (devices * k). Every step: that many all-reduces; with H: steps / H, rounded up for the last average. The payload is the same each time: the trainable parameters.",
            "payload = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad); times = steps if H is None else math.ceil(steps / H); return times, times * payload.",
        ),
        also_right=(
            {"parameter.numel() * parameter.element_size()": "parameter.nbytes"},
            {
                f"// {ALL_STEPS}": "/ devices / accumulation_steps",
                f"steps if local_steps is None else {AVERAGES}": "-int(-steps // (local_steps or 1))",
                "return times, times * payload": "return [times, times * payload]",
            },
        ),
    ),
    Exercise(
        name="average_replicas",
        points=2,
        devices=2,
        probe=probes.average_replicas,
        oracle=oracles.average_replicas,
        truth="the right one",
        mistakes=mistakes.average_replicas,
        hints=(
            "Which tensors of a model change in training, and are not parameters?",
            "Loop over model.parameters() and over those of model.buffers() for which is_floating_point() is true; all_reduce, then divide in place.",
            "for tensor in [*(p.data for p in model.parameters()), *model.buffers()]: if tensor.is_floating_point(): dist.all_reduce(tensor); tensor /= dist.get_world_size().",
        ),
        also_right=(in_one_piece, with_all_gathered),
    ),
)
