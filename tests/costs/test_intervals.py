"""The interval of a prediction for a card: its errors can be had again, and nine of ten lie in it."""

import json
import random

import prediction_zoo
import pytest

from trainlean.costs.intervals import card_errors, card_interval, covered, interval
from trainlean.costs.predict import predict_run
from trainlean.costs.subject import subject_of
from trainlean.workspace import COURSE


def test_nine_of_ten_errors_of_cards_lie_in_the_interval_of_the_others():
    errors = [error for some in card_errors().values() for error in some.values()]
    assert len(errors) >= 15 and set(card_errors()) == {"V100", "A100", "H100"}
    assert 0.85 <= covered(errors) / len(errors) <= 0.95
    low, high = card_interval(10**9)
    assert low < 10**9 * (1 + sum(errors) / len(errors)) < high


@pytest.mark.parametrize("count", [4, 8, 20])
def test_nine_of_ten_of_a_known_distribution(count):
    """Of what is drawn from a normal distribution, whatever its mean and spread."""
    draw = random.Random(0).gauss
    held = 0
    for _ in range(4000):
        errors = [draw(3, 2) for _ in range(count)]
        low, high = interval(errors)
        held += low <= draw(3, 2) <= high
    assert held / 4000 == pytest.approx(0.9, abs=0.02)
    with pytest.raises(ValueError, match="at least three"):
        interval([0.0, 1.0])


def test_an_error_of_the_file_is_found_again():
    pytest.importorskip("peft")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    page = json.loads((COURSE / "data" / "published_lora.json").read_text(encoding="utf-8"))
    row = next(row for row in page["rows"] if row["model"] == "StableLM Alpha 3B")
    values = page["models"][row["model"]]
    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    run = predict_run(
        subject_of(config, "causal-lm"), micro_batch=row["micro_batch"], accumulation_steps=2,
        sequence_length=row["tokens"], attention="sdpa", lora=8, device="gpu",
    )  # fmt: skip
    assert run.peak["gradients"] == pytest.approx(4 * row["trained"], rel=0.01)
    kept = next(error for name, error in card_errors()["A100"].items() if "StableLM" in name)
    assert row["gb"] * 1e9 / run.device_bytes["allocator_peak"] - 1 == pytest.approx(kept, abs=1e-4)


def test_an_error_of_the_h100_is_found_again():
    [case] = [case for case in prediction_zoo.LARGE if case.name == "vit-large"]
    page = json.loads((COURSE / "data" / "measured_h100.json").read_text(encoding="utf-8"))
    [training] = [one for one in page["trainings"] if one.get("case") == case.name]
    setup = subject_of(case.config, case.task).ready(case.setup)
    run = predict_run(case.config, setup, task=case.task, device="gpu")
    kept = card_errors()["H100"][case.name]
    held = run.device_bytes["allocator_reserved"]
    assert training["reserved"] / held - 1 == pytest.approx(kept, abs=1e-4)
    # What was handed out to tensors is nearer than what was held.
    assert training["allocated"] == pytest.approx(run.device_bytes["allocator_peak"], rel=0.01)
