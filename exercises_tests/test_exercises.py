"""Holds every exercise of the course to its word: the solution is right, every mistake is rejected as itself."""

import itertools

import pytest

from trainlean.exercises.checking import answer_from
from trainlean.exercises.exercise import (
    NOT_ATTEMPTED,
    RIGHT,
    WRONG,
    all_exercises,
    judge,
    same,
    see,
    see_oracle,
    verdict,
)
from trainlean.workspace import COURSE

EXERCISES = all_exercises()
MISTAKES = [
    (name, mistake.name, number)
    for name, exercise in EXERCISES.items()
    for mistake in exercise.mistakes
    for number in range(len(mistake.answers))
]
SEEDS = (0, 20_261_121)
MEMORY = {}  # what was seen of oracles and mistakes: each is probed once, not once for each mistake after it


@pytest.fixture(autouse=True)
def checkable(request):
    """Skip an exercise that this machine cannot check."""
    exercise = EXERCISES[request.node.callspec.params["name"]]
    if why := exercise.requires and exercise.requires():
        pytest.skip(why)


def find_mistake(exercise, name):
    return next(mistake for mistake in exercise.mistakes if mistake.name == name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", EXERCISES)
def test_solution_is_right(name, seed):
    exercise = EXERCISES[name]
    found = judge(
        exercise, answer_from(COURSE / "solutions" / f"{exercise.notebook}.ipynb", name), seed
    )
    assert found.outcome == RIGHT, found
    assert found.points == exercise.points > 0


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_is_not_attempted(name):
    exercise = EXERCISES[name]
    found = judge(
        exercise, answer_from(COURSE / "lessons" / f"{exercise.notebook}.ipynb", name), seed=1
    )
    assert found.outcome == NOT_ATTEMPTED, found
    assert found.points == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "mistake", "number"), MISTAKES)
def test_mistake_is_rejected_as_itself(name, mistake, number, seed):
    exercise = EXERCISES[name]
    found = verdict(
        exercise, see(exercise, find_mistake(exercise, mistake).answers[number], seed), seed, MEMORY
    )
    assert found.outcome == WRONG, found
    assert found.mistake == mistake, found
    assert found.points == 0


@pytest.mark.parametrize("name", EXERCISES)
def test_mistakes_look_different_from_each_other(name):
    exercise = EXERCISES[name]
    seen = {
        mistake.name: [see(exercise, answer, seed=2).observation for answer in mistake.answers]
        for mistake in exercise.mistakes
    }
    for one, other in itertools.combinations(seen, 2):
        assert not any(same(first, second) for first in seen[one] for second in seen[other]), (
            f"{one} and {other} look the same"
        )


@pytest.mark.parametrize("name", EXERCISES)
def test_other_right_ways_pass(name):
    exercise = EXERCISES[name]
    assert exercise.also_right, "list at least one other right way"
    for answer in exercise.also_right:
        assert judge(exercise, answer, seed=3).outcome == RIGHT, answer


@pytest.mark.parametrize("name", EXERCISES)
def test_inputs_are_fresh(name):
    oracle = EXERCISES[name]
    assert not same(see_oracle(oracle, seed=4), see_oracle(oracle, seed=5)), (
        "a memorised answer would pass"
    )


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_are_whole(name):
    exercise = EXERCISES[name]
    assert exercise.mistakes, "an exercise needs a known mistake"
    assert len(exercise.hints) >= 2
    assert exercise.hints[0].endswith("?"), "the first hint asks"
    for mistake in exercise.mistakes:
        assert mistake.why.endswith("."), mistake.name
        assert mistake.hint.endswith("?"), f"the hint of {mistake.name} must be a question"
