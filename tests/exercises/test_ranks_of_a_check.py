"""The ranks of a check are threads; whatever torch offers to make a mean of their tensors must work on them."""

import signal
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from exercises_tests.probing.local_sgd import in_words
from exercises_tests.probing.own_globals import for_every_rank
from exercises_tests.probing.rank_threads import Meeting, WaitedInVain, as_ranks
from trainlean.devices.waiting import DeviceError

RANKS = 3


def by_all_reduce(tensor):
    dist.all_reduce(tensor)
    return tensor / RANKS


def by_all_reduce_later(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True).wait()
    return tensor


def by_reduce_and_broadcast(tensor):
    dist.reduce(tensor, dst=1)
    dist.broadcast(tensor, src=1)
    return tensor / RANKS


def by_all_gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(parts, tensor)
    return torch.stack(parts).mean(0)


def by_all_gather_into_one(tensor):
    parts = torch.empty(RANKS, *tensor.shape)
    dist.all_gather_into_tensor(parts, tensor)
    return parts.mean(0)


def by_objects(tensor):
    parts = [None] * RANKS
    dist.gather_object(tensor, parts if dist.get_rank() == 0 else None, dst=0)
    mean = [torch.stack(parts).mean(0) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(mean, src=0)
    return mean[0]


def by_gather_and_scatter(tensor):
    here = dist.get_rank() == 0
    parts = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.gather(tensor, parts if here else None, dst=0)
    dist.scatter(tensor, [torch.stack(parts).mean(0)] * RANKS if here else None, src=0)
    return tensor


def by_reduce_scatter(tensor):
    piece = torch.empty(len(tensor) // RANKS)
    dist.reduce_scatter_tensor(piece, tensor)
    pieces = [torch.empty_like(piece) for _ in range(RANKS)]
    dist.all_gather(pieces, piece)
    return torch.cat(pieces) / RANKS


def by_all_to_all(tensor):
    parts = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_to_all(parts, [tensor] * RANKS)
    return torch.stack(parts).mean(0)


def by_a_further_group(tensor):
    dist.all_reduce(tensor, group=dist.new_group())
    return tensor / RANKS


def by_a_functional_collective(tensor):
    return functional.all_reduce(tensor, "sum", dist.group.WORLD) / RANKS


def by_messages_both_ways(tensor):
    me = dist.get_rank()
    parts = [tensor.clone() for _ in range(RANKS)]
    others = [rank for rank in range(RANKS) if rank != me]
    works = [dist.irecv(parts[rank], src=rank) for rank in others]
    works += [dist.isend(tensor, dst=rank) for rank in others]
    for work in works:
        work.wait()
    return torch.stack(parts).mean(0)


WAYS = [way for name, way in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_every_rank_the_mean(way):
    given = torch.randn(RANKS, 6)

    def take_part(rank):
        return way(given[rank.number].clone()), rank.sent

    for mean, sent in as_ranks(take_part, RANKS):
        assert torch.allclose(mean, given.mean(0))
        assert sent, "whoever looks for messages must see them"


def test_what_is_not_waited_for_has_not_arrived():
    def take_part(rank):
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        before = tensor.clone()
        work.wait()
        return before, tensor

    for before, after in as_ranks(take_part, RANKS):
        assert before.tolist() == [1.0, 1.0]
        assert after.tolist() == [RANKS, RANKS]


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (lambda rank: dist.barrier() if rank.number else None, "rank 0 has ended"),
        (
            lambda rank: dist.recv(torch.empty(1), src=0) if rank.number else None,
            "rank 1 waited in vain in recv: rank 0 has ended",
        ),
        (
            lambda rank: dist.recv(torch.empty(1), src=1 - rank.number),
            "waits in recv",
        ),
        (
            lambda rank: dist.all_reduce(torch.ones(1 + rank.number)),
            "rank 0 is in all_reduce with 1 numbers, rank 1 is in all_reduce with 2 numbers",
        ),
    ],
)
def test_a_wait_in_vain_is_told(wait, told):
    with pytest.raises(DeviceError, match=told):
        as_ranks(wait, 2)


@pytest.mark.parametrize("wait", ["join", "fetch"])
def test_of_two_ranks_whose_time_runs_out_together_the_first_is_told(wait):
    meeting = Meeting(2)

    def run_out(seconds):
        meeting._fail("rank 1 waits in recv")
        meeting.ended[0] = ""
        return False

    meeting.changed.wait = run_out
    given = {"join": ("all_reduce", [], []), "fetch": (1, 0)}[wait]
    with pytest.raises(WaitedInVain):
        getattr(meeting, wait)(SimpleNamespace(number=0, moment=str), *given)
    assert meeting.failure.endswith("rank 1 waits in recv")


COUNTING = """
steps, noted = 0, []

def count():
    global steps
    steps += 1
    noted.append(steps)

def answer():
    global steps
    steps = 0
    for _ in range(2):
        count()
    return list(noted)
"""


def test_a_rank_lost_to_gloo_is_told_in_a_sentence_and_after_the_error_of_another():
    def first_rank_loses_the_second(rank, error=None):
        if rank.number == 0:
            raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        if error:
            raise error

    with pytest.raises(
        DeviceError, match="^rank 0 waited in vain: not all ranks came to the same collective.$"
    ):
        as_ranks(first_rank_loses_the_second)
    with pytest.raises(ValueError, match="mine"):
        as_ranks(lambda rank: first_rank_loses_the_second(rank, ValueError("mine")))


def test_each_rank_has_global_variables_of_its_own():
    cell: dict = {"__name__": "cell"}
    exec(COUNTING, cell)
    first, second = for_every_rank(cell["answer"], 2)
    assert (first(), second(), first()) == ([1, 2], [1, 2], [1, 2, 1, 2])
    assert cell["steps"] == 0 and not cell["noted"]


def test_an_answer_with_a_class_of_its_cell_is_shared():
    cell: dict = {"__name__": "cell"}
    exec(f"{COUNTING}\nclass Counter:\n    pass\n\ndef other():\n    return Counter()", cell)
    assert for_every_rank(cell["other"], 2) == [cell["other"]] * 2
    assert for_every_rank(cell["Counter"], 2) == [cell["Counter"]] * 2


def forever(rank):
    while True:
        try:
            rank.number += 0
        except Exception:
            continue


@pytest.fixture
def interruptible():
    """A run in the background of a shell ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_ranks_whose_loops_never_end():
    stop = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    before = threading.active_count()
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        as_ranks(forever)
    stop.join()
    assert threading.active_count() == before
    assert as_ranks(lambda rank: by_all_reduce(torch.ones(1)).item(), RANKS) == [1, 1, 1]


def test_an_interrupt_while_ranks_are_started_ends_those_that_are(monkeypatch):
    start, before = threading.Thread.start, threading.active_count()

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        as_ranks(forever)
    assert threading.active_count() == before


def test_moments_are_told_in_words_that_hold_before_a_step_and_after_it():
    assert in_words([1.0, 1.25, 2.0]) == "at step 1, inside the window of step 2, at step 2"
    assert in_words([]) == "empty"
