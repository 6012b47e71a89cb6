"""Record what a training loop did, line by line, and when a network's activations lived, so that both can be replayed."""

import inspect
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOST_FRAMES = (
    10_000  # a player with more steps than this shows nothing that a shorter run would not
)


class Frame(NamedTuple):
    """One executed line: its number in the source (1 is the first line) and the watched values after it ran."""

    line: int
    values: dict[str, float | None]


@dataclass(frozen=True)
class Trace:
    """A recorded call: the function's source, a frame per executed line, and what the call returned."""

    source: str
    frames: list[Frame]
    result: Any = None

    def to_dict(self) -> dict:
        """The trace as plain JSON values; a result that JSON cannot hold becomes its text."""
        frames = [frame._asdict() for frame in self.frames]
        return {"source": self.source, "frames": frames, "result": _plain(self.result)}

    @classmethod
    def from_dict(cls, record: dict) -> "Trace":
        """The trace that `to_dict` wrote."""
        return cls(
            record["source"], [Frame(**frame) for frame in record["frames"]], record["result"]
        )


def record(function: Callable, *args, watch: dict[str, Callable[[dict], Any]]) -> Trace:
    """Call `function(*args)` and record every line of it that is executed.

    `watch` names the values to follow. Each gets the function's local variables as a dictionary and returns a number
    or None; it is asked after every line. Where it fails because a variable is not there yet, the value is None.
    Lines of the functions that `function` calls are not recorded. An exception of `function` passes through.
    ValueError: the source cannot be found, a watch never worked, or more than 10,000 lines were executed.
    """
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    try:
        lines, first = inspect.getsourcelines(inner)
    except (OSError, TypeError):
        lines = None
    if code is None or not lines:
        raise ValueError(
            f"record() found no Python source of {function!r}: give it a function defined in a cell or a file."
        )

    frames: list[Frame] = []
    errors: dict[str, Exception] = {}
    waiting: list[
        int
    ] = []  # the line that is being executed: its values are known when the next one starts
    entered = False

    def finish_line(frame):
        if not waiting:
            return
        values = {}
        for name, look in watch.items():
            try:
                values[name] = _number(look(dict(frame.f_locals)))
            except (KeyError, AttributeError, TypeError, IndexError) as error:
                values[name] = None
                errors[name] = error
        frames.append(Frame(waiting.pop() - first + 1, values))
        if len(frames) > MOST_FRAMES:
            raise ValueError(
                f"{inner.__name__} executed more than {MOST_FRAMES:,} lines: record a run of a few updates."
            )

    def on_line(frame, event, _):
        if event in ("line", "return"):
            finish_line(frame)
        if event == "line":
            waiting.append(frame.f_lineno)
        return on_line

    def on_call(frame, event, _):
        nonlocal entered
        if entered or frame.f_code is not code:
            return None
        entered = True
        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        result = function(*args)
    finally:
        sys.settrace(before)

    for name, error in errors.items():
        if all(frame.values[name] is None for frame in frames):
            raise ValueError(
                f"The watch {name!r} never gave a number; the last time it failed with {type(error).__name__}: {error}."
            ) from error
    return Trace(textwrap.dedent("".join(lines)).rstrip("\n"), frames, result)


def _number(value) -> float | int | None:
    """`value` as a plain number: one-element tensors and arrays are read, None stays None."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (int, float)):
        return value
    return float(value)


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


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
            if event.what == "computed"
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
        if event.what == "turn":
            return "the forward pass is done, the backward pass begins"
        if event.what == "computed":
            return f"output {event.layer + 1} is {'recomputed' if event.run else 'computed'}"
        return (
            f"output {event.layer + 1} is {'used and freed' if number > self.turn else 'discarded'}"
        )


def record_lives(layers: Iterable, forward: Callable) -> Lives:
    """Run `forward()`, which uses the modules `layers` and returns a loss, and its backward pass; record their outputs' lives.

    A recomputation may stop within a layer, as soon as it has what it needs. An output is noted when the operation that makes
    it has run, so one that is computed right before the stop is seen, and one that is never reached is not.
    ValueError: no module ran.
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
        self.place = {}  # layer -> which of its tensors is the output, learned in its first run
        self.inside, self.made, self.noted = None, [], False

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
