"""What a rank does over time: recorded from real runs on two devices, and worked out from records made by hand."""

import io
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from trainlean.devices.engines import run_on_devices
from trainlean.pictures.ranks import plot_drift, plot_ranks
from trainlean.recordings.ranks import RankRecord, RankRecorder, phases, record_rank

LATE = 0.3  # seconds by which rank 1 comes too late, so many that a busy machine does not matter


def record_local_sgd(late):
    """Four steps of a net with one weight, averaged after step 2 and 4; rank 1 comes late to the first average."""
    rank = dist.get_rank()
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

    def train():
        for step in range(1, 5):
            net(torch.full((1, 1), float(rank + step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                time.sleep(late * rank)
            if step % 2 == 0:
                with torch.no_grad():
                    dist.all_reduce(net.weight)
                    net.weight /= 2

    net(torch.ones(1, 1)).sum().backward()  # what a process does once, it does before
    optimizer.zero_grad()
    dist.barrier()
    return record_rank(train, watch=lambda: net.weight.item())


def record_ddp():
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with RankRecorder() as recorder:
        for _ in range(3):
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        dist.barrier()
    return recorder.record


def spent(line, what):
    return sum(end - start for name, start, end in line if name == what)


def test_a_late_rank_is_waited_for_and_not_called_averaging():
    records = run_on_devices(record_local_sgd, LATE, fresh=True)
    assert [record.rank for record in records] == [0, 1]
    for record in records:
        assert [
            (one["kind"], one["bytes"], one["step"], one["backward"]) for one in record.collectives
        ] == [
            ("all-reduce", 4, 2, False),
            ("all-reduce", 4, 4, False),
        ]
        assert record.averages == [2, 4] and len(record.steps) == 4
    first, second = phases(records)
    assert spent(first, "waiting") > 0.8 * LATE > 0.5 * LATE > spent(first, "averaging")
    assert spent(second, "computing") > LATE  # sleeping is the rank's own time
    for line in (first, second):
        assert (
            all(a[2] == b[1] for a, b in zip(line, line[1:])) and line[0][1] < 1 and line[0][1] >= 0
        )
    # weight: minus the inputs 1, 2 | 2, 3, the mean, minus 3, 4 | 4, 5, the mean
    assert records[0].values == [(0, 0), (1, -1), (2, -3), (2, -4), (3, -7), (4, -11), (4, -12)]
    assert records[1].values == [(0, 0), (1, -2), (2, -5), (2, -4), (3, -8), (4, -13), (4, -12)]


def test_ddps_all_reduces_are_within_the_backward_pass():
    records = run_on_devices(record_ddp, fresh=True)
    for record in records:
        assert [
            (one["kind"], one["backward"])
            for one in record.collectives
            if one["kind"] != "broadcast"
        ] == [("all-reduce", True)] * 3 + [("barrier", False)]
        assert record.averages == [] and record.values == []


def hand_made():
    """Two ranks and one all-reduce: rank 0 is there at 2 s, rank 1 at 5 s, and it takes until 6 s."""
    records = []
    for rank, issued in enumerate((2.0, 5.0)):
        one = {
            "kind": "all-reduce",
            "bytes": 8,
            "step": 1,
            "backward": False,
            "issued": 10 + issued,
            "done": 16.0,
        }
        record = RankRecord(rank, 10.0, 18.0, [one], [(10 + issued, 16.0)], [10 + issued - 0.1])
        record.values = [(0, 1.0), (1, 2.0 + rank), (1, 2.5)]
        records.append(record)
    return records


def test_phases_by_hand():
    first, second = phases(hand_made())
    assert first == [
        ("computing", 0, 2),
        ("waiting", 2, 5),
        ("averaging", 5, 6),
        ("computing", 6, 8),
    ]
    assert second == [("computing", 0, 5), ("averaging", 5, 6), ("computing", 6, 8)]
    barrier = hand_made()
    for record in barrier:
        record.collectives[0]["kind"] = "barrier"
    assert phases(barrier)[0][1:3] == [("waiting", 2, 6), ("computing", 6, 8)]
    assert phases([]) == []


PICTURES = {
    "ranks": (
        lambda: plot_ranks(hand_made()),
        "ranks over time: 2 bars, 1 optimizer steps, 1 averages of parameters",
    ),
    "two runs": (
        lambda: plot_ranks({"DDP": [RankRecord(0, 0, 1)], "H = 1": hand_made()}),
        "ranks over time: 3 bars, 1 optimizer steps, 0 and 1 averages of parameters",
    ),
    "drift": (
        lambda: plot_drift(hand_made()),
        "drift of one weight: 2 ranks, 1 optimizer steps, 1 averages",
    ),
    "drift of pairs": (
        lambda: plot_drift(
            [[(0, 0.0), (1, 1.0), (2, 3.0), (2, 2.0)], [(0, 0.0), (1, 0.5), (2, 1.0), (2, 2.0)]],
            what="w",
        ),
        "drift of w: 2 ranks, 2 optimizer steps, 1 averages",
    ),
    "drift of two runs": (
        lambda: plot_drift({"never": [[(0, 0.0), (1, 9.0)]] * 2, "H = 1": hand_made()}),
        "drift of one weight, never: 2 ranks, 1 optimizer steps, 0 averages; "
        "drift of one weight, H = 1: 2 ranks, 1 optimizer steps, 1 averages",
    ),
}


def test_runs_that_are_compared_stand_on_one_scale():
    picture = plot_drift({"never": [[(0, 0.0), (1, 9.0)], [(0, 0.0), (1, -9.0)]], "H": hand_made()})
    first, second, *below = (axes.get_ylim() for axes in picture.axes)
    assert first == second and first[0] <= -9 and first[1] >= 9
    assert below[0] == below[1] and below[0][1] >= 18
    equal = plot_drift([[(0, 0.0), (1, 9.0)]] * 2)  # no distance is no reason for a scale of 1e-13
    assert equal.axes[1].get_ylim() == (0, 1)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_have_ink_and_a_fixed_text_without_seconds(name):
    draw, text = PICTURES[name]
    picture = draw()
    image = np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB")).astype(int)
    assert repr(picture) == text
    assert (image.min(axis=-1) < 200).mean() > 0.01 and (image == 255).all(axis=-1).mean() > 0.3
    assert (image[:3] == 255).all() and (
        image[:, -3:] == 255
    ).all()  # nothing is cut off at the edges
    assert len(picture.png()) < 60_000


def test_drift_without_values_is_a_sentence_and_no_ranks_no_error():
    with pytest.raises(ValueError, match="record with RankRecorder"):
        plot_drift([RankRecord(0), RankRecord(1)])
    assert plot_ranks([]).png()
