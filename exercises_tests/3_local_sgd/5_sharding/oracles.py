"""What must be seen in the lesson 3_local_sgd/5_sharding: one model that learns from all ranks' samples, and rows counted one by one."""

import torch
from torch.nn.functional import mse_loss

from exercises_tests.probing.toys import flat

from .probes import (
    SHARD_CASES,
    SHARDED_CASES,
    models_to_shard,
    owned,
    sharded_training,
    shards_seen,
)


def train_sharded(seed):
    shown = {}
    for case in SHARDED_CASES:
        model, micro_batches = case.draw(seed)
        optimizer = case.optimizer([one for one in model.parameters() if one.requires_grad])
        names = {parameter: name for name, parameter in model.named_parameters()}
        weights, gradients = [flat(model)], [[] for _ in range(case.world_size)]
        for step in range(case.steps):
            together = micro_batches[step * case.world_size : (step + 1) * case.world_size]
            inputs, targets = (torch.cat(parts) for parts in zip(*together, strict=True))
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            for rank, of_rank in enumerate(gradients):
                mine = [one.grad.double().flatten() for one in owned(model, rank, case.world_size)]
                of_rank.append(torch.cat(mine).numpy())
            optimizer.step()
            weights.append(flat(model))
        ranks = []
        for rank, of_rank in enumerate(gradients):
            mine = owned(model, rank, case.world_size)
            ranks.append(
                {
                    "made": ", ".join(names[one] for one in mine),
                    "as_before": True,
                    "gradients": of_rank,
                    "weights": weights,
                    "kept": (1 + case.adamw) * sum(one.numel() for one in mine),
                }
            )
        shown |= sharded_training(case, ranks)
    return shown


def shard_bytes(seed):
    shown, models = {}, models_to_shard(seed)
    for name, world_size in SHARD_CASES:
        kept, storages = [0] * world_size, set()
        for parameter in models[name].parameters():
            if parameter.data_ptr() in storages:
                continue
            storages.add(parameter.data_ptr())
            rows = len(parameter)
            each = -(-rows // world_size)
            for row in range(rows):
                kept[row // each] += parameter[row].nbytes
        shown |= shards_seen(name, kept)
    return shown
