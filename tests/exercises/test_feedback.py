"""What a learner sees: panels of check and hint, guesses beside measurements, progress."""

import time

import numpy as np
import pytest
import torch

import trainlean
from trainlean.exercises import feedback
from trainlean.exercises.feedback import check, hint
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.guesses import guess, reveal
from trainlean.exercises.progress import show_progress
from trainlean.exercises.seeing import learners_part
from trainlean.exercises.solutions import answer_of
from trainlean.workspace import COURSE, CourseError, append_record, read_records, work_folder


@pytest.fixture
def shown(monkeypatch):
    things = []
    for room in ("feedback", "guesses"):
        monkeypatch.setattr(
            f"trainlean.exercises.{room}.display", lambda thing, **_: things.append(thing)
        )
    monkeypatch.setattr(feedback, "PATIENCE", 60)  # a busy machine is no subject here
    feedback._hints_given.clear()
    return things


def answers(kind):
    exercise = find_exercise("train_accumulated")
    known = {mistake.name: mistake.answers[0] for mistake in exercise.mistakes}
    answer = answer_of(exercise, {} if kind == "right" else known[kind])

    def train_accumulated(*arguments):
        return answer(*arguments)

    return train_accumulated


def test_check_shows_and_records(shown):
    check(answers("right"), seed=1)
    check(answers("loss not divided"), seed=1)
    assert repr(shown[0]) == "train_accumulated: right, 3 of 3 points"
    assert "4.00 times the large batch's" in repr(shown[1])
    assert [record["outcome"] for record in read_records("progress")] == ["right", "wrong"]


def test_a_search_that_ran_out_of_time_says_so_and_goes_on_with_the_same_seed(shown, monkeypatch):
    monkeypatch.setattr(feedback, "SEARCH_SECONDS", -1)
    check(answers("loss not divided"), seed=7)
    assert repr(shown[0]).endswith(
        "mistakes were compared in -1 s; check(..., seed=7), once or several times, goes on where this stopped."
    )
    monkeypatch.setattr(feedback, "SEARCH_SECONDS", 60)
    check(answers("loss not divided"), seed=7)
    assert "A known mistake with the same results: loss not divided" in repr(shown[1])
    compared = {key for key in feedback._compared if key[:2] == ("train_accumulated", 7)}
    assert len(compared) == len(feedback._compared) > 2
    check(answers("right"), seed=8)
    assert {key[1] for key in feedback._compared} == {8}


def test_the_readme_shows_what_check_says(shown):
    check(answers("loss not divided"), seed=7)
    assert f"```\n{shown[0]!r}\n```" in (COURSE / "README.md").read_text(encoding="utf-8")


def test_check_takes_a_name_as_hint_does(shown):
    train_accumulated = answers("right")
    check("train_accumulated", seed=1)
    trainlean.check("train_accumulated", seed=1)
    assert [repr(card) for card in shown] == ["train_accumulated: right, 3 of 3 points"] * 2
    assert train_accumulated is not None


def test_check_of_a_name_that_is_not_there_yet_records_nothing(shown):
    with pytest.raises(CourseError, match="no run_checkpointed here yet: run the cell"):
        check("run_checkpointed")
    with pytest.raises(CourseError, match="nearest is train_accumulated or"):
        check("train_acumulated")
    assert not shown and not read_records("progress")


def test_a_crash_does_not_take_the_place_of_right(shown, capsys):
    def train_accumulated():
        raise RuntimeError

    check(answers("right"), seed=1)
    check(train_accumulated)
    show_progress()
    assert [record["outcome"] for record in read_records("progress")] == ["right", "crashed"]
    assert "crashed" not in capsys.readouterr().out


def test_the_card_says_which_exercise_it_is_and_where_hints_are(shown):
    check(answers("loss not divided"), seed=1)
    html = shown[0]._repr_html_()
    assert "train_accumulated · exercise 1 of 5 · 0 of 3 points" in html
    assert '<code>hint("train_accumulated")</code> gives the first of 3 hints.' in html
    hint("train_accumulated")
    assert "<code>.grad</code>" in shown.pop()._repr_html_()
    check(answers("right"), seed=1)
    assert "hint(" not in shown[1]._repr_html_()


def test_an_answer_that_takes_long_is_told_while_it_runs(shown, monkeypatch):
    monkeypatch.setattr(feedback, "PATIENCE", 0.05)

    def train_accumulated(*arguments):
        while not shown:  # what stands on the screen while it runs
            time.sleep(0.01)

    check(train_accumulated)
    assert repr(shown[0]).startswith("train_accumulated is still running after 0.05 s.")
    assert len(shown) == 2


def test_panel_folds_what_is_long(shown):
    check(answers("loss not divided"), seed=1)
    html = shown[0]._repr_html_()
    assert (
        html.index("4.00 times")
        < html.index("A known mistake with the same results")
        < html.index("Loss not divided")
        < html.index("<details>")
    )


def test_panel_escapes(shown):
    def train_accumulated(*arguments):
        raise ValueError("<script>")

    check(train_accumulated)
    assert "<script>" not in shown[0]._repr_html_()


def test_a_missing_return_is_not_blamed_on_the_learners_lines(shown):
    def run_checkpointed(blocks, hidden, padding):
        for block in blocks:
            hidden = block(hidden, padding)

    check(run_checkpointed, seed=1)
    assert "What your answer returned or changed could not be used" in repr(
        shown[0]
    ) and "A forgotten `return` gives None" in repr(shown[0])
    assert "Traceback" not in repr(shown[0]) and "Where it was raised" not in shown[0]._repr_html_()


def test_a_wrong_signature_is_told_as_one(shown):
    def run_checkpointed(blocks):
        return blocks

    check(run_checkpointed, seed=1)
    assert "Your answer does not take the arguments that the exercise names" in repr(shown[0])


def test_an_error_of_another_process_is_where_its_note_says():
    def raised(file):
        error = TypeError("no number")
        error.add_note(f'  File "{file}", line 3, in train')
        return learners_part(error)

    assert "line 3" in raised("cell.py") and raised(COURSE / "exercises_tests" / "toys.py") == ""


def test_a_mistake_is_looked_for_only_so_long(monkeypatch, shown):
    monkeypatch.setattr(feedback, "SEARCH_SECONDS", -1)
    check(answers("loss not divided"), seed=1)
    assert "4.00 times" in repr(shown[0]) and "Loss not divided" not in shown[0]._repr_html_()
    assert "Not all known mistakes were compared" in repr(shown[0])


def test_an_interrupt_is_a_sentence_and_no_outcome(shown):
    def train_accumulated(*arguments):
        print("the fourth round")
        raise KeyboardInterrupt  # what the stop button does to a loop without an end

    check(train_accumulated)
    assert (
        repr(shown[0])
        == "train_accumulated: interrupted before it gave an answer. Does a loop in it never end?"
    )
    assert "the fourth round" in shown[0]._repr_html_()
    assert read_records("progress") == []


def test_what_a_right_answer_printed_is_shown_too(shown):
    right = answers("right")

    def train_accumulated(*arguments):
        print("a step")
        return right(*arguments)

    check(train_accumulated)
    assert "right" in repr(shown[0]) and "a step" in shown[0]._repr_html_()


def test_nbgrader_needs_an_error(shown, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check(answers("right"), seed=1)
    with pytest.raises(AssertionError, match="loss not divided"):
        check(answers("loss not divided"), seed=1)


def test_hints_go_on_step_by_step(shown):
    for _ in range(5):
        hint("train_accumulated")
    texts = [repr(thing) for thing in shown]
    assert texts[0].startswith("Hint 1 of 3") and texts[2].startswith("Hint 3 of 3, the last")
    assert texts[3] == texts[2]


@pytest.mark.parametrize("arguments", [(), (1, 2), (3.5,)])
def test_check_without_a_name_is_one_sentence(arguments):
    with pytest.raises(CourseError, match="check"):
        check(*arguments)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: 1, r"made as <lambda>: write it with `def`, or call check\(exercise_name=...\)"),
        (None, "was given None, which has no name"),
    ],
)
def test_a_function_of_another_name_and_none_get_their_own_sentence(answer, says):
    with pytest.raises(CourseError, match=says):
        check(answer)


def test_guess_beside_measurement(shown):
    guess("peak", 40, "MiB")
    reveal("peak", 50, "MiB")
    assert repr(shown[-1]) == "peak: you guessed 40 MiB, measured 50 MiB (20% off)."
    assert "guess" in shown[-1]._repr_html_() and "300px" in shown[-1]._repr_html_()


def test_a_guess_in_another_unit_keeps_its_unit(shown):
    guess("peak", 40, "GiB")
    reveal("peak", 50, "MiB")
    assert repr(shown[-1]) == "peak: you guessed 40 GiB, measured 50 MiB."


def test_a_guess_in_percent_is_points_off_and_not_percent_of_percent(shown):
    guess("share", 25, "%")
    reveal("share", 46, "%")
    assert repr(shown[-1]) == "share: you guessed 25 %, measured 46 % (21 points off)."


def test_a_guess_after_the_answer_does_not_count(shown):
    guess("peak", 40, "MiB")
    reveal("peak", 50, "MiB")
    guess("peak", 50, "MiB")
    reveal("peak", 50, "MiB")
    assert "you guessed 40" in repr(shown[-1])


def test_a_prediction_is_not_called_measured(shown):
    guess("peak", 40, "MiB")
    reveal("peak", 50, "MiB", "predicted")
    assert repr(shown[-1]) == "peak: you guessed 40 MiB, predicted 50 MiB (20% off)."


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_what_cannot_be_compared_is_no_guess_and_no_measurement(shown, value):
    """Once noted it would break every later look at this guess."""
    for tell in (guess, reveal):
        with pytest.raises(CourseError, match=r"peak is .*; it must be a number \(MiB\)"):
            tell("peak", value, "MiB")
    assert not shown


def test_no_guess(shown):
    guess("peak", None, "MiB")
    reveal("peak", 50, "MiB")
    assert "put a number (MiB) in place of None" in repr(shown[0])
    assert repr(shown[1]) == "peak: measured 50 MiB; no guess was noted before."
    for no_number in ("many", float("nan")):
        with pytest.raises(CourseError, match=r"must be a number \(MiB\)"):
            guess("peak", no_number, "MiB")


def test_yesterday_s_guess_is_kept_where_the_cell_says_none_again(shown):
    guess("peak", 40, "MiB")
    guess("peak", None, "MiB")
    assert repr(shown[-1]).startswith("peak: your guess of before is kept, 40 MiB. Another number")
    reveal("peak", 50, "MiB")
    guess("peak", None, "MiB")
    assert repr(shown[-1]) == "peak: your guess of before is kept, 40 MiB."


@pytest.mark.parametrize(
    "value",
    [np.int64(40), np.float32(40), np.array([40.0]), torch.tensor(40.0), torch.tensor([40])],
)
def test_one_number_of_numpy_or_torch_is_a_guess_and_a_measurement(shown, value):
    guess("peak", value, "MiB")
    reveal("peak", value, "MiB")
    assert repr(shown[-1]) == "peak: you guessed 40 MiB, measured 40 MiB (0% off)."


@pytest.mark.parametrize("value", [torch.tensor([1.0, 2]), np.array(["40"]), np.True_, "40"])
def test_several_numbers_and_none_are_no_guess(shown, value):
    for tell in (guess, reveal):
        with pytest.raises(CourseError, match=r"it must be a number \(MiB\)"):
            tell("peak", value, "MiB")
    assert not shown and read_records("guesses") == []


def test_damaged_guesses_are_no_argument_of_the_learner_s(shown):
    for record in (
        {"name": "peak"},
        {"name": "peak", "kind": "guess", "value": "9", "unit": "MiB"},
    ):
        append_record("guesses", record)
    guess("peak", 40, "MiB")
    reveal("peak", 50, "MiB")
    assert repr(shown[-1]) == "peak: you guessed 40 MiB, measured 50 MiB (20% off)."


def test_a_work_folder_that_takes_nothing_costs_no_verdict_and_no_guess(shown, work):
    work.write_text("a file")
    check(answers("right"), seed=1)
    guess("peak", 40, "MiB")
    reveal("peak", 50, "MiB")
    texts = [repr(card) for card in shown]
    assert texts[0] == "train_accumulated: right, 3 of 3 points"
    assert texts[1].startswith("train_accumulated: right, but it could not be kept. ")
    assert "peak, 40 MiB: this guess counts only until the kernel ends." in texts[2]
    assert texts[3] == "peak: you guessed 40 MiB, measured 50 MiB (20% off)."
    assert texts[4].startswith("peak: that it was shown could not be kept.")
    assert all("set the variable TRAINLEAN_WORK" in texts[number] for number in (1, 2, 4))


@pytest.mark.parametrize("seed", [10**30, -1, "7", 1.5])
def test_a_seed_that_is_none_is_one_sentence(shown, seed):
    with pytest.raises(CourseError, match="seed is .*; it is a whole number from 0"):
        check(answers("right"), seed=seed)
    assert not shown


def test_progress_counts_what_was_right_when_the_exercise_gave_other_points(capsys):
    for exercise, outcome, points in [
        ("train_accumulated", "right", 2),
        ("places", "right", 999),
        ("first_wrong_step", "wrong", 999),
    ]:
        about = {"notebook": "1_accumulation/1_pytorch", "exercise": exercise, "outcome": outcome}
        append_record("progress", about | {"points": points})
    for line in ("[1]", "{}", '{"exercise": "places", "outcome": 3}', '{"outcome": "right'):
        with open(work_folder() / "progress.jsonl", "a") as file:
            file.write(line + "\n")
    with open(work_folder() / "questions.jsonl", "a") as file:
        file.write("[]\n")
    show_progress()
    said = capsys.readouterr()
    assert "2 of 71 exercises right, 8 of" in said.out and "999" not in said.out
    assert "progress.jsonl: 4 lines could not be read" in said.err


def test_progress_counts_the_best(shown, capsys):
    check(answers("right"), seed=1)
    check(answers("loss not divided"), seed=1)
    show_progress()
    text = capsys.readouterr().out
    assert "1 of" in text and "3 of" in text
