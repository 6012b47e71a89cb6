"""The lives of storages as the allocator tells them: each request and each release, in order, between the operations.

torch's profiler hears the CPU's allocator without changing what is computed. Here it records its events and a mark around
each operation, nothing else; a meter's `AllocatedBlocks` say what the blocks of memory are. CUDA's allocator it does not
hear in this form (tried on an H100 with torch 2.13: not one event), so there a meter goes by references.
"""

import ctypes
import os
import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch._C import _autograd
from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined]
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
)
from torch._C._profiler import _get_approximate_time as _clock
from torch.autograd import profiler

from trainlean.costs.blocks import ACTIVATIONS, WEIGHTS, Block, device_of
from trainlean.costs.operations import watched
from trainlean.costs.storages import address_of

HEARD = ("cpu",)  # devices whose allocators are heard
NUMBER = 16  # bytes at most of a Python number that autograd keeps as a tensor
ERROR = 2  # a severity of c10's log
MARKS = 9  # allocations of our own at the beginning and at the end, to set two clocks by
_CONFIG = ProfilerConfig(
    ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig(), ""
)
_ACTIVITIES = {ProfilerActivity.CPU}
# A kind of call that nobody makes here. The label that gloo gives a collective (a USER_SCOPE) is ended by gloo's thread, which
# then writes into what this thread may have freed meanwhile: the process ended now and then.
_SCOPES = {RecordScope.LITE_INTERPRETER}
# libkineto asks for it once, and writes two lines at each start and stop without it.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Event(NamedTuple):
    """Bytes requested at an address (negative: released), and whether an operation ran."""

    address: int
    size: int
    device: str
    inside: bool


class Recorder:
    """Hears the allocations of one thread. `events`, as of the last `read()`, are in order; None is the end of an operation."""

    def __init__(self):
        self.events: list[Event | None] = []
        self.thread = threading.get_ident()
        self._moments: list[int] = []  # when each operation began and ended
        self._marks: list[tuple[int, int]] = []  # the moments around our own allocations

    def read(self):
        """Bring `events` up to now."""
        self.stop()
        self.start()

    @contextmanager
    def hearing(self):
        """Hear within; no other profiler may start."""
        global _recorder
        prepare, profiler._prepare_profiler = profiler._prepare_profiler, _refuse
        with _without_warnings():
            self.start()
            try:
                yield
            finally:
                self.stop()
                profiler._prepare_profiler = prepare
                _recorder = None

    def before(self, operation, args, kwargs):
        """An operation begins."""
        self._moments.append(_clock())

    def after(self, operation, args, kwargs, out):
        """It has ended."""
        self._moments.append(_clock())

    def failed(self, operation):
        """It has ended in an error."""
        self._moments.append(_clock())

    def start(self):
        """Hear from now on."""
        _autograd._prepare_profiler(_CONFIG, _ACTIVITIES)
        _autograd._enable_profiler(_CONFIG, _ACTIVITIES, _SCOPES)  # type: ignore[call-arg]
        self._allocate()

    def stop(self):
        """Hear no more, and bring `events` up to now."""
        self._allocate()
        events = _autograd._disable_profiler().experimental_event_tree()
        heard: list = [event for event in events if event.name == "[memory]"]
        begin, end = (
            self._best(marks, events)
            for marks, events in (
                (self._marks[:MARKS], heard[: 2 * MARKS : 2]),
                (self._marks[MARKS:], heard[-2 * MARKS :: 2]),
            )
        )
        rate = (end[0] - begin[0]) / (end[1] - begin[1])
        moments, place, thread = self._moments, 0, heard[0].start_tid
        for event in heard[2 * MARKS : -2 * MARKS]:
            moment = begin[0] + (event.start_time_ns - begin[1]) * rate
            while place < len(moments) and moments[place] < moment:
                place += 1
                if place % 2 == 0:
                    self.events.append(None)
            told = event.extra_fields
            if told.alloc_size > 0 and told.device.type == "cpu" and event.start_tid != thread:
                continue  # of the thread that communicates, which has its turn when it likes
            self.events.append(Event(told.ptr, told.alloc_size, told.device.type, place % 2 == 1))
        self.events.extend([None] * (len(moments) // 2 - place // 2))
        self._moments, self._marks = [], []

    def _allocate(self):
        for _ in range(MARKS):
            before = _clock()
            _empty_strided_cpu((1,), (1,), torch.uint8)
            self._marks.append((before, _clock()))

    def _best(self, marks, events):
        """A moment on our clock and on the profiler's, as near to each other as can be: around the quickest allocation."""
        quickest = min(range(MARKS), key=lambda i: marks[i][1] - marks[i][0])
        return sum(marks[quickest]) / 2, events[quickest].start_time_ns


@contextmanager
def _without_warnings():
    """torch's C++ warns of each thousandth block that is released and was there before, which is as it should be."""
    level = _log_level()
    if level is None:
        yield
        return
    before, level.value = level.value, max(level.value, ERROR)
    try:
        yield
    finally:
        level.value = before


@cache
def _log_level():
    """The least severity that torch's C++ writes; None where its library is not found."""
    for name in ("libc10.so", "libc10.dylib", "c10.dll"):
        with suppress(OSError, ValueError):
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    return None


_recorder: Recorder | None = None  # torch has one profiler for all threads
_starting = threading.Lock()


@contextmanager
def recording():
    """The recorder of this thread, a running one or a new one; None while a profiler runs that is not ours, or in another thread."""
    global _recorder
    with _starting:
        running = _recorder
        free = running is None and not (
            profiler._is_profiler_enabled or _autograd._profiler_enabled()
        )
        if free:
            _recorder = Recorder()
    if free and _recorder:
        with _recorder.hearing(), watched(_recorder):
            yield _recorder
    elif running and running.thread == threading.get_ident():
        running.read()
        yield running
        running.read()
    else:
        yield None


def _refuse(*_, **__):
    raise RuntimeError(
        "A Meter listens to the allocator with torch's profiler, which runs once at a time: profile this training outside of `measure` and `with Meter()`."
    )


def _is_foreign(tensor):
    """Whether its memory is NumPy's, a file's or another process's: torch may not change how much there is."""
    return not tensor.untyped_storage().resizable()


class AllocatedBlocks:
    """Blocks, born when the allocator hands them out and dead when it gets them back; what they are is told meanwhile.

    A tick is the number of operations so far. Tensors are plain ones (see `trainlean.costs.storages`). Call `settle` before
    reading: `blocks`, `peak` (bytes, at the allocator's fullest moment), `hidden` (bytes of these that are Python numbers or
    random states), and `fullest` (the operation that ran then, by tick; None between two).
    """

    def __init__(self, recorder: Recorder):
        self.blocks: list[Block] = []
        self.peak = self.hidden = 0
        self.fullest: int | None = None
        self.tick = 0
        self._recorder = recorder
        self._first = len(recorder.events)
        self._last: int | None = None  # where this meter ends
        self._told: dict[int, list[tuple]] = defaultdict(list)  # by tick
        self._given: dict[int, list[tuple]] = defaultdict(list)  # by tick: what operations gave
        self._known: set[int] = set()  # addresses since the last batch
        self._visitors: set[int] = set()  # those of them that were only used
        self._born: set[int] = set()  # addresses that operations have given
        self._collectives: set[int] = set()  # ticks
        self._sent: dict[int, int] = {}  # by address: when what a collective works on was used last
        self._ends: dict[int, weakref.ref] = {}  # of what the profiler may not hear the end of

    def made(self, tensor, category):
        """An operation has given this tensor."""
        if address := address_of(tensor):
            self._known.add(address)
            self._born.add(address)
            self._given[self.tick].append((address, category))

    def used(self, tensor):
        """An operation uses this tensor; if it was not made here, it is the batch, until it turns out to be a weight."""
        address = address_of(tensor)
        if address in self._sent:
            self._sent[address] = self.tick + 1
        if address and address not in self._known:
            self._known.add(address)
            self._visitors.add(address)
            if foreign := _is_foreign(tensor):
                self._watch(tensor, address)
            self._told[self.tick].append(
                ("used", address, tensor.nbytes, tensor.device.type, foreign)
            )

    def became(self, tensor, category):
        """Say what the tensor's storage has become; if it was not made here, it was there from the start."""
        if address := address_of(tensor):
            self._known.add(address)
            if address in self._sent:
                self._sent[address] = self.tick  # it is there still
            if address not in self._born:
                self._watch(tensor, address)
            size = tensor.untyped_storage().nbytes()
            self._told[self.tick].append(
                (category, address, size, tensor.device.type, _is_foreign(tensor))
            )

    def communicated(self):
        """The operation was a collective."""
        self._collectives.add(self.tick)
        self._known -= self._visitors  # what it took is told where it is used
        self._visitors.clear()

    def sent(self, tensor):
        """A collective works on this tensor."""
        if address := address_of(tensor):
            self._sent[address] = self.tick
            self._watch(tensor, address)

    def _watch(self, tensor, address):
        if address not in self._ends:
            storage = tensor.untyped_storage()
            self._ends[address] = weakref.ref(storage, lambda _: self._ended(address))

    def _ended(self, address):
        """Tell what the profiler does not hear: a CPU's memory from before it comes back, or another thread lets go.

        The thread that communicates holds what is sent, and may be the last to do so. That ends here with the operation
        that used it last, whenever the other thread had its turn.
        """
        del self._ends[address]
        if address in self._visitors:  # what comes to lie there is another tensor
            self._visitors.remove(address)
            self._known.discard(address)
        last = self._sent.pop(address, self.tick)
        if threading.get_ident() == self._recorder.thread:
            self._told[self.tick].append(("back", address, 0, ""))
        else:
            self._told[last].append(("left", address, 0, ""))

    def next_batch(self):
        """Who visits now has left."""
        self._known.clear()
        self._visitors.clear()
        self._told[self.tick].append(("next", 0, 0, ""))

    def settle(self, category_of) -> None:
        """Work out the blocks; `category_of(tick)` is that of memory which no operation gave."""
        if self._last is None:
            self._recorder.read()
        lives, told_until = _Lives(category_of), -1
        for event in (*self._recorder.events[self._first : self._last], None):
            if (event is None or event.inside) and told_until < lives.tick:
                told_until = lives.tick
                for told in self._told.get(lives.tick, ()):
                    lives.tell(*told)
            if event is None:
                tick = lives.tick + 1
                lives.end_operation(self._given.get(tick, ()), tick in self._collectives)
            else:
                lives.hear(event)
        lives.end_unheard()
        self.blocks = [life.block for life in lives.seen if not life.hidden]
        self.peak, self.hidden, self.fullest = lives.fullest_moment()

    def close(self):
        """What happens from now on is not this meter's."""
        self._last = len(self._recorder.events)
        self._ends.clear()


@dataclass(slots=True, eq=False)
class _Life:
    block: Block
    start: int  # of all that was heard, where it begins and ends
    end: int | None = None
    given: bool = True  # by an operation
    hidden: bool = False  # a Python number or a random state, no tensor of anybody's
    used: int | None = None  # of what a collective took beside its tensors: its last operation


class _Lives:
    """Blocks in the order of what was heard and told."""

    def __init__(self, category_of):
        self.tick = 0
        self.seen: list[_Life] = []
        self._category_of = category_of
        self._heard = 0
        self._ticks: list[int] = []  # by what was heard: the operation that ran, or -1
        self._ended = [0]  # by operation: how much was heard at its end
        self._live: dict[int, _Life] = {}
        self._gone: dict[int, _Life] = {}  # since the last operation
        self._visitors: set[int] = set()
        self._random_state = torch.get_rng_state().nbytes

    def hear(self, event):
        """Memory is handed out or comes back."""
        self._heard += 1
        self._ticks.append(self.tick + 1 if event.inside else -1)
        if event.size > 0:
            self.end_unheard(event.address)
        self._end(event.address, event.inside)
        if event.size > 0:
            category = self._category_of(self.tick + 1)
            block = Block(event.size, event.device, self.tick + 1, category)
            small = event.size <= NUMBER or event.size == self._random_state
            self._begin(event.address, block, given=False, hidden=small and not event.inside)

    def end_operation(self, given, collective):
        """An operation has ended and has given these."""
        self.tick += 1
        self._gone.clear()
        for address, category in given:
            life = self._live.get(address)
            if life and not life.given:
                life.given, life.hidden = True, False
                life.block.category = category
        self._ended.append(self._heard)
        for life in reversed(self.seen) if collective else ():
            if life.block.born < self.tick:
                break
            if not life.given:
                life.used = self.tick

    def end_unheard(self, *addresses):
        """End what collectives took at its last use, here or everywhere: the thread that communicates may have let go of it, which nobody hears."""
        for address in addresses or list(self._live):
            life = self._live.get(address)
            if life and life.used is not None:
                last = min(life.used, self.tick)  # which an interrupt may have ended
                life.end, life.block.died = self._ended[last], last
                del self._live[address]

    def tell(self, what, address, size, device, foreign=False):
        """What a meter has told of memory since the last operation."""
        if what == "next":
            for visitor in list(self._visitors):
                self._end(visitor)
        elif what in ("left", "back"):
            if what == "left" or self._is_older(address) or address in self._visitors:
                self._end(address)
        elif what == "used":
            if foreign and self._file_around(address):
                return
            if address not in self._live:
                block = Block(size, device, self.tick, ACTIVATIONS, foreign=foreign)
                self._begin(address, block)
                self._visitors.add(address)
            elif self._live[address].used is not None:
                self._live[address].used = self.tick + 1
        else:
            if address in self._visitors:
                self._live[address].block.size = 0  # no batch, then
                self._end(address)
                self._gone.pop(address)
            life = self._live.get(address) or self._gone.get(address)
            if foreign and life is None:
                life = self._file_around(address)
            if life is None:
                life = self._begin(address, Block(size, device, 0, what, foreign=foreign), start=0)
            life.given, life.hidden = True, False
            if life.block.category != WEIGHTS:
                life.block.category = what

    def _file_around(self, address):
        """The file in memory that this is a part of: the allocator has told of it as a whole, and each tensor has a storage of its own."""
        lives = (*self._live.items(), *self._gone.items())
        around = (life for start, life in lives if start < address < start + life.block.size)
        return next((life for life in around if life.start), None)

    def _is_older(self, address):
        """Whether what lives there was not heard to begin."""
        return address in self._live and self._live[address].start == 0

    def _begin(self, address, block, start=None, given=True, hidden=False):
        life = _Life(block, self._heard if start is None else start, None, given, hidden)
        self._live[address] = life
        self.seen.append(life)
        return life

    def _end(self, address, inside=False):
        self._visitors.discard(address)
        if life := self._live.pop(address, None):
            # A tensor that an operation releases was still there while it ran.
            life.end, life.block.died = self._heard, self.tick + (inside and life.given)
            self._gone[address] = life

    def fullest_moment(self):
        """Bytes at the allocator's peak, those of them that are hidden, and the operation that ran."""
        device = device_of(life.block for life in self.seen)
        change: np.ndarray = np.zeros((self._heard + 2, 2), dtype=np.int64)
        for life in self.seen:
            if life.block.device == device and not life.block.foreign:
                change[life.start, int(life.hidden)] += life.block.size
                if life.end is not None:
                    change[life.end, int(life.hidden)] -= life.block.size
        usage = change.cumsum(axis=0)
        place = int(usage.sum(axis=1).argmax())
        ran = self._ticks[place - 1] if 0 < place <= len(self._ticks) else -1
        return int(usage[place].sum()), int(usage[place, 1]), None if ran < 0 else ran
