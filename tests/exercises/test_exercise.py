"""The engine that judges answers: tested on exercises made up here."""

import contextlib
import random
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainlean.exercises import verdicts
from trainlean.exercises.comparing import equal, first_difference, same
from trainlean.exercises.exercise import Exercise, Mistake
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.seeing import Seen, pack, plain, see, unpack
from trainlean.exercises.verdicts import (
    CANNOT,
    CRASHED,
    NOT_ATTEMPTED,
    RIGHT,
    WRONG,
    judge,
    verdict,
)
from trainlean.workspace import COURSE, CourseError


def draw(seed):
    return np.random.default_rng(seed).integers(2, 100, size=5)


def probe(answer, seed):
    numbers = draw(seed)
    return {"the sum": answer(numbers), "the numbers": numbers}


def returns_nothing(numbers):
    return None


total = Exercise(
    name="total",
    points=2,
    probe=probe,
    oracle=lambda seed: {"the sum": int(draw(seed).sum()), "the numbers": draw(seed)},
    truth="numpy's",
    mistakes=(
        Mistake(
            "last number forgotten",
            lambda numbers: int(numbers[:-1].sum()),
            why="The last one counts too.",
            hint="Where does the slice end?",
        ),
        Mistake(
            "nothing returned",
            returns_nothing,
            why="There is no return.",
            hint="What does a function without return give?",
        ),
        Mistake(
            "divides by zero",
            lambda numbers: 1 // 0,
            why="Nothing is divided here.",
            hint="Why divide?",
        ),
    ),
    hints=("What is a sum?", "Add them all."),
    also_right=(lambda numbers: sum(int(number) for number in numbers),),
)


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError


class NoException(BaseException):
    """As pytest.fail raises one."""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (SystemExit(1), "SystemExit: it ends the program"),
        (Wordless(), "Wordless: its words"),
        (NoException("no"), "NoException: no"),
    ],
)
def test_an_answer_that_ends_the_program_or_has_no_words_is_told(raised, told):
    def ends(numbers):
        raise raised

    found = judge(total, ends, seed=1)
    assert found.outcome == CRASHED
    assert told in found.message


def test_right_in_two_ways():
    for answer in (lambda numbers: int(numbers.sum()), *total.also_right):
        verdict = judge(total, answer, seed=1)
        assert (verdict.outcome, verdict.points, verdict.message) == (RIGHT, 2, "Right.")
        assert str(verdict) == "total: right, 2 of 2 points"


@pytest.mark.parametrize("number", range(3))
def test_each_mistake_by_name(number):
    mistake = total.mistakes[number]
    verdict = judge(total, mistake.answers[0], seed=1)
    assert (verdict.outcome, verdict.points, verdict.mistake) == (WRONG, 0, mistake.name)
    assert (verdict.why, verdict.hint) == (mistake.why, mistake.hint)
    assert (
        str(verdict)
        == f"total: wrong, 0 of 2 points\n  {verdict.message}\n  A known mistake with the same results: {mistake.name}\n  Why: {mistake.why}\n  Hint: {mistake.hint}"
    )


def test_message_says_what_was_seen():
    right = int(draw(1).sum())
    verdict = judge(total, lambda numbers: right + 1, seed=1)
    assert verdict.message == f"The sum is {right + 1}; numpy's is {right} (seed 1)."
    assert verdict.mistake == ""
    assert verdict.hint == ""  # it might speak of what is right


def test_crash_keeps_the_learners_traceback_only():
    def answer(numbers):
        raise KeyError("lost")

    verdict = judge(total, answer, seed=1)
    assert verdict.outcome == CRASHED
    assert re.fullmatch(
        r"Your answer raised KeyError: 'lost' \(line \d+: `raise KeyError\(\"lost\"\)`\)",
        verdict.message,
    )
    assert 'raise KeyError("lost")' in verdict.traceback
    assert "trainlean/exercises/exercise.py" not in verdict.traceback


def raises(error):
    def answer(numbers):
        raise error

    return answer


@pytest.mark.parametrize("answer", [None, ..., raises(NotImplementedError())])
def test_stub_is_not_attempted(answer):
    assert judge(total, answer, seed=1).outcome == NOT_ATTEMPTED


def test_a_librarys_not_implemented_is_a_crash():
    assert judge(total, raises(NotImplementedError("no such kernel")), seed=1).outcome == CRASHED


def test_print_is_kept_aside(capsys):
    def answer(numbers):
        print("looking at", len(numbers))
        return 0

    assert judge(total, answer, seed=1).printed == "looking at 5\n"
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_what_was_printed_before_an_interrupt_is_kept():
    def answer(numbers):
        print("step 1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupt:
        judge(total, answer, seed=1)
    assert interrupt.value.printed == "step 1\n"


def products(answer, seed):
    weight = torch.nn.Linear(3, 1).weight
    product = weight @ torch.ones(3, 2)
    product.sum().backward()
    return {"the type": str(product.dtype), "the sum": answer(weight.grad)}


trained = replace(
    total,
    probe=products,
    oracle=lambda seed: {"the type": "torch.float32", "the sum": 6.0},
    mistakes=(),
    also_right=(),
)
ELSEWHERE = {
    "another type": lambda: contextlib.nullcontext(torch.set_default_dtype(torch.float64)),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "a device": lambda: torch.device("meta"),
    "a default device": lambda: contextlib.nullcontext(torch.set_default_device("meta")),
}


@pytest.fixture
def torch_as_it_was():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.usefixtures("torch_as_it_was")
def test_what_an_earlier_cell_has_set_of_torch_changes_no_verdict(name):
    with ELSEWHERE[name]():
        set_there = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        assert judge(trained, lambda gradient: float(gradient.sum()), seed=1).outcome == RIGHT
        assert set_there == (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
        )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "default type is torch.float64"),
        (lambda: torch.set_default_device("meta"), "on the device meta"),
        (lambda: torch.set_grad_enabled(False), "gradients are switched off"),
    ],
)
@pytest.mark.usefixtures("torch_as_it_was")
def test_what_an_answer_changes_of_torch_is_told_and_does_not_stay(change, told):
    def answer(gradient):
        change()
        return 0.0

    found = judge(trained, answer, seed=1)
    assert found.outcome == WRONG and told in found.message
    assert judge(trained, lambda gradient: float(gradient.sum()), seed=1).outcome == RIGHT
    assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float32, "cpu")
    assert torch.is_grad_enabled()


def test_a_function_that_does_not_run_when_it_is_called_is_told():
    async def waits(numbers):
        return int(numbers.sum())

    def gives(numbers):
        yield int(numbers.sum())

    for answer, told in ((waits, "`async def`"), (gives, "`yield`")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what was never awaited
            found = judge(total, answer, seed=1)
        assert found.outcome != RIGHT and told in found.message


def test_a_very_long_error_is_cut():
    assert len(judge(total, raises(ValueError("x" * 10**6)), seed=1).message) < 10_000


def test_probing_leaves_randomness_as_it_was():
    def answer(numbers):
        torch.rand(3), random.random(), np.random.rand()
        return 0

    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    judge(total, answer, seed=1)
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def test_a_seed_decides_what_is_drawn_and_warnings_are_quiet():
    def draws(answer, seed):
        warnings.warn("noise", stacklevel=1)
        return {"torch": torch.rand(1).item(), "random": random.random(), "numpy": np.random.rand()}

    drawing = replace(total, probe=draws)
    with warnings.catch_warnings(record=True) as heard:
        first, again, other = (see(drawing, print, seed).observation for seed in (1, 1, 2))
    assert first == again and not set(first.values()) & set(other.values())
    assert heard == []


def test_values_are_seen_as_numbers_texts_and_arrays():
    assert plain(torch.ones(2, requires_grad=True)).tolist() == plain([1, 1.0]).tolist() == [1, 1]
    assert type(plain(np.int64(3))) is int and type(plain(np.float32(3))) is float
    assert plain([]) == "[]" and plain({"a": 1}) == "{'a': 1}"
    for odd in (np.array([None, 1]), np.array(["a"]), np.array([1j])):
        assert plain(odd) == repr(odd)
    assert plain(("x" * 300,)) == f"('{'x' * 198}..."


def test_values_that_cannot_travel_are_told():
    """Else the process that runs an answer ends on its way home, and nobody learns what was returned."""

    class Mute:
        def __repr__(self):
            raise KeyError("no")

    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert plain(10**20_000) == "an integer of 66,439 bits" and plain(2**70) == 2**70
    assert plain([10**30, 1]) == f"[{10**30}, 1]"
    assert plain(Mute()) == "a Mute that cannot be shown (KeyError)"
    assert plain(deep) == "a list that cannot be shown (RecursionError)"


@pytest.mark.parametrize(
    "value",
    [torch.ones(2, dtype=torch.bfloat16), torch.eye(2).to_sparse()],
    ids=["bf16", "sparse"],
)
def test_a_tensor_that_is_no_array_is_told(value):
    shows = replace(total, probe=lambda answer, seed: {"the sum": answer}, also_right=())
    judged = judge(shows, value, seed=1)
    assert judged.outcome == CRASHED
    assert judged.message.startswith(
        "What your answer returned or changed could not be used (TypeError"
    )


def test_equality_of_values():
    assert equal(1, 1) and not equal(1, 2)
    assert not equal(1_000_000, 1_000_001) and equal(
        1_000_000.0, 1_000_001.0
    )  # a count is right or wrong
    assert equal(np.array([1e3, 1e-3]), np.array([1e3, 0.0])) and not equal(
        np.array([1.0, 1e-3]), np.array([1.0, 0.0])
    )
    assert not equal(1, True)
    assert equal(1.0, 1.00001) and not equal(1.0, 1.001)
    assert equal(np.array([1.0, 1e-9]), np.array([1.0, 0.0]))
    assert not equal(np.array([1.0]), np.array([1.0, 2.0]))
    assert not equal(np.array([np.nan]), np.array([1.0]))
    assert not equal(None, 0)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ({"a": np.ones(20) * 4}, "a is 4.00 times the truth"),
        ({"a": np.ones(20) * 1.005}, "a is 1.00500 times the truth"),
        ({"a": np.zeros(20)}, "a is zero; the truth is not"),
        ({"a": np.ones(3)}, "a has shape (3,); the truth has (20,)"),
        ({"a": np.full(20, np.inf)}, "a is not finite"),
        (
            {"a": np.arange(20) - 9.0},
            "a points elsewhere than the truth: cosine 0.086, length 5.79 of it",
        ),
        ({}, "a is missing"),
        ({"a": np.ones(20), "b": 1}, "b should not be there"),
        ({"a": np.ones(20)}, None),
    ],
)
def test_first_difference_in_words(got, told):
    assert first_difference(got, {"a": np.ones(20)}, "the truth") == told


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        (2_300_000.0, 2_305_728, "is 2,300,000; the truth is 2,305,728"),
        (0.500061, 0.5, "is 0.5001; the truth is 0.5"),
        (1234.31, 1234.1, "is 1234.31; the truth is 1234.1"),
        ("", "a step", "is an empty text; it should be a step"),
        (True, False, "is True; it should be False"),
        ("3", 3, "is 3 (str); the truth is 3 (int)"),
        (True, 1, "is True; the truth is 1"),
        (np.array([1.0, 2.0]), np.array([1.0, 2.001]), "is [1, 2]; the truth is [1, 2.001]"),
        (np.array([4]), np.array([4, 9]), "is [4]; the truth is [4, 9]"),
    ],
)
def test_two_values_have_as_many_digits_as_they_need(got, want, told):
    assert first_difference({"a": got}, {"a": want}, "the truth") == f"a {told}"


@pytest.mark.parametrize(
    ("name", "got", "want"), [("the most held", 4, 1), ("a", "x", "nothing"), ("a", True, False)]
)
def test_what_was_asked_for_is_not_said_of_the_large_batch(name, got, want):
    """The large batch holds the activations of all its micro-batches: "the large batch's is 1" would be untrue."""
    told = first_difference({name: got}, {name: want}, "the large batch's")
    assert told == f"{name} is {got}; it should be {want}"


def test_a_none_where_none_is_never_right_asks_for_the_return():
    asked = "a is None (is a `return` missing?); the truth is 3"
    assert first_difference({"a": None}, {"a": 3}, "the truth") == asked
    told = first_difference({"a": None, "b": None}, {"a": 3, "b": None}, "the truth")
    assert told == "a is None; the truth is 3"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("the bytes (bf16, 61 parameters)", "are 610; the right ones are 488"),
        ("the weights after step 2", "are 610; the right ones are 488"),
        ("the number of weights", "is 610; the right one is 488"),
        ("the loss", "is 610; the right one is 488"),
        ("the model's answer", "is 610; the right one is 488"),
        ("the most micro-batches in memory", "is 610; it should be 488"),
    ],
)
def test_several_things_have_a_verb_of_their_own(name, told):
    assert first_difference({name: 610}, {name: 488}, "the right one") == f"{name} {told}"


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (np.zeros(20), "are zero; the right ones are not"),
        (
            None,
            "are None (is a `return` missing?); the right ones are [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        ),
        (np.ones(3), "have shape (3,); the right ones have (20,)"),
        (np.ones(20) * 4, "are 4.00 times the right ones"),
        (
            np.arange(20) - 9.0,
            "point elsewhere than the right ones: cosine 0.086, length 5.79 of it",
        ),
    ],
)
def test_several_arrays_have_a_verb_of_their_own(got, told):
    seen = first_difference({"the weights": got}, {"the weights": np.ones(20)}, "the right one")
    assert seen == f"the weights {told}"


def test_a_small_difference_is_told_in_numbers_that_differ():
    want = np.random.default_rng(0).normal(size=(4, 5))
    got = want.copy()
    got[2, 3] += 0.002
    told = first_difference({"a": got}, {"a": want}, "the truth")
    assert told.startswith(
        "a differs from the truth by 0.0005 times its length, most in entry 2, 3, which is "
    )
    first, second = told.rpartition("which is ")[2].split("; the truth is ")
    assert abs(float(first) - float(second) - 0.002) < 2e-4


def test_what_an_error_says_below_its_first_line_is_told():
    def answer(numbers):
        raise RuntimeError(
            "no graph\nthe divisor must be a number\nException raised from f at 0x12"
        )

    verdict = judge(total, answer, seed=1)
    assert verdict.message.startswith(
        "Your answer raised RuntimeError: no graph the divisor must be a number (line "
    )


def test_a_line_of_the_course_is_no_line_of_the_answer():
    frame = '  File "{}", line 67, in f\n    raise error\n'
    of_the_course = frame.format(COURSE / "trainlean" / "devices" / "lazy.py")
    assert verdicts._line(of_the_course) == ""
    beside_it = frame.format(COURSE / "trainlean_mine.py")
    assert verdicts._line(beside_it + of_the_course) == " (line 67: `raise error`)"


def test_an_error_without_a_word_is_a_crash_like_any_other():
    verdict = judge(total, raises(AssertionError()), seed=1)
    assert verdict.outcome == CRASHED
    assert verdict.message.startswith("Your answer raised AssertionError: ")


def test_a_misspelt_name_is_told_with_its_line():
    def answer(numbers):
        loss = sum(numbers)
        return loss if numbers is None else los  # noqa: F821

    verdict = judge(total, answer, seed=1)
    assert re.match(
        # What was meant is Python's word, from 3.12 on.
        r"Your answer raised NameError: name 'los' is not defined(\. Did you mean: 'loss'\?)? \(line ",
        verdict.message,
    )
    assert ": `return loss if" in verdict.message and verdict.hint == ""


def test_a_large_array_in_place_of_a_number_takes_no_memory():
    import tracemalloc

    large = np.zeros(2**22, dtype=np.uint8)
    tracemalloc.start()
    told = first_difference({"a": large}, {"a": 1.0}, "the truth")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told.startswith("a is [0, 0, ") and most < large.nbytes


def test_few_numbers_are_shown_and_a_zero_truth_is_told():
    assert (
        first_difference({"a": np.array([1.0, 2.0])}, {"a": np.array([2.0, 1.0])}, "the truth")
        == "a is [1, 2]; the truth is [2, 1]"
    )
    assert (
        first_difference({"a": np.ones(20)}, {"a": np.zeros(20)}, "the truth")
        == "a is not zero; the truth is"
    )


def test_the_oracle_is_asked_once_for_each_seed():
    asked = []
    counting = replace(total, oracle=lambda seed: asked.append(seed) or total.oracle(seed))
    memory = {}
    for seed in (1, 2, 1):
        assert (
            verdict(counting, see(counting, total.also_right[0], seed), seed, memory).outcome
            == RIGHT
        )
    assert asked == [1, 2]


def test_a_right_answer_that_has_raised_is_asked_again():
    busy = [True]

    def sometimes(answer, seed):
        if busy[0]:
            raise RuntimeError("busy")
        return probe(answer, seed)

    here, memory = replace(total, probe=sometimes), {}
    seen = see(here, total.also_right[0], 1)
    assert verdict(here, seen, 1, memory).outcome == CANNOT
    busy[0] = False  # and then it was not the machine
    assert verdict(here, seen, 1, memory).outcome == CRASHED


def test_a_mistake_that_raises_twice_alike_is_not_asked_a_third_time():
    asked, memory = [], {}

    def fails(answer, seed):
        asked.append(answer)
        raise RuntimeError("it always does")

    here = replace(total, probe=fails)
    for _ in range(4):
        verdict(here, Seen({"total": -1.0}), 1, memory)
    assert len(asked) == 2 * sum(len(mistake.answers) for mistake in total.mistakes)


def test_what_was_seen_survives_the_way_between_processes():
    seen = see(total, lambda numbers: 7, seed=3)
    arrived = unpack(pack(seen))
    assert same(seen.observation, arrived.observation)
    assert list(seen.observation) == list(arrived.observation)
    assert arrived.attempted
    told = unpack(pack(Seen({}, attempted=False, traceback="where", printed="what")))
    assert (told.attempted, told.traceback, told.printed) == (False, "where", "what")


def test_unpacking_never_unpickles():
    import io

    file = io.BytesIO()
    np.savez(file, head=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        unpack(file.getvalue())


def test_unknown_exercise_is_one_sentence():
    with pytest.raises(
        CourseError, match="no exercise named 'nothing'; the nearest is \\w+ or \\w+, and"
    ):
        find_exercise("nothing")


def test_what_stops_a_right_answer_too_is_no_mistake_of_the_learner():
    def broken(answer, seed):
        raise RuntimeError("no process could be started")

    here = replace(total, probe=broken)
    for answer in (lambda numbers: 0, *total.also_right):
        verdict = judge(here, answer, seed=1)
        assert (verdict.outcome, verdict.points, verdict.mistake) == (CANNOT, 0, "")
        assert (
            verdict.message
            == "This cannot be checked here: a right answer raises RuntimeError: no process could be started, too."
        )
