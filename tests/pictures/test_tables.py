"""Tables as a notebook shows them."""

import re

import pandas
import pytest
from made_runs import make_run

from trainlean.costs.runs import summary
from trainlean.pictures.tables import table_html


def cells(frame):
    return [
        re.sub("<[^>]+>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", table_html(frame))
    ]


def test_a_summary_has_its_units_in_the_head_and_no_numbers_of_rows():
    run = make_run(4, 1, speed=100)
    heads = [
        "run",
        "time, s (fastest–slowest)",
        "samples/s",
        "peak MiB",
        "optimizer steps",
        "GFLOP",
    ]
    shown = cells(summary([run, run]))
    assert shown[: len(heads)] == heads
    assert re.fullmatch(r"\d+\.\d{3} \(\d+\.\d{3}–\d+\.\d{3}\)", shown[7])
    assert re.fullmatch(r"\d+\.\d", shown[8])
    assert len(shown) == 3 * len(heads)


def test_rows_that_have_names_keep_them():
    frame = pandas.DataFrame({"<b>": ["a  &", 1.5]}, index=["first", "second"])
    assert cells(frame) == ["", "&lt;b&gt;", "first", "a &amp;", "second", "1.5"]


@pytest.mark.parametrize(
    "frame",
    [
        pandas.DataFrame({"n": range(100)}),
        pandas.DataFrame({("a", "b"): [1]}),
    ],
)
def test_what_is_no_table_of_a_lesson_is_left_to_pandas(frame):
    assert table_html(frame) == frame._repr_html_()


def test_an_empty_table_and_two_columns_of_one_name():
    assert cells(pandas.DataFrame({"a": []})) == ["a"]
    two = pandas.DataFrame([[1, "x"]], columns=["a", "a"])
    assert cells(two) == ["a", "a", "1", "x"]
