"""The published table's rows: predicted, measured in fresh processes, and refused with a reason."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from made_runs import run_code

from trainlean import cli
from trainlean.costs.runs import (
    DEVICE_BYTES,
    MiB,
    Run,
    load_runs,
    published_runs,
    record_runs,
    recorded_runs,
)
from trainlean.model_list import MODELS, Model
from trainlean.table import command as measure_command
from trainlean.table import measured, shown, training
from trainlean.table.measured import Outcome, measure_rows
from trainlean.table.rows import (
    CONTEXT,
    CURVE,
    ROWS,
    at_largest,
    find_rows,
    predict_row,
    published,
)
from trainlean.table.training import measure_row


def a_run(key="vanilla", seconds=(2.0, 1.0, 3.0), size=100 * MiB, **more):
    return Run(
        name=key,
        peak={"weights": size},
        seconds=seconds,
        samples=32,
        settings={"model": "small BERT", "micro_batch": 4},
        **more,
    )


def test_every_published_run_has_its_row():
    named = {run.name: run.settings for run in published_runs()}
    rows = {row.published: row for row in ROWS if row.published}
    assert rows.keys() == named.keys()
    for key, row in rows.items():
        ours = {
            name: row.setup.settings()[name]
            for name in (
                "micro_batch",
                "accumulation_steps",
                "precision",
                "optimizer",
                "checkpointing",
            )
        }
        assert ours.items() <= named[key].items()


# The error of every prediction against the V100 without its context, as it was when this was written, and a little room.
@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("vanilla", -0.013),
        ("accumulation", -0.019),
        ("checkpointing", -0.012),
        ("fp16", -0.037),
        ("all", -0.023),
        ("adafactor", 0.005),
        ("all-adafactor", -0.044),
        ("adam8bit", -0.007),
        ("all-adam8bit", -0.006),
    ],
)
def test_a_prediction_comes_near_what_was_published(key, error):
    [row] = find_rows([key])
    run, told = predict_row(row), published(row)
    assert run.device_bytes["allocator_reserved"] / (
        told.peak_bytes - CONTEXT
    ) - 1 == pytest.approx(error, abs=0.006)
    assert (
        run.peak_bytes
        <= run.device_bytes["allocator_peak"]
        <= run.device_bytes["allocator_reserved"]
    )
    assert run.settings["model"] == told.settings["model"]


def test_rows_are_found_by_their_keys():
    assert find_rows() == list(ROWS)
    assert [row.key for row in find_rows(["4x16", "fp16"])] == ["fp16", "4x16"]
    assert all(row.setup.effective_batch == 64 for row in CURVE)
    with pytest.raises(ValueError, match="no row 'fp8'; the rows are vanilla"):
        find_rows(["fp8"])


def test_what_a_machine_cannot_run_has_its_reason(monkeypatch):
    rows = {row.key: row for row in ROWS}
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    monkeypatch.setattr(training, "which", lambda name: None)
    for device in ("cpu", "cuda"):
        assert training.reason_against(rows["adam8bit"], device) == "bitsandbytes is not installed"
        assert training.reason_against(rows["sdpa"], device) == ""
    assert "GPU only" in training.reason_against(
        rows["fp16"], "cpu"
    ) and not training.reason_against(rows["fp16"], "cuda")
    assert "C++ compiler" in training.reason_against(rows["compile"], "cpu")
    assert "triton" in training.reason_against(rows["compile"], "cuda")
    outcomes = measure_rows(find_rows(["fp16", "adam8bit"]), "small", device="cpu")
    assert [bool(outcome.reason) for outcome in outcomes] == [True, True] and load_runs() == []


TINY = Model("bert-small", "tiny", 8, 16, 200 * MiB, 60, repeats=1)


@pytest.mark.parametrize(
    "key",
    [
        "vanilla",
        "checkpointing",
        "selective",
        "sdpa",
        "bf16",
        "all-bf16",
        "all-bf16-accelerate",
        "compile",
    ],
)
def test_a_row_is_measured_as_it_is_predicted(key):
    from trainlean.costs.predict import predict_run
    from trainlean.models import small_bert_config

    [row] = find_rows([key])
    if reason := training.reason_against(row, "cpu"):
        pytest.skip(reason)
    # Its kernels take half a minute more for each layer.
    config = small_bert_config(num_hidden_layers=1 if row.setup.compiled else 2)
    run = measure_row(row, config, TINY, "cpu")
    assert (len(run.seconds), run.samples, run.optimizer_steps) == (1, 8, 2)
    told = predict_run(config, row.setup, sequence_length=16)
    assert told.peak_bytes == pytest.approx(run.peak_bytes, rel=0.01)
    if row.loop == "PyTorch" and not row.setup.compiled:
        assert told.flops * 2 == run.flops


def test_a_row_runs_in_a_process_of_its_own_and_is_saved():
    [outcome] = measure_rows(find_rows(["vanilla"]), "small", device="cpu", repeats=1, limit=120)
    assert outcome.reason == "" and load_runs(model="small BERT") == [outcome.run]
    assert outcome.run.peak_bytes == pytest.approx(
        predict_row(ROWS[0], "small", "cpu").peak_bytes, rel=0.01
    )


@pytest.mark.parametrize(
    ("code", "limit", "reason"),
    [
        ("import time; time.sleep(60)", 2, "took longer than 2 s"),
        # Time enough for the imports of a new process on a busy machine.
        ("raise RuntimeError('CUDA out of memory. Tried to allocate')", 60, "out of memory"),
        ("raise ValueError('no such thing')", 60, "ValueError: no such thing"),
        ("import os; os._exit(3)", 60, "ended with status 3"),
    ],
)
def test_a_row_that_fails_has_its_reason_and_the_next_one_runs(code, limit, reason, monkeypatch):
    monkeypatch.setattr(measured, "measure_as_planned", partial(run_code, code))
    outcomes = measure_rows(ROWS[:2], "small", device="cpu", limit=limit, save=False)
    assert [outcome.run for outcome in outcomes] == [None, None] and all(
        reason in outcome.reason for outcome in outcomes
    )


class FakeCuda:
    """What measuring asks of a card."""

    peak = 9 * MiB

    def synchronize(self):
        pass

    def mem_get_info(self):
        return 60 * MiB, 100 * MiB

    def max_memory_allocated(self):
        return self.peak

    def max_memory_reserved(self):
        return 12 * MiB


def test_what_a_card_says_is_kept(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(training, "_driver", lambda: "580.1")
    seen = training._device_bytes()
    assert seen == {
        "allocator_peak": 9 * MiB,
        "allocator_reserved": 12 * MiB,
        "whole_device": 40 * MiB,
    }
    assert tuple(seen) == DEVICE_BYTES
    assert training._card() == {"device_memory": 100 * MiB, "cuda": "13.0", "driver": "580.1"}
    assert shown.memory_of(a_run(device_bytes=seen)) == 9 * MiB


def test_a_driver_that_is_not_there_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert training._driver() == "unknown"


# Tables, pictures, files


def test_the_table_has_ratios_beside_the_published_ones():
    rows = find_rows(["vanilla", "accumulation", "fp16"])
    outcomes = [
        Outcome(rows[0], a_run()),
        Outcome(rows[1], a_run("accumulation", (4.0,), 60 * MiB)),
        Outcome(rows[2], reason="no GPU"),
    ]
    frame = shown.measured_table(outcomes, {"accumulation": a_run(size=63 * MiB)})
    assert list(frame["time/vanilla"]) == ["1.00", "2.00", ""] and list(
        frame["memory/vanilla"]
    ) == ["1.00", "0.60", ""]
    assert list(frame["published memory"]) == ["1.00", "0.54", "0.93"] and list(
        frame["published time"]
    ) == ["1.00", "1.14", "0.47"]
    assert list(frame["prediction off by"]) == ["", "+5.0%", ""] and frame["time"][2] == "no GPU"


def test_the_picture_shows_what_was_measured():
    picture = shown.plot_table({"vanilla": a_run(), "sdpa": a_run("sdpa")})
    assert (
        picture.png().startswith(b"\x89PNG")
        and repr(picture) == "ratios to vanilla: 2 rows beside the published ones"
    )


def test_recorded_runs_are_read_from_where_they_are_written(tmp_path):
    assert recorded_runs(tmp_path) == []
    runs = [a_run(machine={"device": "cuda (NVIDIA H200)", "driver": "580.1"}), a_run("sdpa")]
    record_runs(runs, tmp_path / "h200.json", "trainlean measure --record h200.json")
    assert recorded_runs(tmp_path) == runs
    record = json.loads((tmp_path / "h200.json").read_text())
    assert (
        record["command"].startswith("trainlean measure")
        and record["machine"]["driver"] == "580.1"
        and len(record["date"]) == 10
    )
    (tmp_path / "zero.json").write_text('{"source": "trainlean measure", "runs": [{}]}')
    with pytest.raises(ValueError, match="zero.json holds no recorded measurements .*--record"):
        recorded_runs(tmp_path)


def test_the_courses_own_measurements_can_be_read():
    assert all(run.origin == "measured" for run in recorded_runs())


# The command


@pytest.fixture
def a_measured_table(monkeypatch):
    """`trainlean measure` with rows that cost nothing."""

    def rows(rows, model, *, device, repeats, started, **_):
        for row in rows:
            started(row)
        return [
            Outcome(row, a_run(row.key), "")
            if row.key != "fp16"
            else Outcome(row, None, "no GPU here")
            for row in rows
        ]

    monkeypatch.setattr(measure_command, "measure_rows", rows)
    monkeypatch.setattr(measure_command, "predict_row", lambda row, model, device: a_run(row.key))
    monkeypatch.setattr(measure_command, "the_device", lambda: "cpu")


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["trainlean", "measure", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0, *capsys.readouterr()


def test_the_command_prints_saves_and_draws(a_measured_table, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    record = tmp_path / "mine.json"
    status, out, _ = command(
        monkeypatch,
        capsys,
        "--rows",
        "vanilla",
        "--rows",
        "fp16",
        "--picture",
        tmp_path / "new" / "a.png",
        "--record",
        record,
    )
    assert status == 0 and "2.000 s" in out and "fp16: no GPU here." in out and "a.png" in out
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [run.name for run in recorded_runs(tmp_path)] == ["vanilla"]
    assert json.loads(record.read_text())["command"].startswith("trainlean measure --rows vanilla")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "gpt"], "The model is one of bert-large, small"),
        (["--model", "bert-large"], "needs a GPU"),
        (["--rows", "fp8"], "There is no row 'fp8'"),
        (["--record", "/nowhere/x.json"], "There is no folder /nowhere"),
    ],
)
def test_the_command_says_what_cannot_be(
    a_measured_table, monkeypatch, capsys, arguments, sentence
):
    status, _, err = command(monkeypatch, capsys, *arguments)
    assert status == 2 and sentence in err


def test_the_published_model_is_one_of_the_courses():
    assert MODELS["bert-large"].model == published_runs()[0].settings["model"]


def test_the_largest_row_is_one_that_fits_or_says_that_none_does(monkeypatch):
    [row] = find_rows(["largest"])
    found = at_largest(row, "small", "cpu")
    assert found.setup.micro_batch > 1 and not found.largest
    limits = replace(MODELS["small"], budget=1000)
    monkeypatch.setitem(MODELS, "small", limits)
    [outcome] = measure_rows([row], "small", device="cpu", save=False)
    assert outcome.reason == "not even one sample fits into the budget"
