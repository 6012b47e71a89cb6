"""The known mistakes as slides with choices, and what a class did, as one HTML file that needs no network."""

import difflib
import inspect
import random
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, select_autoescape

from trainlean.exercises.exercise import Exercise, Mistake
from trainlean.exercises.finding import all_exercises
from trainlean.exercises.solutions import edited_solution
from trainlean.exercises.verdicts import RIGHT
from trainlean.grading.classroom import due
from trainlean.grading.sheets import plain_cell, read_csv
from trainlean.grading.tally import HEADER
from trainlean.notebooks.notebook import BEGIN, END
from trainlean.pictures.cards import prose_html
from trainlean.pictures.widget import WEB
from trainlean.workspace import CourseError, write_whole

WRONG_REASONS = 3  # beside the right one
MOST_BARS = 8  # of a histogram; the rest is one more
NOTHING = ("no notebook", "")  # as the tally has it
Counts = dict[str, Counter]  # by exercise: how many learners had each (outcome, mistake)


def write_deck(
    path: Path, tally: Path | None = None, lessons: Sequence[str] = (), most: int = 3
) -> int:
    """Write the slides, at the most `most` of an exercise, and return how many there are.

    `tally` is a class's grades_mistakes.csv: only mistakes that were made are shown then, the most frequent first. `lessons` are
    lessons or units; without them every exercise of the tally or the course. CourseError: a file that is no tally or cannot be
    written, or is a notebook, no such lesson, no slide.
    """
    if path.suffix.lower() == ".ipynb":
        raise CourseError(
            f"{path} is a notebook, which the slides would replace; give --output a name that ends in .html."
        )
    counts = read_counts(tally) if tally else {}
    slides = [
        slide
        for exercise in due(all_exercises(), lessons).values()
        if not tally or exercise.name in counts
        for slide in slides_of(exercise, counts.get(exercise.name, Counter()), most)
    ]
    if not slides:
        raise CourseError(
            f"{tally} counts no mistake that the course knows; without it `trainlean deck` makes slides of all of them."
        )
    template = Environment(autoescape=select_autoescape(default=True)).from_string(
        (WEB / "deck.html.j2").read_text(encoding="utf-8")
    )
    page = template.render(slides=slides, script=(WEB / "deck.js").read_text(encoding="utf-8"))
    try:
        write_whole(path, page)
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}.") from None
    return len(slides)


def read_counts(path: Path) -> Counts:
    """The learners of each outcome and mistake, by exercise. CourseError: the file is no such table."""
    header, *lines = read_csv(path)
    if header != HEADER:
        raise CourseError(
            f"{path} is no table of mistakes: its first line should be {','.join(HEADER)}. `trainlean grade` writes one beside the gradebook."
        )
    counts: Counts = {}
    for number, line in enumerate(lines, start=2):
        if not any(line):
            continue
        if len(line) != len(HEADER) or not line[-1].isdecimal():
            raise CourseError(f"{path}: line {number} should end with a number of learners.")
        exercise, outcome, mistake = map(plain_cell, line[:-1])
        counts.setdefault(exercise, Counter())[outcome, mistake] += int(line[-1])
    return counts


def slides_of(exercise: Exercise, seen: Counter, most: int) -> list[dict]:
    """The slides of one exercise: of the mistakes that were made, or, where no class is known, of the first ones.

    Who handed nothing in is not counted: most of a class, where each lesson has its own day.
    """
    whole_class, seen = seen, Counter({key: seen[key] for key in seen if key != NOTHING})
    made = {mistake: number for (_, mistake), number in seen.most_common() if mistake}
    known = {mistake.name: mistake for mistake in exercise.mistakes}
    names = [name for name in made if name in known] if whole_class else list(known)
    return [
        {
            "exercise": exercise.name,
            "lesson": exercise.notebook,
            "name": known[name].name,
            "made": made.get(name, 0),
            "learners": sum(seen.values()),
            "lines": marked_lines(exercise, known[name]),
            "options": _options(exercise, known[name]),
            "hint": prose_html(known[name].hint),
            "bars": _bars(seen, name),
        }
        for name in names[:most]
    ]


def marked_lines(exercise: Exercise, mistake: Mistake) -> list[tuple[str, bool]]:
    """The mistake as a learner would have typed it: its lines, and whether each is none of the solution's."""
    answer = mistake.answers[0]
    if not isinstance(answer, dict):
        source = inspect.getsource(answer) if callable(answer) else f"{exercise.name} = {answer!r}"
        return [(line, False) for line in textwrap.dedent(source).rstrip().splitlines()]
    right, wrong = (_plain(edited_solution(exercise, edit)) for edit in ({}, answer))
    same = difflib.SequenceMatcher(a=right, b=wrong, autojunk=False).get_matching_blocks()
    kept = {block.b + i for block in same for i in range(block.size)}
    return [(line, number not in kept) for number, line in enumerate(wrong)]


def _plain(source: str) -> list[str]:
    return [line for line in source.strip().splitlines() if line.strip() not in (BEGIN, END)]


def _options(exercise: Exercise, mistake: Mistake) -> list[dict]:
    """The reason why it is wrong, among those of other mistakes of the exercise."""
    others = list({one.why: 0 for one in exercise.mistakes if one.why != mistake.why})
    draw = random.Random(f"{exercise.name} {mistake.name}")
    reasons = [mistake.why, *draw.sample(others, min(WRONG_REASONS, len(others)))]
    draw.shuffle(reasons)
    return [
        {"letter": letter, "html": prose_html(why), "right": why == mistake.why}
        for letter, why in zip("abcd", reasons, strict=False)
    ]


def _bars(seen: Counter, name: str) -> list[dict]:
    """What the class did: right, each mistake, and each other outcome, the most frequent first."""
    largest = max(seen.values(), default=1)
    bars: list[dict[str, Any]] = [
        {
            "label": mistake or ("no known mistake" if outcome == "wrong" else outcome),
            "number": number,
            "share": round(100 * number / largest, 1),
            "kind": "this" if mistake == name else "right" if outcome == RIGHT else "",
        }
        for (outcome, mistake), number in seen.most_common()
    ]
    shown = [bar for i, bar in enumerate(bars) if i < MOST_BARS or bar["kind"]]
    if rest := sum(bar["number"] for bar in bars if bar not in shown):
        shown.append({"label": "other", "number": rest, "share": round(100 * rest / largest, 1), "kind": ""})  # fmt: skip
    return shown
