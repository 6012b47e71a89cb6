"""Record when the outputs of a network's layers were alive, so that it can be replayed."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Event(NamedTuple):
    """An output was computed, or it is gone from memory; or, with layer None, the forward pass turned to the backward pass."""

    what: str  # "computed", "gone" or "turn"
    layer: int | None  # from 0
    run: int  # 0: its first computation, 1: its recomputation
    size: int  # bytes


@dataclass(frozen=True)
class Lives:
    """When the outputs of a network's layers were computed and when they were gone, as events in their order."""

    layers: int
    events: list[Event]

    @property
    def turn(self) -> int:
        """The number of the event at which forward turned to backward."""
        return next(number for number, event in enumerate(self.events) if event.what == "turn")

    @property
    def spans(self) -> list[tuple[int, int, int, bool]]:
        """(event of birth, event of death, layer, whether it was recomputed); what outlives the recording dies at its end."""
        died = {
            event[1:3]: number for number, event in enumerate(self.events) if event.what == "gone"
        }
        return [
            (number, died.get(event[1:3], len(self.events)), event.layer, event.run > 0)
            for number, event in enumerate(self.events)
            if event.what == "computed" and event.layer is not None
        ]

    @property
    def live_bytes(self) -> list[int]:
        """Bytes of living outputs after each event."""
        live, now = [], 0
        for event in self.events:
            now += {"computed": event.size, "gone": -event.size, "turn": 0}[event.what]
            live.append(now)
        return live

    def say(self, number: int) -> str:
        """An event in words."""
        event = self.events[number]
        if event.layer is None:
            return "the forward pass is done, the backward pass begins"
        if event.what == "computed":
            return f"output {event.layer + 1} is {'recomputed' if event.run else 'computed'}"
        return (
            f"output {event.layer + 1} is {'used and freed' if number > self.turn else 'discarded'}"
        )


def record_lives(layers: Iterable, forward: Callable) -> Lives:
    """Run `forward()`, which uses the modules `layers` and returns a loss, and its backward pass; returns the `Lives` of their outputs.

    A recomputation may stop within a layer, as soon as it has what it needs. An output is noted when the operation that makes
    it has run, so one that is computed right before the stop is seen, and one that is never reached is not.
    ValueError: no module ran, or `forward()` returned something else than one number.
    """
    layers = list(layers)
    events, finalizers, runs = [], [], [0] * len(layers)

    def computed(index, storage):
        key = index, runs[index], storage.nbytes()
        runs[index] += 1
        events.append(Event("computed", *key))
        finalizers.append(weakref.finalize(storage, lambda: events.append(Event("gone", *key))))

    watch = _LayerOutputs(computed)
    handles = []
    try:
        for index, layer in enumerate(layers):
            handles.append(
                layer.register_forward_pre_hook(lambda *_, index=index: watch.enter(index))
            )
            handles.append(
                layer.register_forward_hook(
                    lambda _, __, output, index=index: watch.leave(index, output.untyped_storage())
                )
            )
        with watch:
            loss = forward()
            if not events:
                raise ValueError(
                    "record_lives() saw none of the layers run: give it the modules that forward() calls."
                )
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                what = (
                    f"a tensor of shape {tuple(loss.shape)}"
                    if isinstance(loss, torch.Tensor)
                    else repr(loss)
                )
                raise ValueError(
                    f"record_lives() needs a loss, a tensor of one number, from forward(), not {what}: .sum() makes one."
                )
            events.append(Event("turn", None, 0, 0))
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
        for finalizer in finalizers:
            finalizer.detach()  # what lives on is no longer recorded
    return Lives(len(layers), events)


class _LayerOutputs(TorchDispatchMode):
    """Calls `computed(layer, storage)` for each output of a layer, also where the layer is never left."""

    def __init__(self, computed: Callable):
        super().__init__()
        self.computed = computed
        self.place: dict[
            int, int
        ] = {}  # layer -> which of its tensors is the output, learned in its first run
        self.inside: int | None = None
        self.made: list[int] = []
        self.noted = False

    def enter(self, layer: int):
        self.inside, self.made, self.noted = layer, [], False

    def leave(self, layer: int, storage):
        if not self.noted:
            self.computed(layer, storage)
        if storage._cdata in self.made:
            self.place.setdefault(layer, len(self.made) - 1 - self.made[::-1].index(storage._cdata))
        self.inside = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.is_view:  # makes nothing; checkpointing detaches what it keeps
            return out
        if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
            self.inside = None  # an operation of the backward pass: the recomputation has stopped
        if self.inside is not None:
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    self.made.append(tensor.untyped_storage()._cdata)
                    if self.place.get(self.inside) == len(self.made) - 1:
                        self.noted = True
                        self.computed(self.inside, tensor.untyped_storage())
        return out
