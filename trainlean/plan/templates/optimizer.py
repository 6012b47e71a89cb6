"""The optimizer of a loop that is written out."""

import torch
from head import LEARNING_RATE, OPTIMIZER
from transformers.optimization import Adafactor

from trainlean.costs.training import adamw


def make_optimizer(model):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if OPTIMIZER == "adamw":
        return adamw(weights, LEARNING_RATE)
    if OPTIMIZER == "adafactor":
        return Adafactor(weights, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)
    if OPTIMIZER == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.Adam8bit(weights, lr=LEARNING_RATE)
    return torch.optim.SGD(weights, lr=LEARNING_RATE, momentum=0.9 * (OPTIMIZER == "momentum"))
