"""Every benchmark still runs, in its short form, and ends with the line that says its figure."""

import importlib
import re
import subprocess
import sys

import link_model
import pytest

from trainlean.workspace import COURSE

# The last line of each; \N stands for a number.
FIGURES = {
    "explorer_redraw": r"the slowest control takes \N of the limit of 150 ms",
    "link_model": r"steps of DDP and Local SGD: mean of the absolute errors \N %, largest \N %",
    "meter_overhead": r"a training takes \N times what it takes alone after a count, and \N times while it is counted",
    "prediction_error": r"mean size of the errors: the course's prediction \N%, sixteen_bytes \N%, accelerates \N%, korthikantis \N%",
    "prediction_time": r"a prediction takes \N s of processor and is \N% off at most",
    "reviews_unigram_against_bert": r"held-out accuracy: single words \N%, small BERT \N%",
}
ELSEWHERE = {"class_of_300", "classes", "grading_speed"}  # of grading


def says(line: str, figure: str) -> bool:
    return bool(re.fullmatch(figure.replace(r"\N", r"\d+\.\d+"), line))


def test_every_benchmark_has_a_short_form():
    benchmarks = {path.stem for path in (COURSE / "benchmarks").glob("*.py")}
    assert benchmarks - ELSEWHERE == set(FIGURES)


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {"link_model"}))
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
