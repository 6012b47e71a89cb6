"""A data set for loops that take one sample after the other."""

from dataclasses import replace

import torch
from head import SETUP, SUBJECT

from trainlean.costs.batches import map_tensors


def samples(size, count):
    """A data set: a list of samples, enough for `count` micro-batches of `size`.

    YOUR DATA: return your own here. These are drawn at random. Where samples have different numbers of tokens, weigh
    each micro-batch's loss by its share of the window's tokens.
    """
    torch.manual_seed(0)
    setup = replace(SETUP, micro_batch=size)
    return [sample for _ in range(count) for sample in _apart(SUBJECT.batch(setup), size)]


def _apart(batch, size):
    for number in range(size):
        yield _sample(batch, number)


def _sample(batch, number):
    return map_tensors(lambda x: x[number] if x.dim() else x, batch)
