"""Holds every exercise of the course to its word: the solution is right, every mistake is rejected as itself."""

import ast
import os
from unittest import mock

import pretended_card
import pytest
import torch
from seen_of_exercises import CACHE

from exercises_tests.probing import accelerate
from trainlean.exercises.comparing import same
from trainlean.exercises.finding import all_exercises
from trainlean.exercises.seeing import see
from trainlean.exercises.solutions import answer_in, answer_of, edited_solution
from trainlean.exercises.verdicts import NOT_ATTEMPTED, RIGHT, WRONG, judge, see_oracle, verdict
from trainlean.grading.probes import probe_files
from trainlean.notebooks.notebook import cut

EXERCISES = all_exercises()
MISTAKES = [
    (name, mistake.name, number)
    for name, exercise in EXERCISES.items()
    for mistake in exercise.mistakes
    for number in range(len(mistake.answers))
]
# At night a list of seeds.
SEEDS = [int(seed) for seed in os.environ.get("TRAINLEAN_SEEDS", "0").split()]


@pytest.fixture(autouse=True)
def checkable(request):
    """Skip an exercise that this machine cannot check."""
    exercise = EXERCISES[request.node.callspec.params["name"]]
    if why := exercise.requires and exercise.requires():
        pytest.skip(why)


def find_mistake(exercise, name):
    return next(mistake for mistake in exercise.mistakes if mistake.name == name)


@pytest.fixture
def card(seed, monkeypatch):
    """A pretended card, of one kind for even seeds and of the other for odd ones: what the course's own answers move there fails."""
    pretended_card.forget()
    monkeypatch.setattr(accelerate, "ON_THE_CPU", "false")
    pretended_card.pretend(pretended_card.KINDS[seed % 2], monkeypatch.setattr)
    yield
    monkeypatch.undo()
    pretended_card.forget()


@pytest.mark.parametrize("seed", (*SEEDS, 20_261_121))
@pytest.mark.parametrize("name", EXERCISES)
def test_solution_is_right(name, seed, card):
    """Also where there is a card that nobody asked for."""
    exercise = EXERCISES[name]
    found = judge(exercise, answer_of(exercise, {}), seed)
    assert found.outcome == RIGHT, found
    assert found.points == exercise.points > 0


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["train_with_accelerator"])
def test_an_accelerator_that_does_not_say_where_goes_to_the_card(name, seed, card):
    """So that a solution's would be seen, as probes set Accelerate up; learners' answers stay on the CPU."""
    from accelerate import Accelerator

    nothing: dict = {}

    def prepared():
        with accelerate.fresh_accelerate():
            return Accelerator(**nothing).prepare(torch.nn.Linear(1, 1)).weight.device.type

    with pytest.raises(pretended_card.MovedToTheCard):
        prepared()
    with mock.patch.object(accelerate, "ON_THE_CPU", "true"):
        assert prepared() == "cpu"


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_is_not_attempted(name):
    exercise = EXERCISES[name]
    found = judge(exercise, answer_in(exercise, cut(edited_solution(exercise, {}))), seed=1)
    assert found.outcome == NOT_ATTEMPTED, found
    assert found.points == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "mistake", "number"), MISTAKES)
def test_mistake_is_rejected_as_itself(name, mistake, number, seed):
    """And as none of those before it: so no two look alike, which every pair is asked."""
    exercise = EXERCISES[name]
    seen = see(exercise, answer_of(exercise, find_mistake(exercise, mistake).answers[number]), seed)
    if "raised" not in seen.observation:
        CACHE[name, seed, (mistake, number)] = seen.observation
    found = verdict(exercise, seen, seed, CACHE)
    assert found.outcome == WRONG, found
    assert found.mistake == mistake, found
    assert found.points == 0


@pytest.mark.parametrize("name", EXERCISES)
def test_other_right_ways_pass(name):
    exercise = EXERCISES[name]
    assert exercise.also_right, "list at least one other right way"
    for answer in exercise.also_right:
        found = judge(exercise, answer_of(exercise, answer), seed=3)
        assert found.outcome == RIGHT, (answer, found)


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


@pytest.mark.parametrize("name", EXERCISES)
def test_a_probe_is_a_file_to_copy(name):
    """The sandbox gets the probes' file and those in probing/: neither may lead to an oracle, a mistake or a solution."""
    sent = probe_files(EXERCISES[name])["modules"]
    for module, source in sent.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                inside = "." * node.level + (node.module or "")
                assert not node.level and (
                    not inside.startswith("exercises_tests") or inside in sent
                ), f"{module} imports {inside}, which is not sent"
