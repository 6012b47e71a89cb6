"""No answer before its question: not a guess's value before its reveal, not an exercise's solution before its check."""

import re
from functools import cache

import pytest

from trainlean.exercises.finding import all_exercises
from trainlean.notebooks.notebook import find_notebooks, make_lesson, read_authored, read_notebook

GUESS = re.compile(r'^guess\(\s*"([^"]+)"', re.MULTILINE)
REVEAL = re.compile(r'^\s*reveal\(\s*"([^"]+)"', re.MULTILINE)
SHOWN = re.compile(r"(?:measured|predicted) ([\d,.]+(?:e[+-]?\d+)?) ")
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()

# What says the answer without its number: it stands in the course, and only after the reveal.
TELLING = {
    "last gradient with Accelerate": [r"divides by \$k\$ always", r"one batch ahead"],
    "learning rate at the end, length 10": [r"\*\*once per optimizer step\*\*"],
    "all-reduces with no_sync around backward": [r"decides in the \*forward\* pass"],
    "first gradient of 4 x 4, relative to the large batch's": [
        r"times too large",
        r"the division out",
        r"issues/47688",
        r"class Diary",
        r"accepts_loss_kwargs",
    ],
    "graphs run with one mark in a window": [r"Operators that cannot wait"],
    "sum of a step's shares in exhibit 1": [r"from the sum of the window"],
    "sum of the second step of exhibit 8": [r"six quarters", r"as in the report"],
    "micro-batches in exhibit 6": [r"there are two for each micro-batch"],
    "adapters that learn in exhibit 21": [r"adapters [\w' ]*(not trained|as they began)"],
    "all-reduces in exhibit 23": [r"nothing was saved, and nothing was wrong"],
}
# Guesses whose value stands earlier with the same unit, and of what it is said there.
VALUE_STANDS = {
    "first gradient of 4 x 4, relative to the large batch's": "of reviews, of work, of all-reduces",
    "averages with H=3, 4 steps and save_steps=2": "of other runs, with H = 8 and H = 2",
}
# Exercises whose solution stands for the greater part in an earlier cell, and why that is so.
SHOWN_BEFORE = {
    "train_with_accelerator": "the loop of the lesson; the exercise is the clipping inside it",
    "train_checkpointed": "the loop of the lesson; the exercise is where to switch on",
    "run_checkpointed": "the plain loop over the blocks is given; the exercise is one call in it",
    "train_locally": "the loop of the lesson; the exercise is what the context counts",
    "cured_average": "the loop to be cured is given; the exercise is which of its lines belong to a window",
}
# Exercises whose solution stands for the greater part right after their check, and why.
SHOWN_AFTER = {
    "train_accumulated": "BERT is trained with the loop that train_toy has shown before",
    "train_with_accelerator": "the loop of the lesson, without the clipping",
    "run_checkpointed": "the next cell shows a way that goes wrong, in one line of three",
    "train_locally": "the lesson goes on with another cure in the same loop",
}
MOST = 0.6  # of a solution's lines may stand in one earlier cell


@cache
def course():
    """Every cell as learners get it, with the authored source: (lesson, cell, authored source)."""
    cells = []
    for place in find_notebooks():
        authored = read_authored(place)
        lesson = make_lesson(authored)
        cells += [
            (place.name, cell, whole.source)
            for cell, whole in zip(lesson.cells, authored.cells, strict=True)
        ]
    return cells


@cache
def position(pattern, name):
    return next(
        at for at, (_, cell, _) in enumerate(course()) if name in pattern.findall(cell.source)
    )


# Read as text: cutting all lessons apart takes seconds, for every worker that only collects.
GUESSES = [name for place in find_notebooks() for name in GUESS.findall(place.authored.read_text())]


@cache
def solutions():
    """Where each exercise's own cell stands."""
    return {
        cell.metadata["nbgrader"]["grade_id"]: at
        for at, (_, cell, whole) in enumerate(course())
        if cell.cell_type == "code"
        and "# BEGIN SOLUTION" in whole
        and cell.metadata.get("nbgrader", {}).get("solution")
    }


def outputs_of(cell):
    return " ".join(
        str(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", ())
    )


@cache
def executed(name):
    place = next(place for place in find_notebooks() if place.name == name)
    return read_notebook(place.solution).cells


def answer(name):
    """The value that the built solution reveals, its unit, and what was printed before the guess."""
    lesson, cell, _ = course()[position(GUESS, name)]
    unit = re.search(rf'guess\(\s*"{re.escape(name)}",\s*\w+,\s*"([^"]+)"', cell.source)[1]
    before, asked = [], False
    for built in executed(lesson):
        if name in REVEAL.findall(built.source):
            return SHOWN.findall(outputs_of(built))[-1], unit, before
        asked = asked or name in GUESS.findall(built.source)
        before += [] if asked else [outputs_of(built)]  # from then on it is the measurement
    pytest.fail(f"{lesson}: the built solution has no reveal of {name!r}; run trainlean build")


def tells(value, unit):
    """A pattern for `value` in its `unit`; a value of three digits or more tells by itself."""
    digits = len(re.sub(r"\D", "", value).lstrip("0"))
    spoken = [re.escape(value)]
    if value.isdigit() and int(value) < len(WORDS):
        spoken.append(WORDS[int(value)])
    number = rf"(?<![\w.,])(?:{'|'.join(spoken)})(?![\w]|[.,]\d)"
    if digits > 2:
        return re.compile(number)
    return re.compile(rf"{number}\s+{re.escape(unit)}", re.IGNORECASE)


@pytest.mark.parametrize("name", GUESSES)
def test_no_value_before_its_reveal(name):
    value, unit, printed = answer(name)
    pattern = tells(value, unit)
    texts = [cell.source for _, cell, _ in course()[: position(REVEAL, name)]]
    found = [match[0] for text in texts + printed for match in pattern.finditer(text)]
    if name in VALUE_STANDS:
        assert found, "it no longer stands earlier: take it from VALUE_STANDS"
    else:
        assert not found, f"{value} {unit} stands before it is asked for"


@pytest.mark.parametrize("name", TELLING)
def test_no_telling_words_before_the_reveal(name):
    after = position(REVEAL, name)
    for words in TELLING[name]:
        at = [n for n, (_, cell, _) in enumerate(course()) if re.search(words, cell.source)]
        assert at, f"{words!r} stands nowhere: mend the list"
        early = [course()[n][0] for n in at if n < after]
        assert not early, f"{words!r} gives {name!r} away in {early}"


def lines_of(source):
    region = source.split("# BEGIN SOLUTION")[1].split("# END SOLUTION")[0]
    lines = [" ".join(line.split("#")[0].split()) for line in region.splitlines()]
    return [line for line in lines if len(line) > 12]


def share(lines, source):
    text = " ".join(source.split())
    return sum(line in text for line in lines) / max(len(lines), 1)


@pytest.mark.parametrize("name", all_exercises())
def test_no_solution_before_its_exercise(name):
    at = solutions()[name]
    lines = lines_of(course()[at][2])
    most = max(share(lines, cell.source) for _, cell, _ in course()[:at])
    if name in SHOWN_BEFORE:
        assert most > MOST, "it no longer stands earlier: take it from SHOWN_BEFORE"
    else:
        assert most <= MOST, "an earlier cell shows the greater part of the solution"


@pytest.mark.parametrize("name", all_exercises())
def test_no_solution_in_plain_view_right_after_its_check(name):
    """In the five cells after the exercise (its check, and what is on the screen with it), unless folded."""
    at = solutions()[name]
    lines = lines_of(course()[at][2])
    for _, cell, _ in course()[at + 1 : at + 6]:
        folded = cell.metadata.get("jupyter", {}).get("source_hidden")
        if not folded and name not in SHOWN_AFTER:
            assert share(lines, cell.source) < 0.5, cell.source[:200]


def test_what_is_listed_is_there():
    assert {*SHOWN_BEFORE, *SHOWN_AFTER} <= solutions().keys()
    assert {*TELLING, *VALUE_STANDS} <= {*GUESSES}


def test_the_patterns_find_what_they_look_for():
    assert tells("4", "times").search("it is four times as long")
    assert tells("0.5", "times").search("found 0.5 times") and tells("10.62", "x").search("10.62")
    assert not tells("4", "times").search("24 times, 4.5 times, 4 of them")
    assert not tells("10.62", "x").search("110.62 or 10.625")
    assert share(["a = b + c", "return a"], "x\n  a = b  + c") == 0.5
