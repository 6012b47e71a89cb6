"""Answers that were written without a look at the known mistakes, in other styles than the solutions': what becomes of them.

strangers/ has a file for each lesson, in the percent format. Each cell is an answer to one exercise as a learner would have
typed it into the exercise's cell; its head says which exercise and what the right verdict is:

    # %% train_accumulated: right
    # %% train_accumulated: wrong, loss not divided      a known mistake, by its name
    # %% train_accumulated: wrong                        no known mistake: told by the first difference, under no name

and `, open` at its end where the check is known to be at fault today: such a case must fail, so that it is not forgotten.

Whoever adds a mistake must not look here, and whoever adds an answer here must not look at the mistakes' code.
"""

import re
from pathlib import Path

import pytest
from seen_of_exercises import CACHE

from trainlean.exercises.finding import all_exercises
from trainlean.exercises.seeing import see
from trainlean.exercises.solutions import answer_in
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG, verdict

FILES = sorted(Path(__file__).parent.glob("strangers/*/*.py"))
HEAD = re.compile(r"^# %% (\w+): (right|wrong)(?:, (?!open$)(.+?))?(, open)?\s*$", re.MULTILINE)
SEED = 0  # that of exercises_tests/test_exercises.py, which has seen the oracles and the mistakes


def strangers():
    """(exercise, outcome, mistake, source) of every answer, with the file and line where it begins."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        heads = [*HEAD.finditer(text)]
        assert len(heads) == len(re.findall("^# %%", text, re.MULTILINE)), f"{path}: a head is off"
        ends = [head.start() for head in heads[1:]] + [len(text)]
        for head, end in zip(heads, ends, strict=True):
            place = f"{path.parent.name}/{path.stem}:{text[: head.start()].count(chr(10)) + 1}"
            known = [pytest.mark.xfail(strict=True, reason="an open case")] if head[4] else []
            values = (head[1], head[2], head[3], text[head.end() : end].strip())
            yield pytest.param(*values, id=f"{head[1]}-{place}", marks=known)


@pytest.mark.parametrize(("name", "outcome", "mistake", "source"), list(strangers()))
def test_a_strangers_answer_gets_its_verdict(name, outcome, mistake, source):
    exercise = all_exercises()[name]
    if why := exercise.requires and exercise.requires():
        pytest.skip(why)
    found = verdict(exercise, see(exercise, answer_in(exercise, source), SEED), SEED, CACHE)
    assert (found.outcome == RIGHT) == (outcome == RIGHT), found
    assert found.outcome != NOT_ATTEMPTED
    if outcome != RIGHT:
        assert found.outcome in (WRONG, CRASHED)
        assert found.mistake == (mistake or ""), found


@pytest.mark.parametrize("name", all_exercises())
def test_every_exercise_has_three_right_strangers_and_three_whose_mistake_is_stated(name):
    answers = [parameters.values for parameters in strangers() if parameters.values[0] == name]
    assert sum(outcome == RIGHT for _, outcome, *_ in answers) >= 3
    assert sum(outcome == WRONG and bool(mistake) for _, outcome, mistake, _ in answers) >= 3
