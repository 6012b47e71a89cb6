"""What failed for want of processes, memory or time is probed again alone, and only then counts."""

import numpy as np
import pytest

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.seeing import Seen, pack, see
from trainlean.exercises.verdicts import CRASHED, RIGHT
from trainlean.grading.plan import Answers, Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import UNPROTECTED
from trainlean.grading.submissions import File, Submission

EXERCISE = Exercise(
    "numbers",
    2,
    lambda answer, seed: {"the numbers": answer(seed)},
    lambda seed: {"the numbers": np.arange(5) + seed},
    mistakes=(),
    hints=("Which?", "These."),
    also_right=(),
    notebook="1_unit/1_a",
)
PLAN = Plan({"numbers": EXERCISE}, 7, UNPROTECTED)
GOOD = ({"cells": [1]}, pack(see(EXERCISE, lambda seed: np.arange(5) + seed, 7)))
STARVED = {
    "processes": ({"cells": [1]}, pack(Seen({"raised": "RuntimeError: can't start new thread"}))),
    "memory": ({"outcome": CRASHED, "message": "Killed.", "short_of": "memory"}, b""),
    "time": ({"outcome": CRASHED, "message": "Too long.", "short_of": "time"}, b""),
    "its worker": ({"outcome": CRASHED, "message": "Ended.", "short_of": "its worker"}, b""),
}


def graded(*rounds, **more):
    """The class of ada and bob, whose answers are those of each round in turn; and who was collected in it."""
    submissions = [
        Submission(name, [File(f"{name}/a.ipynb", None, lambda: b"{}")]) for name in ("ada", "bob")
    ]
    told = []

    def collect(tasks):
        answers = rounds[len(told)]
        told.append([])
        for number, _, where in tasks:
            told[-1].append(where)
            name = where.split("/")[0]
            yield number, Answers("", ("numbers",), {"numbers": answers[name]}), 0.1

    found = {one.learner: one for one in grade_all(submissions, PLAN, collect=collect, **more)}
    return found, told


@pytest.mark.parametrize("what", STARVED)
def test_it_is_probed_again_and_the_gradebook_says_so(what):
    found, told = graded({"ada": STARVED[what], "bob": GOOD}, {"ada": GOOD})
    assert told == [["ada/a.ipynb", "bob/a.ipynb"], ["ada/a.ipynb"]]
    assert [found[name].verdicts[0].outcome for name in ("ada", "bob")] == [RIGHT, RIGHT]
    assert found["bob"].notes == () and f"for want of {what}" in found["ada"].notes[0]


def test_the_second_time_counts_as_it_is():
    found, told = graded({"ada": STARVED["time"], "bob": GOOD}, {"ada": STARVED["time"]})
    assert len(told) == 2 and found["ada"].verdicts[0].outcome == CRASHED


def test_nothing_is_probed_again_without_need():
    wrong = ({"cells": [1]}, pack(Seen({"raised": "ValueError: no"})))
    found, told = graded({"ada": wrong, "bob": GOOD})
    assert len(told) == 1 and found["ada"].notes == ()
