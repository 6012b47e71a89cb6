"""Records what one rank does over time in a real run: computing, waiting for another rank, or averaging with it.

Every rank records itself with `RankRecorder` (in a `%%px` cell) or `record_rank` (through `run_on_devices`); the records of
all ranks together make the pictures of `trainlean.pictures.ranks`. Times are the clock's, which all processes of a machine
share; between machines they are as equal as the machines' clocks.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from trainlean.costs.collectives import collective_of
from trainlean.costs.operations import in_backward

SHORTEST = 5e-5  # seconds; a shorter wait is no wait but the time that a call takes
SHORTEST_IN_BACKWARD = (
    5e-4  # where the engine may also be between two operations that it could go on with
)


@dataclass
class RankRecord:
    """What one rank did, from `start` to `end` (seconds of the clock).

    `collectives`: what it took part in, in order, as {"kind", "bytes", "step", "backward", "issued", "done"};
    `blocked`: the (start, end) in which it could not go on because of them; `steps`: when each optimizer step ended;
    `values`: (optimizer steps so far, watched value), one at the start, one after each step and one where it has changed
    before the next step, that is, after an average; `averages`: after how many steps something was averaged outside a backward pass.
    """

    rank: int
    start: float = 0.0
    end: float = 0.0
    collectives: list[dict] = field(default_factory=list)
    blocked: list[tuple[float, float]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)

    @property
    def averages(self) -> list[int]:
        """After how many optimizer steps there was an all-reduce outside a backward pass."""
        found = [
            one["step"]
            for one in self.collectives
            if one["kind"] == "all-reduce" and not one["backward"]
        ]
        return list(dict.fromkeys(found))


class RankRecorder(TorchDispatchMode):
    """`with RankRecorder() as recorder:` records this rank; afterwards `recorder.record` is its `RankRecord`.

    `watch`, a function without arguments that gives one number, such as `lambda: model.fc.weight[0, 0].item()`, is recorded
    along the optimizer steps. The recorder sees every operation, which slows small models down a little.
    """

    def __init__(self, watch: Callable[[], float] | None = None):
        super().__init__()
        self.record = RankRecord(dist.get_rank() if dist.is_initialized() else 0)
        self._watch = watch
        self._idle_since = 0.0  # when the last operation ended
        self._gaps: list[
            tuple[float, float]
        ] = []  # between two operations while a collective was under way
        self._under_way: set[int] = set()  # numbers of collectives; other threads take them out
        self._may_wait = False  # whether some were, when the last operation ended
        self._attached = ExitStack()

    def __enter__(self):
        for handle in (
            register_optimizer_step_pre_hook(lambda *_: self._note_change()),
            register_optimizer_step_post_hook(lambda *_: self._note_step()),
        ):
            self._attached.callback(handle.remove)
        self._note_value()
        self.record.start = self._idle_since = time.time()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._attached.close()
        self._gap()
        self.record.end = time.time()
        self._note_change()
        flights = [
            (one["issued"], one["done"] or self.record.end) for one in self.record.collectives
        ]
        self.record.blocked = _common(self._gaps, flights)
        for one, (_, done) in zip(self.record.collectives, flights):
            one["done"] = done

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._gap()
        issued = time.time()
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and (kind := collective_of(func)):
            self._follow(kind, args, out, issued)
        self._idle_since, self._may_wait = time.time(), bool(self._under_way)
        return out

    def _gap(self):
        now = time.time()
        if self._may_wait and now - self._idle_since > (
            SHORTEST_IN_BACKWARD if in_backward() else SHORTEST
        ):
            self._gaps.append((self._idle_since, now))

    def _follow(self, kind, args, out, issued):
        tensors = [
            leaf
            for leaf in torch.utils._pytree.tree_leaves(args[0])
            if isinstance(leaf, torch.Tensor)
        ]
        size = 0 if kind == "barrier" else sum(tensor.nbytes for tensor in tensors)
        one = {
            "kind": kind,
            "bytes": size,
            "step": len(self.record.steps),
            "backward": in_backward(),
            "issued": issued,
            "done": None,
        }
        self.record.collectives.append(one)
        number = len(self.record.collectives)
        work = out[-1] if isinstance(out, (tuple, list)) and out else out
        if not isinstance(work, torch.ScriptObject):
            one["done"] = time.time()  # it was waited for within the call
            return
        self._under_way.add(number)

        def done(_):
            one["done"] = time.time()
            self._under_way.discard(number)

        dist.Work.unbox(work).get_future().add_done_callback(done)

    def _note_step(self):
        self.record.steps.append(time.time())
        self._note_value()

    def _note_value(self):
        if self._watch is not None:
            self.record.values.append((len(self.record.steps), float(self._watch())))

    def _note_change(self):
        """Note the watched value again if something other than a step has changed it."""
        if self._watch is not None and float(self._watch()) != self.record.values[-1][1]:
            self._note_value()


def record_rank(train: Callable, *args, watch: Callable[[], float] | None = None) -> RankRecord:
    """Call `train(*args)` under a `RankRecorder`: `records = run_on_devices(record_rank, train, ...)`."""
    with RankRecorder(watch) as recorder:
        train(*args)
    return recorder.record


def _common(gaps, flights) -> list[tuple[float, float]]:
    """The parts of the gaps in which at least one of the flights was under way, in order and joined."""
    parts = sorted(
        (max(a, c), min(b, d))
        for a, b in gaps
        for c, d in flights
        if min(b, d) - max(a, c) > SHORTEST
    )
    joined: list[tuple[float, float]] = []
    for start, end in parts:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def phases(records: list[RankRecord]) -> list[list[tuple[str, float, float]]]:
    """For every rank what it did, in order: (computing, waiting or averaging, start, end) in seconds after the first start.

    A blocked rank waits until the last rank has come to the collective, and in a barrier; after that it averages (sends, receives and adds up).
    The n-th collective of one rank is taken for the n-th of the others.
    """
    zero = min((record.start for record in records), default=0.0)
    arrived = [
        max(one["issued"] for one in same)
        for same in zip(*(record.collectives for record in records))
    ]
    result = []
    for record in records:
        line, at = [], record.start
        for start, end in record.blocked:
            line.append(("computing", at, start))
            split = start
            for one, last in zip(record.collectives, arrived):
                if one["issued"] < end and one["done"] > start:
                    split = max(split, min(end, one["done"] if one["kind"] == "barrier" else last))
            line += [("waiting", start, split), ("averaging", split, end)]
            at = end
        line.append(("computing", at, record.end))
        result.append(
            [(what, start - zero, end - zero) for what, start, end in line if end > start]
        )
    return result
