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


class MovedAgain:
    """Which buffers a forward pass within a backward pass moves; `undo` has it begin with those of the first pass, and puts back what it found."""

    def __init__(self, undo: bool):
        self._undo = undo
        self._first: dict[int, dict[str, torch.Tensor]] = {}  # by id of the module
        self._running: list[tuple[torch.nn.Module, dict, dict]] = []  # one in another
        self._moved: list[tuple[torch.nn.Module, str]] = []

    def note(self, module, again: bool) -> None:
        """Before a module runs, for the first time or `again`, within a backward pass."""
        here = {
            name: buffer.detach().clone()
            for name, buffer in module.named_buffers(recurse=False)
            if not buffer.is_inference()
        }
        if not again:
            if here and self._undo:
                self._first[id(module)] = here
            return
        begun = self._first.get(id(module), here)
        if self._undo:
            self._put(module, {name: value.clone() for name, value in begun.items()})
        self._running.append((module, here, begun))

    def compare(self, module) -> None:
        """After it has run within a backward pass."""
        while self._running:
            one, here, begun = self._running.pop()
            for name, value in begun.items():
                now = one._buffers.get(name)
                moved = now is not None and now.shape == value.shape and not torch.equal(now, value)
                if moved and not any(part is one and other == name for part, other in self._moved):
                    self._moved.append((one, name))
            if self._undo:
                self._put(one, here)
            if one is module:
                return

    def _put(self, module, buffers: dict) -> None:
        """Other tensors: what was moved may be part of a graph."""
        module._buffers.update(buffers)

    def named(self, models) -> dict[str, bool]:
        """The buffers that were moved, by their names in these models, and whether they are batch norm's."""
        paths = {id(part): path for model in models for path, part in model.named_modules()}
        return {
            f"{paths.get(id(one), type(one).__name__)}.{name}".lstrip("."): isinstance(
                one, torch.nn.modules.batchnorm._BatchNorm
            )
            for one, name in self._moved
        }


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
