"""What must be seen in the lesson 3_local_sgd/4_outer_optimizer: rounds by hand in one process, links and codes in NumPy."""

import copy

import numpy as np
import torch
from torch.nn.functional import mse_loss

from exercises_tests.probing.local_sgd import LEARNING_RATE
from exercises_tests.probing.toys import flat
from exercises_tests.truth.local_sgd import begun

from .probes import (
    OUTER_CASES,
    changes_to_quantise,
    link_case,
    links_to_choose_for,
    outer_training,
    quantised,
)


def train_diloco(seed):
    shown = {}
    for case in OUTER_CASES:
        shown |= outer_training(case, *rounds_by_hand(case, seed))
    return shown


def rounds_by_hand(case, seed):
    """All ranks one after the other: what each did in its steps, and the outer steps, which are the same everywhere."""
    models, micro_batches = case.draw(seed, apart=False)
    models = [copy.deepcopy(models[0]) for _ in models]
    pages = [begun(case, model) for model in models]
    weights = flat(models[0])
    velocity, outer = np.zeros_like(weights), []
    inner = [np.zeros_like(weights) for _ in models]
    for step in range(1, case.steps + 1):
        for rank, (model, share) in enumerate(zip(models, case.shares(micro_batches), strict=True)):
            inputs, targets = share[step - 1]
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
            gradient = flat(model, gradients=True)
            inner[rank] = case.momentum * inner[rank] + gradient
            put(model, flat(model) - LEARNING_RATE * inner[rank])
            pages[rank]["gradients"].append(gradient)
            pages[rank]["weights"].append(flat(model))
            pages[rank]["forwards"].append(1)
        if step in case.averages:
            way_back = np.mean([weights - flat(model) for model in models], axis=0)
            gradient = way_back + case.outer_decay * weights
            velocity = case.outer_momentum * velocity + gradient
            after = weights - case.outer_lr * (gradient + case.outer_momentum * velocity)
            outer.append([weights, way_back, after])
            weights = after
            for model in models:
                put(model, weights)
    for model, of_rank in zip(models, pages, strict=True):
        of_rank["at_end"] = flat(model)
    return pages, [outer for _ in models], [True for _ in models]


def put(model, weights):
    """Give a model's trained parameters the numbers of a vector."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vector = torch.as_tensor(weights, dtype=trained[0].dtype)
    torch.nn.utils.vector_to_parameters(vector, trained)


def choose_local_steps(seed):
    shown = {}
    for asked in links_to_choose_for(seed):
        compute, payload, world_size, link, share = asked
        messages = 2 * (world_size - 1)
        average = messages * (link.latency + payload / world_size / link.bandwidth)
        steps = np.arange(1, 400_000)
        fits = average / (steps * compute + average) <= share
        shown[f"H ({link_case(*asked)})"] = int(steps[fits.argmax()])
    return shown


def quantise(seed):
    shown = {}
    for case, (error, changes) in changes_to_quantise(seed).items():
        wanted_so_far, received = error.double().numpy(), np.zeros(error.shape)
        for number, change in enumerate(changes):
            wanted_so_far = wanted_so_far + change.numpy()
            wanted = wanted_so_far - received
            largest = np.abs(wanted).max()
            codes = np.rint(wanted * (127 / largest)) if largest > 0 else np.zeros_like(wanted)
            received = received + codes * largest / 127
            as_seen = map(torch.as_tensor, (wanted_so_far - received, received))
            shown |= quantised(
                case,
                number,
                torch.as_tensor(codes).to(torch.int8),
                largest / 127,
                True,
                *as_seen,
                True,
                True,
            )
    return shown
