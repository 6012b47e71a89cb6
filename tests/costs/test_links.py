"""The link model against values worked out by hand, and at its limits; and what it makes of counted runs."""

import re

import pytest

from trainlean.costs.links import (
    ASSUMPTIONS,
    BUCKET,
    FIRST_BUCKET,
    LINKS,
    Link,
    all_reduce_seconds,
    buckets_of,
    communication_seconds,
    communication_table,
    ddp_step_seconds,
    local_sgd_step_seconds,
    step_time,
    total,
    traffic,
)
from trainlean.costs.runs import Run

LINK = Link(latency=0.01, bandwidth=1e6)  # 10 ms, 1 MB/s


def counted(**kinds):
    """Collectives as a run has them, from kind=(calls, payload), among two ranks."""
    kinds = {kind.replace("_", "-"): count for kind, count in kinds.items()}
    made = {}
    for kind, (calls, payload) in kinds.items():
        messages, sent = traffic(kind, payload, 2)
        made[kind] = {
            "calls": calls,
            "payload": payload,
            "messages": calls * messages,
            "sent": sent,
        }
    return made


def a_run(steps=4, seconds=(0.8,), collectives=None, **settings):
    settings = {"micro_batch": 4, "accumulation_steps": 1, "devices": 2} | settings
    return Run(
        "run",
        settings,
        seconds=seconds,
        samples=16,
        optimizer_steps=steps,
        collectives=collectives or {},
    )


def approx(value):
    return pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "ranks", "messages", "sent"),
    [
        ("all-reduce", 1, 0, 0),
        ("all-reduce", 2, 2, 1200),
        ("all-reduce", 4, 6, 1800),
        ("all-reduce", 1000, 1998, 2397.6),
        ("reduce-scatter", 4, 3, 900),
        ("all-gather", 4, 3, 3600),
        ("all-to-all", 4, 3, 900),
        ("broadcast", 4, 2, 2400),
        ("broadcast", 5, 3, 3600),
        ("barrier", 2, 1, 0),
        ("barrier", 9, 4, 0),
        ("send", 2, 1, 1200),
        ("send", 1, 0, 0),
    ],
)
def test_messages_and_bytes_of_a_call(kind, ranks, messages, sent):
    assert traffic(kind, 1200, ranks) == (messages, pytest.approx(sent))


def test_an_all_reduce_by_hand():
    # 4 ranks: 6 messages of 10 ms, and 1.5 MB at 1 MB/s
    assert all_reduce_seconds(1e6, 4, LINK) == approx(0.06 + 1.5)
    assert all_reduce_seconds(1e6, 1, LINK) == 0.0
    assert all_reduce_seconds(0, 1000, LINK) == approx(19.98)
    asking = Link(0.01, 1e6, gloo=True)  # gloo: two more latencies, whatever the number of ranks
    assert all_reduce_seconds(1e6, 4, asking) == approx(0.08 + 1.5)
    assert all_reduce_seconds(1e6, 1, asking) == 0.0
    assert communication_seconds(
        counted(all_reduce=(6, 3_000_000), barrier=(5, 0)), asking, 2
    ) == approx(6 * 0.04 + 3.0 + 5 * 0.02)
    assert communication_seconds(counted(barrier=(5, 0)), asking, 4) == approx(
        5 * 4 * 0.01
    )  # two messages, and permission for each
    # many ranks never send more than twice the payload, but wait for every neighbour
    many = all_reduce_seconds(1e6, 4096, Link(0.0, 1e6))
    assert 1.999 < many < 2.0


def test_ddp_by_hand():
    # one bucket: nothing to overlap with
    assert ddp_step_seconds(0.9, 1e6, 2, LINK, buckets=[1e6]) == approx(0.9 + 0.02 + 1.0)
    # Two halves of 0.5 s + 0.02 s each; the backward pass is 0.6 s of 0.9 s, so the halves are ready at 0.6 s and 0.9 s:
    # the first is through at 1.12 s, the second at 1.64 s.
    assert ddp_step_seconds(0.9, 1e6, 2, LINK, buckets=[5e5, 5e5]) == approx(1.64)
    assert ddp_step_seconds(0.9, 1e6, 2, LINK, buckets=[5e5, 5e5], overlap=False) == approx(
        0.9 + 1.04
    )
    # over a fast link only the last bucket is waited for
    fast = Link(0.0, 1e7)
    assert ddp_step_seconds(0.9, 1e6, 2, fast, buckets=[5e5, 5e5]) == approx(0.9 + 0.05)
    # gloo sends two at once, and their latencies pass together: from 0.6 s on 0.04 s + 1 s
    asking = Link(0.01, 1e6, gloo=True)
    assert ddp_step_seconds(0.9, 1e6, 2, asking, buckets=[5e5, 5e5]) == approx(1.64)
    # the second is ready at 0.9 s only, and takes 0.04 s + 0.1 s, after the first is through
    assert ddp_step_seconds(0.9, 1e6, 2, asking, buckets=[1e5, 1e5]) == approx(0.9 + 0.14)
    # three of them, all ready at 0.9 s: two take 0.04 s + 0.2 s, then one 0.04 s + 0.1 s
    assert ddp_step_seconds(0.9, 1e6, 2, asking, buckets=[1e5] * 3, overlap=False) == approx(
        0.9 + 0.24 + 0.14
    )
    # with accumulation only the last of 3 micro-batches has a backward pass to hide behind: 0.2 s
    assert ddp_step_seconds(0.9, 1e6, 2, LINK, buckets=[5e5, 5e5], accumulation_steps=3) == approx(
        0.8 + 1.04
    )
    assert ddp_step_seconds(0.9, 0, 2, LINK) == approx(0.9)  # a bucket without bytes is hidden, too


def test_torchs_buckets():
    assert buckets_of(1000) == [1000]
    assert buckets_of(FIRST_BUCKET + BUCKET + 5) == [FIRST_BUCKET, BUCKET, 5]
    assert sum(buckets_of(123456789)) == 123456789


def test_local_sgd_by_hand():
    assert local_sgd_step_seconds(0.9, 1e6, 2, LINK, 1) == approx(0.9 + 1.02)
    assert local_sgd_step_seconds(0.9, 1e6, 2, LINK, 8) == approx(0.9 + 1.02 / 8)
    # 50 parameters one by one: the bytes of one buffer, and 50 times its messages
    assert local_sgd_step_seconds(0.9, 1e6, 2, LINK, 8, tensors=50) == approx(
        0.9 + (50 * 0.02 + 1.0) / 8
    )
    with pytest.raises(ValueError, match="from 1 on, not 0 and 1"):
        local_sgd_step_seconds(1.0, 1.0, 2, LINK, 0)
    with pytest.raises(ValueError, match="from 1 on, not 1 and 0"):
        local_sgd_step_seconds(1.0, 1.0, 2, LINK, 1, tensors=0)


@pytest.mark.parametrize("ranks", [1, 2, 7, 64, 4096])
@pytest.mark.parametrize("link", LINKS, ids=str)
def test_limits(ranks, link):
    payload, compute = 8e6, 0.05
    by_steps = [
        local_sgd_step_seconds(compute, payload, ranks, link, steps)
        for steps in (1, 2, 8, 1024, 10**9)
    ]
    assert by_steps == sorted(by_steps, reverse=True)
    assert by_steps[-1] == pytest.approx(compute, rel=1e-3)
    ddp = ddp_step_seconds(compute, payload, ranks, link)
    alone = ddp_step_seconds(compute, payload, ranks, link, overlap=False)
    assert compute <= ddp <= alone
    assert ddp >= all_reduce_seconds(payload, ranks, link) - 1e-12
    if ranks == 1:
        assert ddp == by_steps[0] == compute


def test_seconds_of_counted_collectives():
    count = counted(all_reduce=(6, 3_000_000), barrier=(5, 0))
    assert communication_seconds(count, LINK, 2) == approx(6 * 0.02 + 3.0 + 5 * 0.01)
    assert communication_seconds(count, LINK, 4) == approx(6 * 0.06 + 4.5 + 5 * 0.02)
    assert communication_seconds(count, LINK, 1) == 0 and communication_seconds({}, LINK, 8) == 0


def test_step_time_of_a_run():
    local = a_run(collectives=counted(all_reduce=(2, 2_000_000)), local_steps=2)
    time = step_time(local, LINK)
    assert time.compute == approx(0.2) and time.communication == approx((2 * 0.02 + 2.0) / 4)
    assert time.seconds == time.compute + time.communication
    assert step_time(local, LINK, world_size=4, compute=1.0).seconds == approx(
        1.0 + (2 * 0.06 + 3.0) / 4
    )
    # DDP: two buckets of 0.25 MB a step, the first hidden behind the second half of the backward pass where it can be
    ddp = a_run(collectives=counted(all_reduce=(8, 2_000_000)))
    assert step_time(ddp, Link(0.0, 1e8), compute=0.9).communication == approx(0.0025)
    assert step_time(ddp, LINK, compute=0.9).seconds == approx(
        0.9 + 0.27
    )  # the first is through at 0.87 s
    # with accumulation the backward pass to hide behind is that of one of three micro-batches: sent from 0.8 s on
    accumulated = a_run(collectives=ddp.collectives, accumulation_steps=3)
    assert step_time(accumulated, LINK, compute=0.9).seconds == approx(0.8 + 2 * 0.27)
    # 7 calls in 4 steps are about two a step, of 1 MB each: the first is sent from 0.6 s on
    uneven = a_run(collectives=counted(all_reduce=(7, 7_000_000)))
    assert step_time(uneven, LINK, compute=0.9).seconds == approx(0.9 + 7 / 4 * 1.02 - 0.3)
    four = a_run(
        collectives=local.collectives, local_steps=2, devices=4
    )  # its own devices, where nobody says how many
    assert step_time(four, LINK, compute=1.0) == step_time(local, LINK, world_size=4, compute=1.0)
    assert step_time(a_run(), LINK).communication == 0
    for nothing in (a_run(seconds=()), a_run(steps=0)):
        with pytest.raises(ValueError, match="was not timed"):
            step_time(nothing, LINK)


def test_ddp_sends_what_local_sgd_with_one_step_sends_but_hides_some_of_it():
    same = counted(all_reduce=(8, 4_000_000))
    ddp, local = (
        step_time(a_run(collectives=same, local_steps=steps), LINK) for steps in (None, 1)
    )
    assert ddp.communication < local.communication


def test_a_table_of_counts():
    runs = [
        a_run(collectives=counted(all_reduce=(4, 4000), barrier=(2, 0))),
        a_run(steps=3, collectives=counted(all_reduce=(1, 1000))),
        a_run(),
    ]
    table = communication_table(runs)
    assert list(table.columns) == [
        "run", "collective", "optimizer steps", "calls", "messages", "payload bytes", "bytes sent", "bytes per step"
    ]  # fmt: skip
    assert table.values.tolist() == [
        ["run", "all-reduce", 4, 4, 8, 4000, 4000, 1000],
        ["run", "barrier", 4, 2, 2, 0, 0, 0],
        ["run", "all-reduce", 3, 1, 2, 1000, 1000, 333],
    ]
    whole = communication_table({"a": runs[0], "b": runs[2]}, by_kind=False)
    assert whole.values.tolist() == [["a", 4, 6, 10, 4000, 4000, 1000], ["b", 4, 0, 0, 0, 0, 0]]
    assert total({}) == {"calls": 0, "payload": 0, "messages": 0, "sent": 0}
    assert len(communication_table([])) == 0
    assert communication_table([a_run(steps=0, collectives=counted(all_reduce=(1, 8)))])[
        "bytes per step"
    ].tolist() == ["–"]


def test_links_are_named_and_nonsense_is_refused():
    assert [link.latency for link in LINKS] == sorted(link.latency for link in LINKS)
    assert str(LINKS[0]) == "within a server (NVLink)" and str(LINK) == "10 ms, 1 MB/s"
    assert str(Link(2e-5, 3e9)) == "20 µs, 3 GB/s" and str(Link(0, 1e4)) == "0 µs, 10 kB/s"
    for latency, bandwidth in ((-1, 1), (float("nan"), 1), (0, 0), (0, -5)):
        with pytest.raises(ValueError, match="a bandwidth above 0"):
            Link(latency, bandwidth)
    with pytest.raises(ValueError, match="1 rank or more, not 0"):
        traffic("all-reduce", 1, 0)


def test_the_assumptions_can_be_shown():
    lines = ASSUMPTIONS.splitlines()
    assert len(lines) == 7 and all(re.fullmatch(r"- [A-Zg].*\.", line) for line in lines)
