"""Ranks as threads of one process: `torch.distributed` works in each of them, and no wait lasts longer than it must.

The group is made of Python objects and sends nothing. So it sees at once that a rank waits for one that has ended,
and it can note at which point of its training a rank communicated.
"""

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from unittest import mock

import torch
from torch import distributed

from trainlean.devices.waiting import DeviceError

BUSY_SECONDS = 1.5  # seconds for a rank that is still busy
LAST_SECONDS = 10  # seconds for interrupted ranks to end


class WaitedInVain(Exception):
    """Ends a collective that cannot be completed."""


class Interrupted(BaseException):
    """Ends a rank from outside; what catches every Exception lets it pass."""


@dataclass(frozen=True)
class Sent:
    """One collective as a rank took part in it: `bytes` are the payload, `at` is what `Rank.where` said."""

    kind: str
    bytes: int
    at: object


class Meeting:
    """Where the ranks of one group wait for each other."""

    def __init__(self, world_size: int):
        self.world_size, self.changed = world_size, threading.Condition()
        self.arrived, self.meetings, self.failure = {}, 0, None
        self.ended: dict[int, str] = {}  # after which of its steps
        self.waiting: dict[int, tuple] = {}  # of each rank that waits: itself, and in what
        self.shared: list[list] = []  # what each rank gave to the last collective
        self.posted: dict[tuple, list] = {}  # (from, to, tag) -> what was sent and not yet received

    def join(self, rank: "Rank", kind: str, given: list, like: list) -> list[list]:
        """Wait until all ranks have come to this collective; what each of them gave. `like` must be as large on every rank."""
        with self.changed:
            number = self.meetings
            self.arrived[rank.number] = kind, [tensor.clone() for tensor in given], like
            self.waiting[rank.number] = rank, kind
            if len(self.arrived) == self.world_size and self.failure is None:
                self._meet()
                self.changed.notify_all()
            while self.meetings == number and self.failure is None:
                missing = next(
                    other for other in range(self.world_size) if other not in self.arrived
                )
                if self.ended:
                    first = min(self.ended)
                    self._fail(f"rank {first} {self._state(first)}")
                elif not self.changed.wait(BUSY_SECONDS):
                    self._fail(f"rank {missing} {self._state(missing)}")
            if self.meetings == number:
                raise WaitedInVain
            return self.shared

    def post(self, sender: int, to: int, tag: int, tensors: list) -> None:
        with self.changed:
            copies = [tensor.clone() for tensor in tensors]
            self.posted.setdefault((sender, to, tag), []).append(copies)
            self.changed.notify_all()

    def fetch(self, rank: "Rank", sender: int, tag: int) -> list:
        """Wait for the next message of a rank."""
        with self.changed:
            self.waiting[rank.number] = rank, "recv"
            while not self.posted.get((sender, rank.number, tag)) and self.failure is None:
                if sender in self.ended or not self.changed.wait(BUSY_SECONDS):
                    self._fail(f"rank {sender} {self._state(sender)}")
            if self.failure is not None:
                raise WaitedInVain
            del self.waiting[rank.number]
            return self.posted[sender, rank.number, tag].pop(0)

    def end(self, rank: "Rank") -> None:
        with self.changed:
            self.ended[rank.number] = rank.moment()
            self.changed.notify_all()

    def _meet(self):
        came = [self.arrived[rank] for rank in range(self.world_size)]
        sizes = [sum(tensor.numel() for tensor in like) for *_, like in came]
        if len(set(sizes)) > 1 or len({kind for kind, *_ in came}) > 1:
            self.failure = "the ranks are not in the same collective: " + ", ".join(
                f"rank {number} is in {kind} with {size} numbers"
                for number, ((kind, *_), size) in enumerate(zip(came, sizes, strict=True))
            )
            return
        self.shared = [given for _, given, _ in came]
        self.arrived, self.waiting, self.meetings = {}, {}, self.meetings + 1

    def _state(self, rank):
        if rank in self.ended:
            return f"has ended{self.ended[rank]}"
        return f"waits in {self.waiting[rank][1]}" if rank in self.waiting else "is still busy"

    def _fail(self, reason):
        if (
            self.failure is not None
        ):  # told by a rank whose time ran out in the same moment, which may have ended since
            return
        waiting = (
            f"rank {number} waited in vain in {kind}{rank.moment()}"
            for number, (rank, kind) in sorted(self.waiting.items())
        )
        self.failure = f"{'; '.join(waiting)}: {reason}"
        self.changed.notify_all()


_numbers = itertools.count()

REDUCTIONS = {
    distributed.ReduceOp.SUM: lambda parts: sum(parts[1:], parts[0]),
    distributed.ReduceOp.AVG: lambda parts: sum(parts[1:], parts[0]) / len(parts),
    distributed.ReduceOp.MAX: lambda parts: torch.stack(parts).amax(0),
    distributed.ReduceOp.MIN: lambda parts: torch.stack(parts).amin(0),
}


def reduction(op):
    if op.op not in REDUCTIONS:
        raise RuntimeError(f"The ranks of a check cannot reduce with {op.op.name}")
    return REDUCTIONS[op.op]


class Rank(distributed.ProcessGroup):
    """The default process group of one rank. `sent` is what it took part in; set `where` to note at which point, `steps` for messages."""

    group_name = ""  # by which functional collectives find it

    def __init__(self, meeting: Meeting, number: int):
        super().__init__(number, meeting.world_size)
        self.group_name = f"check {next(_numbers)}, rank {number}"
        self.meeting, self.number = meeting, number
        self.sent: list[Sent] = []
        self.where = self.steps = lambda: None

    def __deepcopy__(self, memo):
        return self  # a copy of a model that is watched has the same group

    def moment(self) -> str:
        steps = self.steps()
        return (
            ""
            if steps is None
            else f" after its optimizer step {steps}"
            if steps
            else " before its first optimizer step"
        )

    def _take_part(self, kind, given=(), outputs=(), take=list, like=None):
        """A collective: this rank gives tensors, and `take` makes of what all ranks gave what goes into its outputs."""
        self.sent.append(Sent(kind, sum(tensor.nbytes for tensor in given), self.where()))
        of_ranks = self.meeting.join(self, kind, given, given if like is None else like)
        return Arriving(outputs, take(of_ranks))

    def allreduce(self, tensors, opts):
        combine = reduction(opts.reduceOp)
        return self._take_part(
            "all_reduce", tensors, tensors, lambda of_ranks: map(combine, zip(*of_ranks))
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        combine, here = reduction(opts.reduceOp), self.number == opts.rootRank
        return self._take_part(
            "reduce",
            tensors,
            tensors if here else [],
            lambda of_ranks: map(combine, zip(*of_ranks)),
        )

    def broadcast(self, tensors, opts):
        given = tensors if self.number == opts.rootRank else []
        return self._take_part(
            "broadcast", given, tensors, lambda of_ranks: of_ranks[opts.rootRank], like=tensors
        )

    def allgather(self, outputs, inputs, opts=None):
        return self._take_part(
            "all_gather", inputs, outputs[0], lambda of_ranks: [given[0] for given in of_ranks]
        )

    def all_gather_single(self, output, one, opts=None):
        return self.allgather([output.view(-1).chunk(self.meeting.world_size)], [one])

    def gather(self, outputs, inputs, opts):
        outputs = outputs[0] if self.number == opts.rootRank else []
        return self._take_part(
            "gather", inputs, outputs, lambda of_ranks: [given[0] for given in of_ranks]
        )

    def scatter(self, outputs, inputs, opts):
        given = inputs[0] if self.number == opts.rootRank else []
        return self._take_part(
            "scatter",
            given,
            outputs,
            lambda of_ranks: [of_ranks[opts.rootRank][self.number]],
            like=outputs,
        )

    def reduce_scatter(self, outputs, inputs, opts):
        combine = reduction(opts.reduceOp)
        return self._take_part(
            "reduce_scatter",
            inputs[0],
            outputs,
            lambda of_ranks: [combine([given[self.number] for given in of_ranks])],
        )

    def reduce_scatter_single(self, output, one, opts):
        return self.reduce_scatter([output], [one.view(-1).chunk(self.meeting.world_size)], opts)

    def alltoall(self, outputs, inputs, opts=None):
        return self._take_part(
            "all_to_all",
            inputs,
            outputs,
            lambda of_ranks: [given[self.number] for given in of_ranks],
            like=[],  # the pieces need not be equally large
        )

    def barrier(self, opts=None):
        return self._take_part("barrier")

    def send(self, tensors, to, tag=0):
        self.sent.append(Sent("send", sum(tensor.nbytes for tensor in tensors), self.where()))
        self.meeting.post(self.number, to, tag, tensors)
        return finished(tensors)

    def recv(self, tensors, sender, tag=0):
        self.sent.append(Sent("recv", 0, self.where()))
        return Receiving(self, tensors, sender, tag)


class Arriving(distributed.Work):
    """A collective to which all ranks have come: its tensors are filled when it is waited for, and not before.

    So whoever forgets to wait for an asynchronous one computes with what was there, here in every run.
    """

    def __init__(self, outputs: list, values: Iterable):
        super().__init__()
        self.outputs, self.values = list(outputs), values

    def wait(self, timeout=None):
        with torch.no_grad():
            for output, value in zip(self.outputs, self.values, strict=False):
                output.copy_(value.view_as(output))
        self.values = ()  # what is waited for again changes nothing
        return True

    is_completed = wait

    def get_future(self):
        """By which DistributedDataParallel waits and reads."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.outputs)
        return future


class Receiving(distributed.Work):
    """A message that is waited for when somebody asks for it."""

    def __init__(self, rank: Rank, tensors: list, sender: int, tag: int):
        super().__init__()
        self.rank, self.tensors, self.sender, self.tag = rank, tensors, sender, tag

    def wait(self, timeout=None):
        with torch.no_grad():
            for tensor, sent in zip(
                self.tensors, self.rank.meeting.fetch(self.rank, self.sender, self.tag), strict=True
            ):
                tensor.copy_(sent)
        return True


def finished(tensors) -> distributed.Work:
    """A work that is done, with the tensors that it has filled: DistributedDataParallel reads them there."""
    future = torch.futures.Future()
    future.set_result(list(tensors))
    return torch._C._distributed_c10d._create_work_from_future(future)


def _same_group(ranks=None, *_, **__):
    """A further group of all ranks is the one that they have."""
    rank = distributed.group.WORLD
    if ranks is not None and sorted(ranks) != list(range(rank.meeting.world_size)):
        raise RuntimeError(f"The ranks of a check are in one group; none can be made of {ranks}")
    return rank


def _interrupt(threads: list[threading.Thread]):
    """Raise Interrupted in these threads until they have ended; nothing helps against a call that never comes back to Python."""
    end = time.monotonic() + LAST_SECONDS
    # One that is still being started is not yet alive, but among all there are.
    while (left := set(threads) & set(threading.enumerate())) and time.monotonic() < end:
        for thread in left:
            if thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted)
                )
        time.sleep(0.2)


def as_ranks(work: Callable[[Rank], object], world_size: int = 2) -> list:
    """Call `work(rank)` on every rank at once, each with its own default process group; the results by rank.

    An error is raised again, that of the lowest rank first. A wait in vain raises DeviceError with a sentence that names
    rank, collective and, where `Rank.steps` is set, the optimizer step.
    """
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    meeting, c10d = Meeting(world_size), distributed.distributed_c10d
    results: list = [None] * world_size
    errors: dict[int, BaseException] = {}
    before, c10d._world = c10d._world, ThreadLocalWorld()

    def on(number):
        rank = Rank(meeting, number)
        torch._C._distributed_c10d._register_process_group(rank.group_name, rank)
        c10d._world.default_pg = rank
        c10d._world.pg_group_ranks[rank] = {member: member for member in range(world_size)}
        c10d._world.pg_map[rank] = ("gloo", None)
        c10d._world.pg_names[rank] = rank.group_name
        try:
            results[number] = work(rank)
        except BaseException as error:
            errors[number] = error
        finally:
            torch._C._distributed_c10d._unregister_process_group(rank.group_name)
            c10d._world.default_pg = None
            meeting.end(rank)

    # Daemons: of one that nothing ends no process waits at its own end.
    threads = [
        threading.Thread(target=on, args=(number,), daemon=True) for number in range(world_size)
    ]
    try:
        with mock.patch.object(distributed, "new_group", _same_group):
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    # An interrupt in the moment before a wait does not end it: no wait is without an end.
                    thread.join(BUSY_SECONDS)
    except KeyboardInterrupt:
        _interrupt(threads)
        raise
    finally:
        c10d._world = before
    for _, error in sorted(errors.items()):
        if not (isinstance(error, WaitedInVain) or "/gloo/" in str(error)):
            raise error
    for number, error in sorted(errors.items()):  # told with the line of the answer that waited
        # A group of gloo's own says of a rank that never came that a connection was closed, or a time ran out.
        told = (
            meeting.failure
            or f"rank {number} waited in vain: not all ranks came to the same collective"
        )
        raise DeviceError(f"{told}.").with_traceback(error.__traceback__)
    return results
