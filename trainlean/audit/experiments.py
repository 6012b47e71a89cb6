"""What is tried on a training to tell its causes apart: buffers that are held, random numbers that are shifted."""

import contextlib
import random

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


class Buffers:
    """What a forward pass does to the buffers of a model; batch norm's have a trial of their own."""

    def __init__(self):
        self._before: list[tuple[torch.Tensor, int, torch.Tensor]] = []

    def note(self, module) -> None:
        """Remember the buffers before a forward pass."""
        self._before = [
            (buffer, buffer._version, buffer.detach().clone())
            for part in module.modules()
            if not isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
            for buffer in part.buffers(recurse=False)
            if not buffer.is_inference()
        ]

    def moved(self, module, undo: bool) -> bool:
        """Whether the forward pass has moved any of them; `undo` puts them back."""
        moved = False
        for buffer, version, value in self._before:
            if buffer._version != version and not torch.equal(buffer, value):
                moved = True
                if undo:
                    with torch.no_grad(), contextlib.suppress(RuntimeError):
                        buffer.copy_(value)
        self._before = []
        return moved


class Jolt(TorchFunctionMode):
    """A few random numbers more, drawn from every source right before the first forward pass of a step (from 1)."""

    def __init__(self, step: int):
        super().__init__()
        self._step, self._begun = step, False
        self._seen: list[torch.Generator] = []

    def before_forward(self, step: int) -> None:
        """Called before each forward pass."""
        if step < self._step or self._begun:
            return
        self._begun = True
        torch.rand(7)
        np.random.rand(7)
        for _ in range(7):
            random.random()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Torch's functions as they are; a generator of the loop's own draws first."""
        source = (kwargs or {}).get("generator")
        if self._begun and source is not None and not any(source is one for one in self._seen):
            self._seen.append(source)
            torch.rand(7, generator=source)
        return func(*args, **(kwargs or {}))
