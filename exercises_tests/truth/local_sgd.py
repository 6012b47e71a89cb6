"""What the oracles of Local SGD share: replicas trained one after the other in one process and averaged by hand."""

import copy

import torch
from torch import nn
from torch.nn.functional import mse_loss

from exercises_tests.probing.local_sgd import LEARNING_RATE, LocalCase, local_training, no_training
from exercises_tests.probing.toys import flat
from trainlean.exercises.comparing import Observation


def average_by_hand(models: list[nn.Module]) -> None:
    """Give all models the mean of their parameters."""
    with torch.no_grad():
        for replicas in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([replica.double() for replica in replicas]).mean(0)
            for replica in replicas:
                replica.copy_(mean)


def oracle_local_sgd(cases: tuple[LocalCase, ...], *, apart: bool):
    """An oracle that trains and averages the replicas of every case."""

    def oracle(seed):
        shown = {}
        for case in cases:
            shown |= true_local_training(case, seed, apart=apart)
        return shown

    return oracle


def begun(case: LocalCase, model: nn.Module) -> dict:
    """What a right rank's `Diary` holds before its first step, and of the averages all that will come."""
    return {
        "forwards": [],
        "at_first": flat(model),
        "gradients": [],
        "weights": [],
        "as_before": True,
        "in_eval_mode": 0,
        "quiet": True,
        "averages": [float(step) for step in case.averages],
    }


def true_local_training(case: LocalCase, seed: int, *, apart: bool) -> Observation:
    """The truth of Local SGD: the replicas trained one after the other in one process, averaged where the case says."""
    if not case.steps:
        return no_training(case, [0] * case.world_size, 0)
    models, micro_batches = case.draw(seed, apart=apart)
    models = [copy.deepcopy(models[0]) for _ in models]
    ranks = [begun(case, model) for model in models]
    momenta = [
        [torch.zeros_like(parameter) for parameter in model.parameters()] for model in models
    ]
    for step in range(1, case.steps + 1):
        for model, pages, share, momentum in zip(
            models, ranks, case.shares(micro_batches), momenta, strict=True
        ):
            window = share[(step - 1) * case.accumulation_steps : step * case.accumulation_steps]
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
            pages["gradients"].append(flat(model, gradients=True))
            with torch.no_grad():
                for parameter, velocity in zip(model.parameters(), momentum, strict=True):
                    if parameter.grad is not None:
                        velocity.mul_(case.momentum).add_(parameter.grad)
                        parameter -= LEARNING_RATE * velocity
            pages["weights"].append(flat(model))
            pages["forwards"].append(len(window))
        if step in case.averages:
            average_by_hand(models)
    for model, pages in zip(models, ranks, strict=True):
        pages["at_end"] = flat(model)
    return local_training(case, ranks)
