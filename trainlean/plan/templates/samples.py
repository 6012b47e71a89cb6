"""A data set for loops that take one sample after the other."""

from dataclasses import replace

import torch
from head import SETUP, SUBJECT


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
        yield torch.utils._pytree.tree_map(
            lambda x, number=number: x[number] if isinstance(x, torch.Tensor) and x.dim() else x,
            batch,
        )
