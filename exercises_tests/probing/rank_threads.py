"""Ranks as threads of one process: `torch.distributed` works in each of them, and no wait lasts longer than it must.

The group is made of Python objects and sends nothing. So it sees at once that a rank waits for one that has ended,
and it can note at which point of its training a rank communicated.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import distributed

from trainlean.devices.waiting import DeviceError

BUSY_SECONDS = 1.5  # seconds for a rank that is still busy


class WaitedInVain(Exception):
    """Ends a collective that cannot be completed."""


@dataclass(frozen=True)
class Sent:
    """One collective as a rank took part in it: `bytes` are the payload, `at` is what `Rank.where` said."""

    kind: str
    bytes: int
    at: object


class Meeting:
    """Where the ranks of one group wait for each other."""

    def __init__(self, ranks: int):
        self.ranks, self.changed = ranks, threading.Condition()
        self.arrived, self.ended, self.meetings, self.failure = {}, set(), 0, None

    def join(self, rank: "Rank", kind: str, tensors: list, carry_out: Callable) -> None:
        """Wait until all ranks have come to this collective; the last one carries it out for all."""
        with self.changed:
            number = self.meetings
            self.arrived[rank.number] = (rank, kind, tensors)
            if len(self.arrived) == self.ranks and self.failure is None:
                self._meet(carry_out)
                self.changed.notify_all()
            while self.meetings == number and self.failure is None:
                if self.ended:
                    self._fail(f"rank {min(self.ended)} has ended")
                elif not self.changed.wait(BUSY_SECONDS):
                    missing = next(
                        other for other in range(self.ranks) if other not in self.arrived
                    )
                    self._fail(f"rank {missing} is still busy")
            if self.meetings == number:
                raise WaitedInVain

    def end(self, rank: int) -> None:
        with self.changed:
            self.ended.add(rank)
            self.changed.notify_all()

    def _meet(self, carry_out):
        came = [self.arrived[rank] for rank in range(self.ranks)]
        for what in (
            [kind for _, kind, _ in came],
            [sum(tensor.numel() for tensor in tensors) for _, _, tensors in came],
        ):
            if len(set(what)) > 1:
                self.failure = "the ranks are not in the same collective: " + ", ".join(
                    f"rank {number} is in {kind} with {sum(tensor.numel() for tensor in tensors)} numbers"
                    for number, (_, kind, tensors) in enumerate(came)
                )
                return
        with torch.no_grad():
            carry_out([tensors for _, _, tensors in came])
        self.arrived, self.meetings = {}, self.meetings + 1

    def _fail(self, reason):
        waiting = (
            f"rank {number} waited in vain in {kind}{rank.moment()}"
            for number, (rank, kind, _) in sorted(self.arrived.items())
        )
        self.failure = f"{'; '.join(waiting)}: {reason}"
        self.changed.notify_all()


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

    def __init__(self, meeting: Meeting, number: int):
        super().__init__(number, meeting.ranks)
        self.meeting, self.number = meeting, number
        self.sent: list[Sent] = []
        self.where = self.steps = lambda: None

    def moment(self) -> str:
        steps = self.steps()
        return (
            ""
            if steps is None
            else f" after its optimizer step {steps}"
            if steps
            else " before its first optimizer step"
        )

    def _join(self, kind, tensors, carry_out, payload=None):
        payload = tensors if payload is None else payload
        self.sent.append(Sent(kind, sum(tensor.nbytes for tensor in payload), self.where()))
        self.meeting.join(self, kind, tensors, carry_out)
        future = torch.futures.Future()
        future.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def allreduce(self, tensors, opts):
        combine = reduction(opts.reduceOp)

        def carry_out(of_ranks):
            for parts in zip(*of_ranks, strict=True):
                total = combine([part.clone() for part in parts])
                for part in parts:
                    part.copy_(total)

        return self._join("all_reduce", tensors, carry_out)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        combine = reduction(opts.reduceOp)

        def carry_out(of_ranks):
            for parts in zip(*of_ranks, strict=True):
                parts[opts.rootRank].copy_(combine([part.clone() for part in parts]))

        return self._join("reduce", tensors, carry_out)

    def broadcast(self, tensors, opts):
        def carry_out(of_ranks):
            for parts in zip(*of_ranks, strict=True):
                for part in parts:
                    part.copy_(parts[opts.rootRank].clone())

        return self._join(
            "broadcast", tensors, carry_out, tensors if self.number == opts.rootRank else []
        )

    def allgather(self, outputs, inputs, opts=None):
        def carry_out(of_ranks):
            self.meeting.gathered = [tensors[0].clone() for tensors in of_ranks]

        work = self._join("all_gather", inputs, carry_out)
        with torch.no_grad():
            for output, gathered in zip(outputs[0], self.meeting.gathered, strict=True):
                output.copy_(gathered)
        return work

    def barrier(self, opts=None):
        return self._join("barrier", [], lambda of_ranks: None)


def as_ranks(work: Callable[[Rank], object], ranks: int = 2) -> list:
    """Call `work(rank)` on every rank at once, each with its own default process group; the results by rank.

    An error is raised again, that of the lowest rank first. A wait in vain raises DeviceError with a sentence that names
    rank, collective and, where `Rank.steps` is set, the optimizer step.
    """
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    meeting, c10d = Meeting(ranks), distributed.distributed_c10d
    before, c10d._world = c10d._world, ThreadLocalWorld()

    def on(number):
        rank = Rank(meeting, number)
        c10d._world.default_pg = rank
        c10d._world.pg_group_ranks[rank] = {member: member for member in range(ranks)}
        c10d._world.pg_map[rank] = ("gloo", None)
        c10d._world.pg_names[rank] = ""
        try:
            return work(rank), None
        except Exception as error:
            return None, error
        finally:
            c10d._world.default_pg = None
            meeting.end(number)

    try:
        with ThreadPoolExecutor(ranks) as pool:
            results = list(pool.map(on, range(ranks)))
    finally:
        c10d._world = before
    errors = [error for _, error in results if error is not None]
    for error in errors:
        if not isinstance(error, WaitedInVain):
            raise error
    if errors:
        raise DeviceError(f"{meeting.failure}.")
    return [value for value, _ in results]
