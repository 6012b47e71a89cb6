"""Lazy tensors: where they are missing, what a learner is told and shown; and the pictures of graphs."""

import sys

import nbformat
import pytest

from trainlean.devices import lazy
from trainlean.exercises import feedback
from trainlean.exercises.checking import check_notebooks
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.own_loop import questions_about
from trainlean.exercises.questions import written
from trainlean.exercises.solutions import answer_of
from trainlean.exercises.verdicts import CANNOT, RIGHT, judge
from trainlean.pictures.graphs import graph_layers, plot_graph, plot_graphs_run
from trainlean.workspace import COURSE, CourseError, read_records

LESSON = "1_accumulation/4_lazy_tensors"
DOT = """digraph G {
  node0 [label="lazy_tensors::device_data\\nFloat[3,1]\\ndevice=CPU0"]
  node1 [label="lazy_tensors::device_data\\nFloat[2,3]\\ndevice=CPU0"]
  node2 [label="aten::mm\\nFloat[2,1]"]
  node3 [label="lazy_tensors::device_data\\nFloat[]"]
  node4 [label="aten::add\\nFloat[2,1]\\nROOT=0"]
  node2 -> node4 [label="i=0"]
  node3 -> node4 [label="i=1"]
  node1 -> node2 [label="i=0"]
  node0 -> node2 [label="i=1"]
}"""


@pytest.fixture
def without_lazy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._lazy", None)  # importing it fails


def test_nothing_is_missing_with_the_pinned_torch():
    assert lazy.why_not_lazy() == ""


def test_check_says_that_it_cannot(without_lazy, monkeypatch):
    shown = []
    monkeypatch.setattr(feedback, "display", shown.append)
    exercise = find_exercise("train_with_marks")
    verdict = judge(exercise, exercise.also_right[0], seed=1)
    assert (verdict.outcome, verdict.points) == (CANNOT, 0)
    assert "has no lazy tensors" in verdict.message and "torch._lazy" in verdict.message
    feedback.check(train_with_marks=exercise.also_right[0])
    assert repr(shown[0]).startswith("train_with_marks: cannot be checked here, 0 of 3 points")
    assert "Cannot be checked here" in shown[0]._repr_html_()
    assert read_records("progress") == []


def test_the_command_says_so_too_and_is_not_content(without_lazy, capsys):
    status = check_notebooks([COURSE / "solutions" / f"{LESSON}.ipynb"], seed=1)
    assert status == 1
    text = capsys.readouterr().out
    assert text.count("cannot be checked here") == 3


def test_other_exercises_are_checked_as_ever(without_lazy):
    exercise = find_exercise("train_accumulated")
    assert judge(exercise, answer_of(exercise, {}), seed=1).outcome == RIGHT


def test_recorded_outputs_are_shown(without_lazy, monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    lazy.lazy_or_recorded(LESSON)
    assert "has no lazy tensors" in capsys.readouterr().out
    cells = nbformat.read(COURSE / "solutions" / f"{LESSON}.ipynb", as_version=4).cells
    cell = next(
        cell
        for cell in cells
        if cell.cell_type == "code" and "print(recorded_graph(loss))" in cell.source
    )
    assert shell.run_cell(cell.source).success
    assert capsys.readouterr().out == cell.outputs[0].text
    assert shell.run_cell("print(6 * 7)").success
    assert capsys.readouterr().out == "42\n"
    assert not any(
        line.startswith("__import__")
        for line in shell.transform_cell("check(train_with_marks)").splitlines()
    )


def test_nothing_changes_where_lazy_tensors_run(capsys):
    lazy.lazy_or_recorded("no/such_lesson")
    assert capsys.readouterr().out == ""


def test_a_graph_is_read_downwards():
    places, labels, edges = graph_layers(DOT)
    assert len(labels) == 5 and len(edges) == 4
    assert all(places[tail][0] < places[head][0] for tail, head in edges)
    assert places[3][0] == places[2][0] == 1  # an input stands right above what uses it


def test_pictures_say_what_they_show():
    assert repr(plot_graph(DOT)) == "graph: 5 nodes, 4 edges, 3 layers"
    picture = plot_graphs_run({"one": [(10, True), (10, False)], "two": [(3, True)]})
    assert repr(picture) == "one: 2 graphs; two: 1 graphs"
    assert picture.png().startswith(b"\x89PNG")


def test_a_row_of_graphs_ends_at_its_number_of_operations():
    picture = plot_graphs_run({"many": [(30, True)] * 20, "one": [(600, True)]})
    *many, one = picture.axes[0].patches
    assert many[-1].get_x() + many[-1].get_width() == one.get_width() == 600


def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    from torch._lazy import mark_step

    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            mark_step()


def test_a_right_lazy_loop_is_asked_which_line_ran_what():
    run = written("OWN_RUNS", "train_with_marks")(train_with_marks)
    first, graphs, update = questions_about("train_with_marks", run)
    lines = run.trace.source.splitlines()
    marks = [i for i, line in enumerate(lines, start=1) if "mark_step()" in line]
    assert [one.right.text.split(":")[0] for one in (first, update)] == [
        f"line {number}" for number in marks
    ]
    assert graphs.right.text == "8" and "6" in [one.text for one in graphs.wrong]


def test_what_is_no_function_is_not_sent_away():
    with pytest.raises(CourseError, match=r"needs a function and its arguments, not int: write"):
        lazy.in_fresh_process(3)
