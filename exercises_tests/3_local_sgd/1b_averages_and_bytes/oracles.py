"""What must be seen in the lesson 3_local_sgd/1b_averages_and_bytes: averages and counts by hand, in one process."""

import numpy as np

from exercises_tests.truth.local_sgd import oracle_local_sgd

from .probes import (
    AVERAGER_CASES,
    COUNT_CASES,
    REPLICA_CASES,
    counted,
    draw_replicas,
    floats_and_counts,
    models_to_count,
    replicas_seen,
)

train_with_averager = oracle_local_sgd(AVERAGER_CASES, apart=False)


def communication(seed):
    shown, models = {}, models_to_count(seed)
    for case in COUNT_CASES:
        name, micro_batches, devices, k, local_steps = case
        stored = {
            parameter.untyped_storage().data_ptr(): parameter.nbytes
            for parameter in models[name].parameters()
            if parameter.requires_grad
        }
        sent, step, given_out = [], 0, 0
        while given_out < micro_batches:  # one optimizer step of all devices
            given_out += devices * k
            step += 1
            if local_steps is None or step % local_steps == 0 or given_out == micro_batches:
                sent.append(sum(stored.values()))
        shown |= counted(case, (len(sent), sum(sent)))
    return shown


def average_replicas(seed):
    shown = {}
    for case, drawn in REPLICA_CASES.items():
        models = draw_replicas(seed, *drawn)
        parameters, buffers, counts, gradients = zip(*map(floats_and_counts, models), strict=True)
        means = np.mean(parameters, 0), np.mean(buffers, 0)
        shown |= replicas_seen(
            case,
            [
                (*means, whole, of_rank, True, True)
                for whole, of_rank in zip(counts, gradients, strict=True)
            ],
        )
    return shown
