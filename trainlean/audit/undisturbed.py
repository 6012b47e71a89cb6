"""A training that is recorded starts from one random state, may go without dropout, and changes nothing around it."""

import os
import random
import sys
import warnings
from contextlib import ExitStack
from unittest import mock

import numpy as np
import torch

SEED = 20_261_122  # every recorded training starts from it


def without_dropout():
    """Patches under which torch's functions drop nothing."""
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    def undropped_attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **named):
        return attention(query, key, value, attn_mask, 0.0, *args, **named)

    def undropped(input, p=0.5, training=True, inplace=False):
        return input

    names = "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split()
    yield mock.patch.object(functional, "scaled_dot_product_attention", undropped_attention)
    for name in names:
        yield mock.patch.object(functional, name, undropped)
    yield mock.patch.object(torch, "dropout", lambda input, p, train: input)


def seeded():
    """Every recorded training starts from the same random state."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED % 2**32)


class Undisturbed(ExitStack):
    """What a training changes in the process besides its own objects is as it was afterwards: random state, mode, folder, variables, Accelerate's state."""

    def __enter__(self):
        super().__enter__()
        self.enter_context(torch.random.fork_rng(devices=[]))
        self.callback(os.chdir, os.getcwd())
        self.enter_context(mock.patch.dict(os.environ))
        before = random.getstate(), np.random.get_state()
        self.callback(random.setstate, before[0])
        self.callback(np.random.set_state, before[1])
        self.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        self.callback(
            torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()
        )
        self.callback(torch.set_default_dtype, torch.get_default_dtype())
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        _fresh_accelerate(self)
        seeded()
        return self


def _fresh_accelerate(stack: ExitStack) -> None:
    """Accelerate as if nothing had used it yet, where it has been imported; afterwards its state is what it was."""
    if "accelerate" not in sys.modules:
        return
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        shared = state._shared_state
        before = dict(shared)
        # In place: objects that were made before hold this very dictionary.
        stack.callback(shared.update, before)
        stack.callback(shared.clear)  # the last first
        shared.clear()
