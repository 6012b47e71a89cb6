"""Which layers repeat, and what a model of many layers needs from traces of a few.

Layers are alike when they do the same: the same operations giving the same bytes in the forward pass of the whole model, of
which the same are kept for the backward pass, with weights of the same shapes and the same switches. Where they repeat,
alone or in groups (every sixth layer is another kind, every second one is checkpointed), a model of two groups and one of
three tell what a model of all groups needs: every operation of the first group and of the last is followed by itself, and
what is alive after it grows by the same amount with every group. Where nothing repeats, or the shallow model does not do what the deep one did, all layers are traced.
"""

import gc
import itertools
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from trainlean.costs.instead import instead
from trainlean.costs.tracing import Trace


@dataclass(frozen=True)
class Stack:
    """A list of layers in which a group repeats.

    - `path`: the module's name; `length`: its layers
    - `first`: where the groups begin; `period`: layers of a group; `count`: groups
    - `kind`: the class of its layers, where the module has no others of it
    """

    path: str
    length: int
    first: int
    period: int
    count: int
    kind: type | None = None

    def kept(self, groups: int) -> list[int]:
        """The layers that stay when only so many groups do."""
        begin = self.first + groups * self.period
        end = self.first + self.count * self.period
        return [*range(begin), *range(end, self.length)]


def stacks_of(tracer, few: int, most: int) -> list[Stack]:
    """The lists of layers that need not be traced whole, since more than `most` groups of them are alike; outermost lists only.

    Tried with `few` groups: a shallow model that does not do what the deep one did is none.
    """
    seen = _Seen()
    tracer.forward(seen.watch)
    found: list[Stack] = []
    for path, calls in seen.lists.items():
        if any(path.startswith(f"{outer.path}.") for outer in found):
            continue
        stack = _stack(path, seen.keys(path, calls))
        if stack and stack.count > most:
            found.append(replace(stack, kind=_kind(seen.module, path)))
    if not found:
        return []
    shallow = _Seen()
    replace_layers = LeavingOut(found, [few] * len(found))
    try:
        type(tracer)(tracer.subject, tracer.setup, tracer.device, replace_layers).forward(
            shallow.watch
        )
    except ValueError:
        return []
    return found if shallow.operations == seen.without(found, few) else []


class LeavingOut:
    """Leaves all but so many groups of each stack out of a module, and out of its configuration's lists about layers."""

    def __init__(self, stacks: list[Stack], groups: list[int]):
        self._kept = [(stack, stack.kept(count)) for stack, count in zip(stacks, groups)]

    def __call__(self, module: nn.Module) -> None:
        """Leave them out of this module."""
        for stack, kept in self._kept:
            layers = module.get_submodule(stack.path)
            parent, _, name = stack.path.rpartition(".")
            few = [layers[i] for i in kept]
            new = nn.Sequential(*few) if isinstance(layers, nn.Sequential) else nn.ModuleList(few)
            setattr(module.get_submodule(parent), name, new)
            for config in {id(c): c for c in _configs(module)}.values():
                for key, value in list(vars(config).items()):
                    if isinstance(value, (list, tuple)) and len(value) == stack.length:
                        setattr(config, key, type(value)(value[i] for i in kept))

    def made(self, make) -> nn.Module:
        """The module that `make()` gives, in which the layers that are to be left out may be empty: to make all of a deep one takes as long as to trace it.

        They are told by the order in which they are made. Where that is not theirs in the module, or where a module looks into
        its layers, it is made whole.
        """
        empty: list[nn.Module] = []
        with ExitStack() as stack:
            for one, kept in self._kept:
                if one.kind:
                    make_layer = _sparing(one.kind, kept, empty)
                    stack.enter_context(instead(one.kind, __init__=make_layer))
            try:
                module = make()
            except Exception:
                module = None
        if module is None or empty and set(map(id, empty)) != self._gone(module):
            return make()
        return module

    def _gone(self, module):
        return {
            id(layer)
            for stack, kept in self._kept
            if stack.kind
            for number, layer in enumerate(module.get_submodule(stack.path))
            if number not in kept
        }


def _sparing(kind: type, kept, empty):
    """An `__init__` that makes the layers of these numbers only."""
    numbers, make = itertools.count(), kind.__init__  # type: ignore[misc]

    def made(layer, *args, **kwargs):
        if next(numbers) in kept:
            make(layer, *args, **kwargs)
        else:
            nn.Module.__init__(layer)
            empty.append(layer)

    return made


def _kind(module, path):
    layers = list(module.get_submodule(path))
    kind = type(layers[0])
    ours = not kind.__module__.startswith("torch.")
    alone = sum(isinstance(part, kind) for part in module.modules()) == len(layers)
    return kind if ours and alone and all(type(layer) is kind for layer in layers) else None


def _configs(module):
    for part in module.modules():
        if isinstance(config := getattr(part, "config", None), object) and hasattr(
            config, "__dict__"
        ):
            yield config


class _Seen:
    """What the layers of a module's lists did in a forward pass."""

    def __init__(self):
        self.lists: dict[
            str, list
        ] = {}  # path: (number of the layer, first operation, after its last)
        self.operations: list = []  # each with its bytes, and whether they are kept for the backward pass

    @contextmanager
    def watch(self, module, values):
        handles = []
        self.module = module
        for path, layers in module.named_modules():
            if path and isinstance(layers, (nn.ModuleList, nn.Sequential)) and len(layers) > 3:
                calls = self.lists[path] = []
                for number, layer in enumerate(layers):
                    handles += self._follow(calls, number, layer, values)
        start = len(values.operations)
        values.given = []
        yield
        for handle in handles:
            handle.remove()
        gc.collect()  # what stands in circles is not kept
        # Without gradients, or under a checkpoint of the module's own, a layer does the same and keeps less.
        kept = [any(not memory.expired() for memory in given) for given in values.given]
        self.operations = list(zip(values.operations[start:], values.sizes[start:], kept))
        for calls in self.lists.values():
            calls[:] = [(number, a - start, b - start) for number, a, b in calls]

    def _follow(self, calls, number, layer, values):
        def before(*_):
            calls.append((number, len(values.operations), None))

        def after(*_):
            at = next(i for i in reversed(range(len(calls))) if calls[i][0] == number)
            calls[at] = (number, calls[at][1], len(values.operations))

        yield layer.register_forward_pre_hook(before)
        yield layer.register_forward_hook(after)

    def keys(self, path, calls):
        """What each layer did and is, as something to compare; none where they are not called once each, in order."""
        layers = self.module.get_submodule(path)
        if [number for number, *_ in calls] != [*range(len(layers))]:
            return []
        if any(end is None for *_, end in calls):
            return []
        holders: dict[int, set] = {}
        for name, part in self.module.named_modules():
            for weight in part._parameters.values():
                inside = name.removeprefix(f"{path}.").split(".")[0]
                holders.setdefault(id(weight), set()).add(
                    inside if name.startswith(f"{path}.") else ""
                )
        keys = []
        for (number, begin, end), layer in zip(calls, layers):
            weights = tuple(
                (name, tuple(weight.shape), weight.dtype, weight.requires_grad)
                for name, weight in [*layer.named_parameters(), *layer.named_buffers()]
            )
            shared = any(len(holders.get(id(weight), ())) > 1 for weight in layer.parameters())
            between = self._between(calls, number)
            did = tuple(self.operations[begin:end])
            keys.append((did, between, weights, _switches(layer), number if shared else None))
        return keys

    def _between(self, calls, number):
        """The operations between a layer and the next; after the last, those before it."""
        number = min(number, len(calls) - 2)
        return tuple(self.operations[calls[number][2] : calls[number + 1][1]])

    def without(self, stacks, groups):
        """The operations, less those of the layers that are left out."""
        gone: set[int] = set()
        for stack in stacks:
            calls, kept = self.lists[stack.path], set(stack.kept(groups))
            for number, begin, _ in calls:
                if number not in kept:
                    after = calls[number + 1][1] if number + 1 < len(calls) else calls[number][2]
                    if number + 1 == len(calls):  # the last: what stood before it goes with it
                        begin = calls[number - 1][2]
                    gone.update(range(begin, after))
        return [one for place, one in enumerate(self.operations) if place not in gone]


def _switches(layer):
    return tuple(
        (name, key, value)
        for name, part in layer.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, bool)
    )


def _stack(path, keys):
    """The repetition that spares the most layers, None where nothing repeats."""
    names: dict = {}
    kinds = [names.setdefault(key, len(names)) for key in keys]
    length, best = len(kinds), None
    for period in range(1, length // 3 + 1):
        first = 0
        while first < length:
            end = first
            while end + period < length and kinds[end] == kinds[end + period]:
                end += 1
            count = (end + period - first) // period
            if end > first and count > 3:
                spared = (count - 2) * period
                if best is None or spared > best[0]:
                    best = spared, Stack(path, length, first, period, count)
            first = max(end, first + 1)
    return best[1] if best else None


# From a few layers to many


def extrapolate(base: Trace, more: list[Trace], further: list[float]) -> Trace | None:
    """The trace of a deep model: `more` are traces with more groups of one stack each, `further` how often that is added.

    None: the traces do not fit to each other.
    """
    usage: np.ndarray = base.usage.astype(np.int64)
    flops = base.flops
    extra = [dict(peak) for peak in base.extra]
    for one, groups in zip(more, further):
        rows = _rows(base, one)
        if rows is None or len(extra) != len(one.extra):
            return None
        usage = usage + np.rint(groups * (one.usage[rows] - base.usage)).astype(np.int64)
        flops += round(groups * (one.flops - base.flops))
        for total, few, many in zip(extra, base.extra, one.extra):
            for category in total:
                total[category] += round(groups * (many[category] - few[category]))
    return replace(
        base,
        usage=usage,
        flops=flops,
        extra=extra,
        overhead=more[-1].overhead if more else base.overhead,
    )


def _rows(base, more):
    """For each row of `base.usage` that of the deeper trace, None where the deeper one is not the base with pieces put in."""
    if len(base.spans) != len(more.spans):
        return None
    numbers: dict = {}  # of what operations do, as something that arrays compare
    one, other = (
        np.array([numbers.setdefault(did, len(numbers)) for did in [None, *trace.operations]])
        for trace in (base, more)
    )
    rows = []
    for (a, a_end), (b, b_end) in zip(_bounds(base), _bounds(more)):
        places = aligned(one[a:a_end], other[b:b_end])
        if places is None:
            return None
        rows.append(b + places)
    return np.concatenate(rows)


def _bounds(trace):
    return zip(trace.spans, [*trace.spans[1:], len(trace.usage)])


def aligned(few: np.ndarray, many: np.ndarray) -> np.ndarray | None:
    """For each place of `few` its place in `many`, which is `few` with pieces put in; None where it is not.

    A piece repeats what stands around it, so it may as well begin elsewhere: A A between A A A. It is put into the middle,
    so that the first group of layers stays the first, and the last one the last.
    """
    places = np.arange(len(few))
    begin = shift = 0
    while True:
        at = begin + _common(few[begin:], many[begin + shift :])
        left = len(many) - len(few) - shift
        if at == len(few) and not left:
            return places
        fits = []
        for piece in range(1 if at < len(few) else max(left, 1), left + 1):
            other = at + shift + piece
            after = _common(few[at:], many[other:])
            before = _common(few[begin:at][::-1], many[:other][::-1])
            # A group of layers repeats the one before it; where none does, what fits furthest.
            fits.append(
                (before >= piece, before + after if before < piece else -piece, piece, before)
            )
        if not fits:
            return None
        _, fit, piece, before = max(fits)
        if not fit:
            return None
        begin = at - before // 2
        shift += piece
        places[begin:] += piece


def _common(one, other):
    """How many of the first are the same."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
