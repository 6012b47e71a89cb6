"""Verdicts from what a worker brought: nothing in it is believed, whatever process wrote it."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.seeing import Seen, pack, see
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT
from trainlean.grading.judging import (
    HEAD_LIMIT,
    NAMES_KEPT,
    NUMBERS_KEPT,
    TEXT_LIMIT,
    clean_text,
    judge_answers,
    noted,
    trusted_form,
)
from trainlean.grading.plan import Answers, Plan
from trainlean.grading.sandbox import UNPROTECTED, Limits

LIMITS = Limits(answer=100_000)
STORED = zipfile.ZIP_STORED


def probe(answer, seed):
    return {"the numbers": answer(seed)}


EXERCISE = Exercise(
    "numbers",
    2,
    probe,
    lambda seed: {"the numbers": np.arange(5) + seed},
    mistakes=(),
    hints=("Which?", "These."),
    also_right=(),
    notebook="1_unit/1_a",
)


def right(seed):
    return np.arange(5) + seed


def judged(head, blob, exercise=EXERCISE):
    """The verdict on one answer: what a worker says about it, and the packed observation."""
    [verdict], observations = judge_answers(
        Answers("", ("numbers",), {"numbers": (head, blob)}),
        Plan({"numbers": exercise}, 7, UNPROTECTED, LIMITS),
        {},
    )
    return verdict, observations


def packed(answer=right):
    return pack(see(EXERCISE, answer, 7))


def with_member(blob, name, data, method=zipfile.ZIP_DEFLATED):
    """The archive with a file more, small as long as it is packed."""
    file = io.BytesIO(blob)
    with zipfile.ZipFile(file, "a", method) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def test_an_honest_answer_is_right_and_its_observation_is_kept():
    verdict, observations = judged({"cells": [3]}, packed())
    assert (verdict.outcome, verdict.points, verdict.message) == (RIGHT, 2, "Right.")
    assert observations["numbers"]["the numbers"].tolist() == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("cells", [None, "many", {"1": 2}, [1, "2", None]])
def test_cells_that_are_no_numbers_are_passed_over(cells):
    assert judged({"cells": cells}, packed())[0].message == "Right."


def test_of_the_cells_that_are_named_only_some_are_told():
    message = judged({"cells": list(range(1000))}, packed())[0].message
    assert "is defined in cells 0, 1," in message and "19; the last one counts" in message


def test_an_outcome_without_an_observation_earns_nothing():
    said = {
        outcome: judged({"outcome": outcome, "message": "\x1b[31mred"}, b"")[0]
        for outcome in (RIGHT, CRASHED, NOT_ATTEMPTED)
    }
    assert [(verdict.outcome, verdict.points, verdict.message) for verdict in said.values()] == [
        (CRASHED, 0, "?[31mred")
    ] * 2 + [(NOT_ATTEMPTED, 0, "?[31mred")]


def test_an_error_of_many_words_is_told_as_one():
    """A library may name a whole tensor; the answer is told as the error that it is."""

    def answer(seed):
        raise ValueError(f"first {'x' * 10_000_000} last")

    blob = packed(answer)
    assert len(blob) < LIMITS.answer
    verdict, _ = judged({}, blob)
    assert verdict.outcome == CRASHED and "raised ValueError: first xxx" in verdict.message
    assert "last" in verdict.traceback


def test_nothing_at_all_is_told():
    assert judged({}, b"")[0].message == "numbers gave no answer."


FORGED = {
    "no archive": b"nonsense",
    "an archive of something else": with_member(b"", "x", b""),
    "an archive that grows": with_member(packed(), "more.npy", bytes(200_000)),
    "an archive that says it does not grow": with_member(packed(), "x", b"", zipfile.ZIP_BZIP2),
    "a long list of parts": with_member(packed(), "x", b"PK\x01\x02" * NAMES_KEPT, STORED),
    "long words": pack(Seen({"x" * HEAD_LIMIT: 1})),
    "a large array": pack(Seen({"the numbers": np.zeros(20_000)})),
    "an array of texts": pack(Seen({"the numbers": np.array(["a", "b"])})),
    "a list": pack(Seen({"the numbers": [1, 2]})),
    "too many names": pack(Seen({f"{number}": 1 for number in range(NAMES_KEPT + 1)})),
}


def test_an_answer_is_looked_at_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr("trainlean.grading.judging.unpack", lambda blob: pytest.fail("unpacked"))
    looked = ("an archive that says it does not grow", "a long list of parts", "long words")
    wide = Plan({"numbers": EXERCISE}, 7, UNPROTECTED, Limits())
    for name in looked:
        answers = Answers("", ("numbers",), {"numbers": ({}, FORGED[name])})
        [verdict], _ = judge_answers(answers, wide, {})
        assert verdict.outcome == CRASHED and "no observation" in verdict.message, name


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_answer_is_no_answer(name):
    verdict, observations = judged({"cells": [1]}, FORGED[name])
    assert (verdict.outcome, verdict.points) == (CRASHED, 0) and "no observation" in verdict.message
    assert observations == {}


def test_texts_are_made_fit_to_be_shown():
    seen = trusted_form(
        Seen(
            {"a\x07": "b\x1b[2J", "n": np.ones(2), "none": None}, traceback="c\x00", printed="d\r"
        ),
        LIMITS,
    )
    assert list(seen.observation) == ["a?", "n", "none"] and seen.observation["a?"] == "b?[2J"
    assert (seen.traceback, seen.printed) == ("c?", "d?")
    kept = clean_text("x" * TEXT_LIMIT + "the end\n")
    assert len(kept) == TEXT_LIMIT and kept.endswith("the end\n")


def test_long_arrays_are_noted_by_their_beginning():
    long = np.arange(NUMBERS_KEPT + 1)
    short = {"few": np.arange(3), "many": long, "square": np.ones((2, 2)), "word": "w"}
    assert noted(short) == {
        "few": [0, 1, 2],
        "many": {"shape": [len(long)], "first": long[:-1].tolist()},
        "square": {"shape": [2, 2], "first": [1.0] * 4},
        "word": "w",
    }


def test_an_oracle_that_fails_once_is_asked_again():
    failed = []

    def oracle(seed):
        if not failed:
            failed.append(seed)
            raise TimeoutError("busy")
        return EXERCISE.oracle(seed)

    assert judged({"cells": [1]}, packed(), replace(EXERCISE, oracle=oracle))[0].outcome == RIGHT
