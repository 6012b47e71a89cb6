"""Slides of the known mistakes: one right reason on each, the class as it was counted, a sentence for a file that is none."""

import json
import re
from collections import Counter

import pytest

from trainlean.exercises.finding import all_exercises, find_exercise
from trainlean.grading.deck import marked_lines, read_counts, slides_of, write_deck
from trainlean.grading.sheets import write_csv
from trainlean.grading.tally import HEADER
from trainlean.workspace import CourseError

CLASS = [
    ["train_accumulated", "right", "", 180],
    ["train_accumulated", "wrong", "never zeroed", 30],
    ["train_accumulated", "wrong", "loss not divided", 60],
    ["train_accumulated", "wrong", "<b>a mistake of ours", 8],
    ["train_accumulated", "wrong", "", 6],
    ["train_accumulated", "crashed", "", 14],
    ["train_accumulated", "no notebook", "", 2],
    ["peak_at_batch", "right", "", 300],
    ["an exercise of ours", "wrong", "another", 300],
]


@pytest.fixture
def tally(tmp_path):
    path = tmp_path / "grades_mistakes.csv"
    write_csv(path, [HEADER, *CLASS])
    return path


def test_a_class_of_300(tally, tmp_path):
    deck = tmp_path / "deck.html"
    assert write_deck(deck, tally) == 2
    page = deck.read_text(encoding="utf-8")
    assert page.index("Loss not divided.") < page.index("Never zeroed.")
    assert "60 of 298 made it." in page and "30 of 298 made it." in page
    assert "<b>a mistake of ours" not in page and "&lt;b&gt;a mistake of ours" in page
    assert "peak_at_batch" not in page, "nobody made a mistake there"
    assert not re.search(r"(src|href)=|https?://", page), "nothing is fetched"
    assert write_deck(deck, tally, most=1) == 1


def test_the_bars_are_the_class(tally):
    exercise = find_exercise("train_accumulated")
    [first, _] = slides_of(exercise, read_counts(tally)["train_accumulated"], 3)
    bars = {bar["label"]: (bar["number"], bar["kind"]) for bar in first["bars"]}
    assert sum(number for number, _ in bars.values()) == 298
    assert bars["loss not divided"] == (60, "this") and bars["right"] == (180, "right")
    assert bars["no known mistake"] == (6, "")
    assert [bar["share"] for bar in first["bars"]][0] == 100.0


def test_who_handed_nothing_in_is_no_bar():
    """A class of 300 of which 14 have come to this lesson."""
    exercise = find_exercise("train_accumulated")
    seen = Counter({("no notebook", ""): 286, ("right", ""): 9, ("wrong", "never zeroed"): 5})
    [slide] = slides_of(exercise, seen, 3)
    assert (slide["made"], slide["learners"]) == (5, 14)
    assert [(bar["number"], bar["share"]) for bar in slide["bars"]] == [(9, 100.0), (5, 55.6)]
    assert slides_of(exercise, Counter({("no notebook", ""): 300}), 3) == []


@pytest.mark.parametrize("name", all_exercises())
def test_every_mistake_makes_a_slide_with_one_right_reason(name):
    exercise = find_exercise(name)
    slides = slides_of(exercise, Counter(), 1000)
    assert [slide["name"] for slide in slides] == [mistake.name for mistake in exercise.mistakes]
    for slide in slides:
        assert [option["right"] for option in slide["options"]].count(True) == 1
        assert len({option["html"] for option in slide["options"]}) == len(slide["options"]) > 1
        assert slide["lines"] and not any("SOLUTION" in text for text, _ in slide["lines"])
    assert json.dumps(slides) == json.dumps(slides_of(exercise, Counter(), 1000)), (
        "the same each time"
    )


def test_the_lines_of_the_mistake_are_marked():
    exercise = find_exercise("train_accumulated")
    known = {mistake.name: mistake for mistake in exercise.mistakes}
    own = [text.strip() for text, own in marked_lines(exercise, known["loss not divided"]) if own]
    assert own == ["loss.backward()"]


def test_only_the_lessons_that_are_asked_for(tmp_path):
    deck = tmp_path / "deck.html"
    write_deck(deck, lessons=["0_start"])
    page = deck.read_text(encoding="utf-8")
    assert "0_start/1_where" in page and "1_accumulation/" not in page
    assert "<b>One average for AdamW.</b>" in page
    assert 'class="class"' not in page, "no class, no bars"
    with pytest.raises(CourseError, match="no lesson 'nowhere'"):
        write_deck(deck, lessons=["nowhere"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("learner,points\nada,3\n", "is no table of mistakes: its first line should be exercise"),
        (f"{','.join(HEADER)}\na,wrong,b,many\n", "line 2 should end with a number of learners"),
        (f"{','.join(HEADER)}\na,right,,3\n", "counts no mistake that the course knows"),
    ],
)
def test_a_file_that_is_no_tally_is_a_sentence(tmp_path, text, says):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match=says):
        write_deck(tmp_path / "deck.html", path)
    assert not (tmp_path / "deck.html").exists()


def test_a_place_that_cannot_be_written_is_a_sentence(tally, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="cannot be written"):
        write_deck(tmp_path / "file" / "deck.html", tally)


def test_a_notebook_is_not_replaced_by_slides(tally, tmp_path):
    (tmp_path / "mine.ipynb").write_text("{}")
    with pytest.raises(CourseError, match="is a notebook, which the slides would replace"):
        write_deck(tmp_path / "mine.ipynb", tally)
    assert (tmp_path / "mine.ipynb").read_text() == "{}"
