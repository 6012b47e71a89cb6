"""How many tokens' logits are in memory while an answer computes a loss."""

import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainlean.exercises.comparing import Observation


class Scores(TorchDispatchMode):
    """Tensors with a side as long as the vocabulary: `now` and `most` are their numbers alive, in tokens; `widest` the largest one's.

    The head and its gradient have such a side too, but are [vocabulary, hidden size], and not counted.
    """

    def __init__(self, vocabulary: int, hidden_size: int):
        super().__init__()
        self.vocabulary, self.hidden_size = vocabulary, hidden_size
        self.now = self.most = self.widest = 0
        self._alive: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and self._is_scores(tensor):
                    self._add(tensor)
        return out

    def _is_scores(self, tensor):
        return (
            self.vocabulary in tensor.shape
            and tensor.numel() >= self.vocabulary
            and self.hidden_size not in tensor.shape
            and tensor.is_floating_point()
        )

    def _add(self, tensor):
        storage, tokens = tensor.untyped_storage(), tensor.numel() // self.vocabulary
        address = storage._cdata
        if address not in self._alive:
            self._alive[address] = weakref.ref(storage, lambda _: self._remove(address, tokens))
            self.now += tokens
            self.most = max(self.most, self.now)
            self.widest = max(self.widest, tokens)

    def _remove(self, address, tokens):
        del self._alive[address]
        self.now -= tokens


def of_chunks(name: str, chunk: int, widest: int, kept: int, most: int) -> Observation:
    """What is shown of the logits of a loss in chunks, in tokens: the largest, those kept for the backward pass, the most.

    How large the largest are is told in words as long as a chunk has as many. One chunk may take three copies, and one or
    two of a way of its own.
    """
    return {
        f"the number of tokens whose logits are computed at once ({name})": widest
        if widest > chunk
        else f"at most {chunk}",
        f"the number of tokens whose logits are in memory between forward and backward ({name})": kept,
        f"whether the logits of several chunks are in memory together ({name})": most > 5 * chunk,
    }


def finite(array):
    """The array; in words where it holds what is no number, which equals nothing."""
    return array if np.isfinite(array).all() else "not a number"
