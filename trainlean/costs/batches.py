"""Batches of any make: what is done to every tensor of nested tuples, lists, dictionaries, dataclasses and plain objects."""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def tensors_of_batch(batch) -> list[torch.Tensor]:
    """The tensors of a batch, in its order."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        else:
            found += [t for value in _fields(leaf).values() for t in tensors_of_batch(value)]
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], batch):
    """The batch with `function` of each tensor in its place; the batch itself stays as it is."""

    def of_leaf(leaf):
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        fields = _fields(leaf)
        if not any(tensors_of_batch(value) for value in fields.values()):
            return leaf
        new = copy.copy(leaf)
        for name, value in fields.items():
            value = map_tensors(function, value)
            if isinstance(leaf, Mapping):
                new[name] = value
            else:
                object.__setattr__(new, name, value)  # a dataclass may be frozen
        return new

    return tree_map(of_leaf, batch)


def _fields(leaf):
    """What an object holds by name; a tokenizer's BatchEncoding is a mapping that torch does not look into."""
    if isinstance(leaf, MutableMapping):
        return dict(leaf)
    if isinstance(leaf, (torch.nn.Module, type)) or callable(leaf):
        return {}
    return dict(getattr(leaf, "__dict__", {}))
