"""Trainings that are compared are timed in turn, and their times kept apart."""

import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from tqdm.notebook import tqdm_notebook

from trainlean import load_runs, measure_in_turn
from trainlean.costs.measuring import progress_bar
from trainlean.notebooks.saving import VIEW


@pytest.fixture
def order(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINLEAN_WORK", str(tmp_path))
    monkeypatch.delenv("TRAINLEAN_REPEATS", raising=False)
    return []


def pairs(order):
    def train(name):
        order.append(name)
        model = torch.nn.Linear(2, 1)
        model(torch.ones(3, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    return [(lambda: train("a"), {"name": "a"}), (lambda: train("b"), {"name": "b", "why": 1})]


def test_counted_first_then_timed_in_turn(order):
    runs = measure_in_turn(pairs(order), repeats=2)
    assert order == ["a", "b"] * 3  # under the meter, then twice by the clock
    assert [run.name for run in runs] == ["a", "b"] and runs[1].settings == {"why": 1}
    assert all(len(run.seconds) == 2 and min(run.seconds) > 0 for run in runs)
    assert all(run.optimizer_steps == 1 and run.peak_bytes for run in runs)
    assert load_runs() == runs


def test_no_second_is_torch_compile_s(order):
    """It makes code of its own for a training that is watched, and anew when it is alone: that repeat is timed again."""
    model = torch.compile(torch.nn.Linear(2, 1), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        order.append(counters["frames"]["total"])
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile")
        (run,) = measure_in_turn([(train, {"name": "a"})], repeats=2, save=False)
    begun = [after - before for before, after in zip(order, order[1:])]
    assert begun == [1, 1, 0] and len(run.seconds) == 2


@pytest.mark.parametrize("limit, timed", [("1", 1), ("5", 2), ("0", 0)])
def test_no_more_repeats_than_the_environment_allows(order, monkeypatch, limit, timed):
    monkeypatch.setenv("TRAINLEAN_REPEATS", limit)
    runs = measure_in_turn(pairs(order), repeats=2, save=False)
    assert [len(run.seconds) for run in runs] == [max(timed, 1)] * 2  # at 0 those under the meter
    assert order == ["a", "b"] * (1 + timed) and not load_runs()


def test_nothing_to_measure_is_a_sentence():
    with pytest.raises(ValueError, match="at least one"):
        measure_in_turn([])


def test_a_notebooks_bar_has_no_text_that_would_be_left_of_it(monkeypatch):
    shown = []
    monkeypatch.setattr("tqdm.auto.tqdm", tqdm_notebook)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    with progress_bar(2, "tiny", shown=True) as bar:
        bar.update()
    assert [one["text/plain"] for one in shown] == [""] and VIEW in shown[0]
