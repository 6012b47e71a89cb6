"""Predictions are made once: kept on disk, and made again where they may be others."""

import pytest

from trainlean.costs import kept as kept_file
from trainlean.costs import predict
from trainlean.costs.predict import predict_run
from trainlean.models import small_bert_config
from trainlean.workspace import work_folder


@pytest.fixture(autouse=True)
def own_folder(monkeypatch):
    """Other tests share one folder."""
    monkeypatch.delenv("TRAINLEAN_PREDICTIONS")


CONFIG = small_bert_config(num_hidden_layers=1)
SETTINGS = {"micro_batch": 2, "sequence_length": 8}


def made(monkeypatch) -> list:
    """The setups that are traced from here on."""
    traced, seen = predict._traced, []

    def watched(subject, setup, *more):
        seen.append(setup)
        return traced(subject, setup, *more)

    monkeypatch.setattr(predict, "_traced", watched)
    return seen


def test_the_same_question_is_traced_once(monkeypatch):
    seen = made(monkeypatch)
    first, again = (predict_run(CONFIG, **SETTINGS) for _ in range(2))
    assert len(seen) == 1
    assert (again.peak, again.flops, again.settings) == (first.peak, first.flops, first.settings)
    named = predict_run(CONFIG, name="mine", **SETTINGS)
    assert (named.name, named.peak, len(seen)) == ("mine", first.peak, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"micro_batch": 4},
        {"device": "gpu"},
        {"layers": None},
        {"attention": "sdpa"},
        {"precision": "bf16"},
    ],
)
def test_another_question_is_another_prediction(monkeypatch, other):
    predict_run(CONFIG, **SETTINGS)
    seen = made(monkeypatch)
    predict_run(CONFIG, **SETTINGS | other)
    assert len(seen) == 1


def test_other_sources_and_a_broken_file_are_predicted_anew(monkeypatch):
    seen = made(monkeypatch)
    first = predict_run(CONFIG, **SETTINGS)
    (file,) = (work_folder() / "predictions").iterdir()
    file.write_text("{", encoding="utf-8")
    assert predict_run(CONFIG, **SETTINGS).peak == first.peak and len(seen) == 2
    monkeypatch.setattr(kept_file, "_made_with", lambda: "other sources")
    assert predict_run(CONFIG, **SETTINGS).peak == first.peak and len(seen) == 3


def test_a_folder_that_cannot_be_written_keeps_nothing(monkeypatch):
    (work_folder() / "predictions").write_text("a file", encoding="utf-8")
    seen = made(monkeypatch)
    for _ in range(2):
        predict_run(CONFIG, **SETTINGS)
    assert len(seen) == 2
