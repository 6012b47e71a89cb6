"""The one setup: its label and batch, what it refuses, and what records make of it."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from trainlean.setup import SETTINGS, TrainingSetup, changed, recorded


def test_label_and_effective_batch():
    setup = TrainingSetup(4, 2)
    assert (setup.label, setup.effective_batch) == ("4×2", 8)
    assert replace(setup, devices=2).label == "4×2 DDP"
    assert replace(setup, devices=2, local_steps=8).label == "4×2 H=8"
    assert replace(setup, devices=3).effective_batch == 24
    kinds = [0, False, True, "every layer", 2, "every 12 layers", "selective", "off"]
    labels = ["", "", " ckpt", " ckpt", " ckpt/2", " ckpt/12", " ckpt sel.", ""]
    assert [replace(setup, checkpointing=kind).label for kind in kinds] == [
        "4×2" + label for label in labels
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(micro_batch=0), "micro_batch is a whole number from 1 on, not 0."),
        (dict(micro_batch=True), "micro_batch is a whole number from 1 on, not True."),
        (dict(micro_batch=4, accumulation_steps=1.5), "accumulation_steps is a whole number"),
        (dict(micro_batch=4, local_steps=0), "local_steps is a whole number from 1 on, not 0."),
        (dict(micro_batch=4, devices=None), "devices is a whole number from 1 on, not None."),
        (dict(micro_batch=4, checkpointing=-1), "checkpointing is True, False, a whole number"),
        (dict(micro_batch=4, checkpointing=1.5), "checkpointing is True, False, a whole number"),
        (dict(micro_batch=4, checkpointing="every day"), "not 'every day'."),
        (dict(micro_batch=4, optimizer=["sgd"]), "optimizer is one of sgd, momentum, adamw"),
        (dict(micro_batch=4, precision="fp8"), "precision is one of fp32, fp16, bf16, not 'fp8'."),
        (dict(micro_batch=4, attention=""), "attention is one of eager, sdpa, not ''."),
        (dict(micro_batch=4, compiled="yes"), "compiled is True or False, not 'yes'."),
        (dict(micro_batch=4, model=None), "model is a name, not None."),
    ],
)
def test_a_value_that_cannot_be_gets_a_sentence(settings, sentence):
    with pytest.raises(ValueError) as error:
        TrainingSetup(**settings)
    assert sentence in str(error.value)


def test_a_setup_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        TrainingSetup(4).micro_batch = 8


@pytest.mark.parametrize(
    "setup",
    [
        TrainingSetup(4),
        TrainingSetup(1, 16, devices=8, local_steps=4, model="small BERT"),
        TrainingSetup(2, checkpointing=3, precision="bf16", compiled=True, sequence_length=64),
        TrainingSetup(2, checkpointing="selective", attention="sdpa", optimizer="adafactor"),
    ],
)
def test_a_record_tells_the_same_setup(setup):
    assert TrainingSetup.read(json.loads(json.dumps(setup.settings()))) == setup


def test_records_say_nothing_of_what_was_not_said():
    written = TrainingSetup(4).settings()
    assert not {"model", "sequence_length", "devices", "local_steps"} & written.keys()
    assert written["checkpointing"] == "off"


def test_records_may_say_more_or_something_else():
    settings = {"micro_batch": 4, "loop": "Trainer", "optimizer": "lion", "devices": None}
    assert TrainingSetup.read(settings) == TrainingSetup(4)
    assert TrainingSetup.read({"accumulation_steps": 2}) is None
    assert recorded("checkpointing", True) == "every layer"
    assert recorded("checkpointing", "the first half") == "the first half"


def test_a_setup_may_be_given_whole_or_by_its_settings():
    assert changed(None, {"micro_batch": 4}) == TrainingSetup(4)
    assert changed(TrainingSetup(4), {"checkpointing": True}) == TrainingSetup(4, checkpointing=1)
    with pytest.raises(ValueError, match="no setting 'micro_batches'; its settings are micro_b"):
        changed(None, {"micro_batches": 4})
    assert set(SETTINGS) == set(TrainingSetup.__dataclass_fields__)
