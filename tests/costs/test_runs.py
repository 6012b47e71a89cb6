"""Runs: their figures, what is kept of them and read again, and the table of them."""

import json

import pytest

from trainlean.costs.runs import (
    CATEGORIES,
    MiB,
    Run,
    format_bytes,
    load_runs,
    machine,
    published_runs,
    save_run,
    summary,
)
from trainlean.setup import TrainingSetup
from trainlean.workspace import work_folder


def a_run(name="4 x 4", seconds=(2.0, 1.0, 4.0), **changes):
    peak = dict(zip(CATEGORIES, (10 * MiB, 10 * MiB, 20 * MiB, 2 * MiB, MiB // 2)))
    counts = dict(samples=64, flops=3_200_000_000, optimizer_steps=4)
    settings = {"micro_batch": 4, "model": "small"}
    return Run(**dict(name=name, seconds=seconds, settings=settings, peak=peak, **counts) | changes)


def test_figures_of_a_run():
    run = a_run()
    assert run.peak_bytes == 42.5 * MiB
    assert run.median_seconds == 2.0 and run.samples_per_second == 32.0
    assert a_run(seconds=()).samples_per_second is None
    assert a_run(samples=0).samples_per_second is None


def test_json_and_back():
    run = a_run()
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_collectives_are_kept_and_older_records_have_none():
    count = {"all-reduce": {"calls": 2, "payload": 8, "messages": 4, "sent": 8.0}}
    run = a_run(all_reduces=2, bytes_sent=8, collectives=count)
    save_run(run)
    older = run.to_dict()
    del older["collectives"]
    with open(work_folder() / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(older) + "\n")
    assert load_runs() == [run, Run.from_dict(older)]
    assert [one.collectives for one in load_runs()] == [count, {}]


def test_what_the_card_said_stood_among_what_the_machine_is():
    """A record as `trainlean measure` wrote it before there was `device_bytes`."""
    run = a_run(
        device_bytes={"allocator_peak": 9, "allocator_reserved": 12, "whole_device": 40},
        machine={"device": "cuda (H200)", "device_memory": 100},
    )
    old = run.to_dict()
    old["machine"] = old["machine"] | old.pop("device_bytes")
    assert Run.from_dict(json.loads(json.dumps(old))) == run
    assert Run.from_dict(run.to_dict()) == run
    del old["machine"]
    assert Run.from_dict(old).device_bytes == {}


def test_the_setup_of_a_run_is_what_its_settings_say():
    settings = {"micro_batch": 4, "checkpointing": "every 2 layers", "loop": "Trainer"}
    assert a_run(settings=settings).setup == TrainingSetup(4, checkpointing=2)
    for run in published_runs():
        assert run.setup.label.startswith(("4×1", "1×4")) and run.setup.effective_batch == 4
    assert a_run(settings={"model": "small"}).setup is None
    other = {"micro_batch": 4, "optimizer": "lion", "devices": None}
    assert a_run(settings=other).setup == TrainingSetup(4)


NO_RUNS = [
    None,
    [],
    {},
    {"name": 3},
    {"name": "x", "colour": 1},
    {"name": "x", "origin": "dreamt"},
    {"name": "x", "peak": 3},
    {"name": "x", "device_bytes": ["much"]},
    {"name": "x", "machine": {"allocator_peak": "much"}},
    {"name": "x", "peak": {"weights": "much"}},
    {"name": "x", "seconds": None},
    {"name": "x", "seconds": ["slow"]},
    {"name": "x", "collectives": ["all-reduce"]},
    {"name": "x", "collectives": {"all-reduce": [1, 4]}},
    {
        "name": "x",
        "collectives": {"all-reduce": {"calls": 1, "payload": "all", "messages": 2, "sent": 4.0}},
    },
]


@pytest.mark.parametrize("record", NO_RUNS, ids=json.dumps)
def test_what_is_no_run_is_refused_in_a_sentence_and_passed_over(record):
    with pytest.raises(ValueError, match=r"\.$"):
        Run.from_dict(record)
    save_run(a_run("before"))
    with open(work_folder() / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + '\n{"name": "cut o\n')
    save_run(a_run("after"))
    assert [run.name for run in load_runs()] == ["before", "after"]


def test_runs_are_found_by_their_settings():
    assert load_runs() == []
    runs = [
        a_run("a"),
        a_run("b", settings={"micro_batch": 1, "model": "small"}),
        a_run("c", settings={}),
    ]
    for run in runs:
        save_run(run)
    assert load_runs() == runs
    assert load_runs(model="small") == runs[:2]
    assert load_runs(model="small", micro_batch=1) == [runs[1]]
    assert load_runs(micro_batch=7) == []


def test_settings_that_json_cannot_hold_are_refused_before_anything_is_written():
    with pytest.raises(ValueError, match="'odd' cannot be saved"):
        save_run(a_run("odd", settings={"model": object()}))
    assert load_runs() == []


def test_summary_has_one_form():
    table = summary([a_run(), a_run("16 x 1", seconds=()), a_run("slow", seconds=[1234.5])])
    assert list(table.columns) == [
        "run",
        "time",
        "samples/s",
        "peak MiB",
        "optimizer steps",
        "GFLOP",
    ]
    assert list(table["time"]) == [
        "   2.000 s (   1.000–   4.000)",
        "not timed",
        "1234.500 s (1234.500–1234.500)",
    ]
    assert list(table["samples/s"]) == ["    32.0 samples/s", "not timed", "     0.1 samples/s"]
    assert list(table.iloc[0])[3:] == [42.5, 4, 3.2]


def test_summary_shows_communication_where_there_was_some():
    table = summary([a_run(), a_run(all_reduces=8, bytes_sent=3 * MiB)])
    assert list(table["all-reduces"]) == [0, 8] and list(table["MiB sent"]) == [0.0, 3.0]
    assert len(summary(a_run())) == 1 and len(summary([])) == 0


def test_bytes_for_people():
    written = [format_bytes(count) for count in (0, 1023, 1024, 12.3 * MiB, 5 * 2**30, 2**42)]
    assert written == ["0 B", "1023 B", "1.0 KiB", "12.3 MiB", "5.0 GiB", "4096.0 GiB"]


def test_machine_is_json():
    assert json.loads(json.dumps(machine()))["threads"] >= 1


def test_published_runs_are_the_sources():
    runs = {(run.settings["checkpointing"], run.peak_bytes // MiB): run for run in published_runs()}
    assert {("off", 14949), ("off", 8681), ("every layer", 6775)} <= set(runs)
    vanilla = runs["off", 14949]
    assert (vanilla.settings["micro_batch"], vanilla.settings["accumulation_steps"]) == (4, 1)
    assert vanilla.origin == "published" and vanilla.samples_per_second == pytest.approx(
        8.86, abs=0.01
    )
    assert "–" in list(summary([vanilla])["GFLOP"])
