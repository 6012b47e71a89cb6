"""The exercises of the lesson 3_local_sgd/5_sharding."""

import torch
from torch import distributed as dist

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import DIVISION, LOOP, MEAN, SENT, ZEROED

# ---------------------------------------------------------------- other right ways


def reduced_to_the_owner(model, make_optimizer, loss_of, micro_batches):
    """The mean goes to the owner alone, and all gather the new values."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    owners = {
        parameter: number % ranks
        for number, parameter in enumerate(filter(lambda p: p.requires_grad, model.parameters()))
    }
    optimizer = make_optimizer([one for one, owner in owners.items() if owner == rank])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for parameter, owner in owners.items():
            dist.reduce(parameter.grad, dst=owner)
            if owner == rank:
                parameter.grad /= ranks
            else:
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        for parameter, owner in owners.items():
            everybodys = [torch.empty_like(parameter) for _ in range(ranks)]
            dist.all_gather(everybodys, parameter.detach())
            parameter.data.copy_(everybodys[owner])


def by_rows(model, ranks):
    """The size of a piece first, then what is left for each rank."""
    sizes = [0] * ranks
    for parameter in model.parameters():
        rows = parameter.shape[0]
        each = (rows + ranks - 1) // ranks
        for rank in range(ranks):
            mine = max(0, min(rows, (rank + 1) * each) - rank * each)
            sizes[rank] += mine * parameter[0].numel() * parameter.element_size()
    return sizes


EXERCISES = (
    Exercise(
        name="train_sharded",
        points=4,
        devices=2,
        probe=probes.train_sharded,
        oracle=oracles.train_sharded,
        mistakes=mistakes.train_sharded,
        hints=(
            "After a rank's optimizer has made its step, which parameters does that rank hold new values of, and which not?",
            "trained[rank::world_size] belongs to this rank. After backward: all-reduce and divide every gradient; optimizer.step(); then each parameter is broadcast from its owner, number % world_size. Empty all gradients of the model, not only the optimizer's.",
            "optimizer = make_optimizer(trained[rank::world_size]); for each batch: model.zero_grad(); backward; all_reduce and /= world_size for each grad; optimizer.step(); for number, p in enumerate(trained): dist.broadcast(p.data, src=number % world_size).",
        ),
        also_right=(
            reduced_to_the_owner,
            {
                MEAN: MEAN.replace("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)").replace(DIVISION, ""),
                ZEROED: "",
                SENT: f"{SENT}{ZEROED}",
            },
        ),
    ),
    Exercise(
        name="shard_bytes",
        points=2,
        probe=probes.shard_bytes,
        oracle=oracles.shard_bytes,
        mistakes=mistakes.shard_bytes,
        hints=(
            "A bias of 5 numbers on 4 ranks: how many numbers has each rank's shard?",
            "parameter.chunk(ranks) cuts along the first dimension just like that; it may give fewer pieces than ranks. Add the bytes of piece number r to rank r.",
            "sizes = [0] * ranks; for p in model.parameters(): for rank, piece in enumerate(p.chunk(ranks)): sizes[rank] += piece.numel() * piece.element_size().",
        ),
        also_right=(
            by_rows,
            {LOOP: "        for rank, piece in enumerate(torch.chunk(parameter, ranks, dim=0)):\n            sizes[rank] += piece.nbytes\n"},
        ),
    ),
)  # fmt: skip
