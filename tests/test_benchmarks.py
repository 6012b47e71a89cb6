"""Every benchmark still runs, in its short form, and ends with the line that says its figure."""

import ast
import importlib
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import as_if_a_card
import link_model
import on_a_gpu
import pytest
from equivalent_mutants import EQUIVALENT
from small_edits import small_edits

from trainlean.costs.runs import Run, machine, recorded_runs
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.solutions import edited_solution
from trainlean.table.measured import Outcome
from trainlean.workspace import COURSE, CourseError

# The last line of each; \N stands for a number.
FIGURES = {
    "audit_mistakes": r"(\d+) of \1 known mistakes are named, 0 under a wrong name",
    "explorer_redraw": r"the slowest control takes \N of the limit of 50 ms",
    "link_model": r"steps of DDP and Local SGD: mean of the absolute errors \N %, largest \N %",
    "meter_against_allocator": r"\d+ of \d+ trainings agree with the allocator to 0.1 %, \d+ are said not to, 0 miss",
    "meter_overhead": r"a training takes \N times what it takes alone after a count, and \N times while it is counted",
    "mutants": r"1 of 1 exercises: \d+ mutants, \d+ refused \(\d+ under a known mistake's name\), \d+ the same training, 0 accepted",
    "other_tools": r"this course's predictions are off by \N% on average over 1 cases",
    "plan_choice": r"\d of 1 choices are within 10 % of the fastest setting that fits; the slowest takes \N times its time",
    "prediction_error": r"mean size of the errors: the course's prediction \N%, sixteen_bytes \N%, accelerates \N%, korthikantis \N%",
    "prediction_zoo": r"3 of 3 within \N%, 0 refused with a sentence; largest error \N%",
    "prediction_time": r"a prediction takes \N s of processor and is \N% off at most",
    "reviews_unigram_against_bert": r"held-out accuracy: single words \N%, small BERT \N%",
}
GRADING = COURSE / "tests" / "grading" / "test_benchmarks.py"
OF_GRADING = {*re.findall(r"def test_(\w+)", GRADING.read_text(encoding="utf-8"))}
OF_MACHINES = {"as_if_a_card", "on_a_gpu"}  # below, each with a test of its own
HELPERS = {"chromium", "classes", "equivalent_mutants", "small_edits", "trainings"}


def says(line: str, figure: str) -> bool:
    return bool(re.fullmatch(figure.replace(r"\N", r"\d+\.\d+"), line))


def test_every_benchmark_has_a_short_form():
    benchmarks = {path.stem for path in (COURSE / "benchmarks").glob("*.py")}
    assert benchmarks - HELPERS == {*FIGURES, *OF_GRADING, *OF_MACHINES}


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {"link_model", "explorer_redraw"}))
def test_a_benchmark_ends_with_its_figure(name, capsys, one_thread):
    importlib.import_module(name).main(["--short"])
    assert says(capsys.readouterr().out.splitlines()[-1], FIGURES[name])


def test_the_link_benchmark_ends_with_its_figure_or_says_why_not():
    """In a process of its own: it ends its workers when it ends itself."""
    reason = link_model.reason_against()
    link_model.remove_link()
    done = subprocess.run(
        [sys.executable, link_model.__file__, "--short"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if reason:
        assert done.stdout.startswith("Not measured here. ")
        pytest.skip(reason)
    assert says(done.stdout.splitlines()[-1], FIGURES["link_model"])


SOLUTION = """
def total(values, k=1):
    # BEGIN SOLUTION
    found = 0
    for value in values[1:]:
        if value < k:
            found += value.item()
    return found
    # END SOLUTION
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("found = 0", ""),
        ("found = 0", "found = 1"),
        ("if value < k:", "if value <= k:"),
        ("if value < k:", "if not value < k:"),
        ("for value in values[1:]:", "for value in values[2:]:"),
        ("for value in values[1:]:", "for value in values:"),
        ("found += value.item()", "found += value"),
        ("found += value.item()", "found -= value.item()"),
        ("found += value.item()", "found = value.item()"),
        ("found += value.item()", "found += value.item()\nfound += value.item()"),
        ("found += value.item()", "found += found.item()"),
        ("for value in values[1:]:", "for value in list(values[1:])[:-1]:"),
        ("for value in values[1:]:", "for value in list(values[1:])[::-1]:"),
        ("    found += value.item()", "    found += value.item()\nbreak"),
        ("found += value.item()", "found += value.item()\nbreak"),
        ("        found += value.item()", "        found += value.item()\nvalues.clear()"),
        ("if value < k:", "if value != k:"),
    ],
)
def test_small_edits_are_made_one_at_a_time(old, new):
    edits = {(edit.old, edit.new): edit.source for edit in small_edits(SOLUTION)}
    assert (old, new) in edits
    assert len(set(edits.values())) == len(edits)


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("for one, x in enumerate(y): z", "for one, x in enumerate(y, 1): z"),
        ("for one, x in enumerate(y): z", "for one, x in enumerate(list(y)[1:]): z"),
        ("for a in x:\n    for b in y: z", "for b in y:\n    for a in x: z"),
        ("with a, b: x", "with b: x"),
        ("if x is None: y", "if not x: y"),
        ("x = [y for z in w if z is not None]", "x = [y for z in w if z]"),
        ("total = total + x", "total += x"),
        ("x /= y", "x = x / y"),
        ("x = y(z)", "x = y(z).detach()"),
        ("x = y / z", "x = y / z.item()"),
        ("x = y // z", "x = -(-y // z)"),
        ("x.mul_(y)", "x.mul(y)"),
        ("x = y.abs()", "x = y.abs_()"),
        ("x = f(reduction='sum')", "x = f(reduction='mean')"),
        ("x = y < 0.01", "x = y < 0.1"),
        ("x = y['one'] - z['two']", "x = y['two'] - z['two']"),
        ("x = y.one - y.two", "x = y.one - y.one"),
        ("def f(x, y):\n    return g(x)", "def f(x, y):\n    return g(y)"),
        ("def f(x):\n    return x | {1: 2}", "def f(x):\n    x.update({1: 2})\n    return x"),
        ("def f(x):\n    return {**x, 1: 2}", "def f(x):\n    x.update({1: 2})\n    return x"),
        ("x()\ny()\nz()", "z()\nx()\ny()"),
    ],
)
def test_slips_of_learners_are_among_the_small_edits(source, new):
    wanted = ast.unparse(ast.parse(new))
    assert wanted in {edit.source for edit in small_edits(source)}


def test_a_statement_is_moved_into_the_loop():
    assert any(edit.source.endswith("\n        return found") for edit in small_edits(SOLUTION))


def test_small_edits_leave_alone_what_is_given():
    assert all("def total(values, k=1):" in edit.source for edit in small_edits(SOLUTION))


def test_the_same_training_is_still_a_mutant():
    """An entry whose solution has changed since says nothing any more."""
    for name, known in EQUIVALENT.items():
        edits = small_edits(edited_solution(find_exercise(name), {}))
        gone = known.keys() - {(edit.old, edit.new) for edit in edits}
        assert not gone, f"{name} has no such mutants: {gone}"
        assert all(reason.endswith(".") for reason in known.values())


def test_as_if_a_card_runs_what_is_there(monkeypatch, capsys):
    """The commands are only looked at: exercises_tests runs with a pretended card, and nbval runs the lesson."""
    commands = []

    def run(command, **_):
        commands.append(command[1:])
        return subprocess.CompletedProcess(command, 0, "1 passed\n", "")

    monkeypatch.setattr(as_if_a_card, "subprocess", SimpleNamespace(run=run))
    assert as_if_a_card.main(["cuda"], [as_if_a_card.SHORT], True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "as_if_a_card: 2 tried with cuda; failed: 0"
    )
    lesson, row = commands
    assert (COURSE / lesson[-1]).is_file() and lesson[:2] == ["-m", "pytest"]
    assert row[:3] == ["-m", "trainlean.cli", "measure"]


def test_what_a_card_says_is_written_once_and_reported(tmp_path, monkeypatch, capsys, one_thread):
    """One row, whose run and whose bytes are given: a second call does nothing again, and the course reads the record.

    This process asks the card nothing: a context of its own would be counted beside the rows'.
    """
    run = Run("vanilla", peak={"weights": 100}, seconds=(2.0,), samples=4, machine=machine())
    calls = []

    def rows(rows, model, **_):
        calls.append([row.key for row in rows])
        return [Outcome(row, run) for row in rows]

    monkeypatch.setattr(on_a_gpu, "measure_rows", rows)
    monkeypatch.setattr(on_a_gpu, "predict_row", lambda *_: replace(run, peak={"weights": 110}))
    monkeypatch.setattr(on_a_gpu, "trainings", lambda device: [])
    monkeypatch.setattr(on_a_gpu, "machine", None)
    for _ in range(2):
        folder = on_a_gpu.Folder(tmp_path, 20)
        assert on_a_gpu.main(folder, "small", "cpu", short=True) == 0
    assert calls == [["vanilla"]]
    assert "predicted 0 (+10.0%)" in capsys.readouterr().out
    (tmp_path / "machine.json").unlink()
    for name in ("measured.json",):
        (tmp_path / name).unlink()
    assert recorded_runs(tmp_path) == [run]
    with pytest.raises(CourseError, match="The time is up.* goes on with"):
        on_a_gpu.main(on_a_gpu.Folder(tmp_path / "late", -1), "small", "cpu", short=True)


def test_meter_and_allocator_are_compared_on_at_least_twelve_trainings():
    assert len(on_a_gpu.trainings("cpu")) >= 12
