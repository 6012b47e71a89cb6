"""Every benchmark still runs, in its short form, and ends with the line that says its figure."""

import ast
import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import as_if_a_card
import link_model
import on_a_gpu
import pytest
import yaml
from _pytest.mark.expression import Expression
from equivalent_mutants import EQUIVALENT
from small_edits import small_edits

from trainlean.costs.runs import MiB, Run, machine, recorded_runs
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
OF_GRADING = {
    name
    for name in re.findall(r"def test_(\w+)", GRADING.read_text(encoding="utf-8"))
    if (COURSE / "benchmarks" / f"{name}.py").exists()
}
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
    commands, environments = [], []

    def run(command, env, **_):
        commands.append(command[1:])
        environments.append(env)
        return subprocess.CompletedProcess(command, 0, "1 passed\n", "")

    monkeypatch.setattr(as_if_a_card, "subprocess", SimpleNamespace(run=run))
    assert as_if_a_card.main(["cuda"], [as_if_a_card.SHORT], True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "as_if_a_card: 2 tried with cuda; failed: 0"
    )
    lesson, row = commands
    assert (COURSE / lesson[-1]).is_file() and lesson[:2] == ["-m", "pytest"]
    assert row[:3] == ["-m", "trainlean.cli", "measure"]
    del commands[:], environments[:]
    assert as_if_a_card.main(["mps"], [as_if_a_card.SHORT], False) == 0
    [exercises] = [command for command in commands if "-k" in command]
    assert exercises[:4] == ["-m", "pytest", "-q", "exercises_tests"] and len(exercises) == 6
    wanted = Expression.compile(exercises[-1])
    tests = re.findall(
        r"def (test_\w+)\(", (COURSE / "exercises_tests" / "test_exercises.py").read_text()
    )
    found = [test for test in tests if wanted.evaluate(test.__contains__)]
    assert found == ["test_solution_is_right", "test_other_right_ways_pass"]
    # In every process of a command, and nothing that keeps a build on the CPU.
    for env in environments:
        assert env["TRAINLEAN_PRETENDED_CARD"] == "mps"
        assert "every_process" in env["PYTHONPATH"].split(os.pathsep)[0]
        assert "ACCELERATE_USE_CPU" not in env and "TRAINLEAN_DEVICE" not in env


def test_at_night_every_lesson_runs_as_if_there_were_either_card():
    night = yaml.safe_load((COURSE / ".github" / "workflows" / "night.yml").read_text())["jobs"]
    job = night["cards"]
    assert job["strategy"]["matrix"]["kind"] == list(as_if_a_card.KINDS)
    assert job["steps"][-1]["run"].endswith("benchmarks/as_if_a_card.py ${{ matrix.kind }}")


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


def test_what_a_card_is_asked_is_there(monkeypatch):
    """The tests, BERT-large unless another model is named, and an end for what takes too long."""
    assert on_a_gpu.TESTS and all((COURSE / test).exists() for test in on_a_gpu.TESTS)
    assert [on_a_gpu.usual_model(device) for device in ("cuda", "cpu")] == ["bert-large", "small"]
    asked = {}

    def run(command, timeout, **_):
        asked[command[-1]] = timeout
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(on_a_gpu, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": run}))
    with pytest.raises(CourseError, match="took longer than 300 s"):
        on_a_gpu._in_a_process("--machine", "cuda")
    assert asked == {"cuda": 300}


def test_the_time_of_tests_on_a_card_has_an_end(tmp_path, monkeypatch, capsys):
    """What is cut off is no answer: it is said, and asked again by the next call."""
    limits = []

    def run(command, timeout, **_):
        limits.append(timeout)
        if "pytest" in command:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, "{}\n", "")

    monkeypatch.setattr(on_a_gpu, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": run}))
    monkeypatch.setattr(on_a_gpu, "trainings", lambda device: [])
    monkeypatch.setattr(on_a_gpu, "ROWS", [])
    folder = on_a_gpu.Folder(tmp_path, 20)
    assert on_a_gpu.main(folder, "small", "cpu", short=False) == len(on_a_gpu.TESTS)
    assert "tests/costs took longer than" in capsys.readouterr().out and not folder.read("tests")
    assert all(0 < limit <= 1200 for limit in limits)


def test_on_a_card_the_meter_is_compared_with_the_allocator_s_own_peak(one_thread):
    meter, allocator = on_a_gpu.meter_and_allocator("vanilla", "small", "cpu")
    assert meter == pytest.approx(allocator, rel=0.001) and allocator > 10 * MiB


def test_meter_and_allocator_are_compared_on_at_least_twelve_trainings():
    assert len(on_a_gpu.trainings("cpu")) >= 12
