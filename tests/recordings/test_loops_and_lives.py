"""Recordings: a loop line by line, and when a network's activations lived."""

import gc
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trainlean.recordings.lives import record_lives
from trainlean.recordings.loops import MOST_FRAMES, Trace, record


def loop(batches, k):
    weight = 2.0
    gradient = 0.0
    for i, x in enumerate(batches):
        gradient += x / k
        if (i + 1) % k == 0:
            weight -= gradient
            gradient = 0.0
    return weight


WATCH = {
    "weight": lambda v: v["weight"],
    "gradient": lambda v: v["gradient"],
    "micro-batch": lambda v: v["i"],
}


class LetsOthersRun:
    """Its end, which the collector may bring about anywhere, lets another thread run."""

    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0)


def test_threads_may_record_at_once():
    """As the ranks of a check do. Python's parser does not like it."""

    def recorded(_):
        LetsOthersRun()
        return record(loop, [1.0, 3.0], 2, watch={}).result

    often = gc.get_threshold()
    before = sys.getswitchinterval()
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert {*pool.map(recorded, range(800))} == {0.0}
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*often)


def test_every_executed_line_in_order_with_the_values_after_it():
    trace = record(loop, [1.0, 3.0], 2, watch=WATCH)
    assert [frame.line for frame in trace.frames] == [2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 4, 9]
    assert [frame.values["weight"] for frame in trace.frames] == [2.0] * 8 + [0.0] * 4
    gradients = [frame.values["gradient"] for frame in trace.frames]
    assert gradients == [None, 0.0, 0.0, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0]
    assert [frame.values["micro-batch"] for frame in trace.frames] == [
        None,
        None,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
    assert trace.result == 0.0
    assert trace.source.splitlines()[7 - 1].strip() == "weight -= gradient"


def test_tensors_are_read_as_numbers_and_callees_are_not_recorded():
    def inner(x):
        y = x * 2
        return y  # noqa: RET504 - two lines, of which none may be recorded

    def train():
        weight = torch.tensor(1.5, requires_grad=True)
        inner(weight).backward()
        return weight

    trace = record(train, watch={"gradient": lambda v: v["weight"].grad})
    assert [frame.line for frame in trace.frames] == [2, 3, 4]
    assert [frame.values["gradient"] for frame in trace.frames] == [None, 2.0, 2.0]
    assert trace.source.startswith(
        "def train():"
    )  # a nested function is shown without its indentation


def test_a_recursive_call_is_not_mixed_into_the_outer_one():
    def down(n):
        if n:
            down(n - 1)
        return n

    assert [frame.line for frame in record(down, 2, watch={"n": lambda v: v["n"]}).frames] == [
        2,
        3,
        4,
    ]


def test_a_comprehension_is_one_line_that_is_executed_once():
    """From Python 3.12 on each of its rounds is an event of the function around it."""

    def squares(n):
        one = [i * i for i in range(n)]
        two = {
            i: [j for j in one]  # noqa: C416
            for i in one
            if i
        }
        for i in one:
            two[i] = {j for j in one if j}
        return (
            sum([i for i in two]),  # noqa: C416
            one,
        )

    lines = [frame.line for frame in record(squares, 3, watch={}).frames]
    assert lines == [2, 3, 8, 9, 8, 9, 8, 9, 8, 11, 12, 10]


def test_a_function_from_a_notebook_cell():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        shell.run_cell(
            "text = 'a cell of a notebook'\ndef in_cell(n):\n    total = 0\n    total += n\n    return total\n"
        )
        trace = record(shell.user_ns["in_cell"], 3, watch={"total": lambda v: v["total"]})
    finally:
        shell.clear_instance()
    assert [(frame.line, frame.values["total"]) for frame in trace.frames] == [
        (2, 0),
        (3, 3),
        (4, 3),
    ]
    assert trace.source.splitlines()[2].strip() == "total += n"


def test_the_tracer_is_gone_after_success_and_after_an_exception():
    def fails():
        x = 1
        raise RuntimeError(f"in the loop, x={x}")

    def before(frame, event, _):
        return None

    outside = sys.gettrace()
    sys.settrace(before)
    try:
        with pytest.raises(RuntimeError, match="in the loop"):
            record(fails, watch={"x": lambda v: v["x"]})
        assert sys.gettrace() is before
        record(loop, [1.0], 1, watch=WATCH)
        assert sys.gettrace() is before
    finally:
        sys.settrace(outside)


def test_a_watch_that_fails_otherwise_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        record(loop, [1.0], 1, watch={"bad": lambda v: 1 / 0})
    assert sys.gettrace() is None or "record" not in repr(sys.gettrace())


def test_clear_sentences():
    with pytest.raises(ValueError, match="'weight' never gave a number.*KeyError: 'wieght'"):
        record(loop, [1.0], 1, watch={"weight": lambda v: v["wieght"]})
    with pytest.raises(ValueError, match="no Python source of <built-in function len>"):
        record(len, [], watch={})
    with pytest.raises(ValueError, match="record a run of a few updates"):
        record(loop, [1.0] * MOST_FRAMES, 1, watch={})


def test_json_and_back():
    trace = record(loop, [1.0, 3.0], 2, watch=WATCH)
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace

    def gives_tensors():
        return {"w": torch.ones(2), "optimizer": sys}

    result = json.loads(json.dumps(record(gives_tensors, watch={}).to_dict()))["result"]
    assert result["w"] == [1.0, 1.0] and "module 'sys'" in result["optimizer"]


def test_lives_of_a_plain_chain_end_in_reverse_order():
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(3)]
    lives = record_lives(layers, lambda: torch.nn.Sequential(*layers)(torch.ones(2, 4)).sum())
    assert [(event.what, event.layer) for event in lives.events] == [
        *(("computed", layer) for layer in range(3)), ("turn", None), *(("gone", layer) for layer in (2, 1, 0)),
    ]  # fmt: skip
    assert lives.live_bytes == [32, 64, 96, 96, 64, 32, 0]
    assert lives.spans == [(0, 6, 0, False), (1, 5, 1, False), (2, 4, 2, False)]
    assert lives.say(4) == "output 3 is used and freed"


def test_lives_tell_discarded_from_freed_and_recomputed_from_computed():
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2)]
    chain = torch.nn.Sequential(*layers)
    lives = record_lives(
        layers, lambda: checkpoint(chain, torch.ones(2, 4), use_reentrant=False).sum()
    )
    assert [lives.say(number) for number in range(5)] == [
        "output 1 is computed", "output 2 is computed", "output 1 is discarded", "output 2 is discarded", "the forward pass is done, the backward pass begins",
    ]  # fmt: skip
    assert "output 1 is recomputed" in [lives.say(number) for number in range(5, len(lives.events))]
    assert not any(layer._forward_hooks for layer in layers)


class Product(torch.nn.Linear):
    """Tanh, then a product: nobody needs its output in the backward pass."""

    def forward(self, x):
        return super().forward(torch.tanh(x))


def ends_in_tanh():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())


@pytest.mark.parametrize(
    ("kind", "recomputed"), [(ends_in_tanh, [0, 1]), (lambda: Product(4, 4), [0])]
)
def test_lives_of_a_recomputation_that_stops_early(kind, recomputed):
    layers = [kind() for _ in range(3)]
    lives = record_lives(
        layers,
        lambda: layers[2](
            checkpoint(torch.nn.Sequential(*layers[:2]), torch.ones(2, 4), use_reentrant=False)
        ).sum(),
    )
    assert [
        event.layer for event in lives.events if event.what == "computed" and event.run
    ] == recomputed  # tanh keeps its result, so it runs; the product does not
    assert lives.live_bytes[-1] == 0


def test_lives_need_a_loss():
    layer = torch.nn.Linear(2, 3)
    with pytest.raises(
        ValueError, match="a tensor of one number, .* not a tensor of shape \\(4, 3\\)"
    ):
        record_lives([layer], lambda: layer(torch.ones(4, 2)))
    with pytest.raises(ValueError, match="not None"):
        record_lives([layer], lambda: print(end=str(layer(torch.ones(4, 2)))[:0]))


def test_lives_need_a_layer_that_runs():
    with pytest.raises(ValueError, match="saw none of the layers"):
        record_lives([torch.nn.Linear(2, 2)], lambda: torch.ones(1, requires_grad=True).sum())
