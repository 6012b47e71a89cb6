"""What lessons ask besides exercises: reasons, recall with fresh numbers, lines in order, the learner's own loop; kept, switched off, never told beforehand."""

import contextlib
import json
import random
import re
import subprocess
from collections import Counter
from itertools import product

import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright._impl._driver import compute_driver_executable
from torch import distributed

from trainlean.exercises import ordering, own_loop, questions, recall
from trainlean.exercises.asked_in import ask_as_today
from trainlean.exercises.comparing import same
from trainlean.exercises.feedback import check
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.guesses import guess, reveal
from trainlean.exercises.ordering import put_in_order, puzzle_of
from trainlean.exercises.progress import show_progress
from trainlean.exercises.questions import ask_questions, question_files
from trainlean.exercises.seeing import see
from trainlean.exercises.solutions import answer_in, answer_of
from trainlean.exercises.verdicts import RIGHT, judge
from trainlean.notebooks.notebook import read_notebook
from trainlean.pictures.widget import script
from trainlean.workspace import COURSE, CourseError, append_record, read_records

LESSONS = list(question_files())
REASONS = {name: one for file in question_files().values() for name, one in file.BECAUSE.items()}
RECALLS = [(lesson, name) for lesson in LESSONS for name in question_files()[lesson].RECALL]
PUZZLES = [name for file in question_files().values() for name in getattr(file, "LINES", {})]
THREE_FIRST = LESSONS[:3]
LONG = 5  # lines of a solution


@pytest.fixture
def shown(monkeypatch):
    things = []
    for room in ("feedback", "guesses", "questions", "recall", "own_loop", "ordering"):
        monkeypatch.setattr(
            f"trainlean.exercises.{room}.display", lambda thing, **_: things.append(thing)
        )
    return things


def press(quiz, number, option):
    """What the browser does when an answer is chosen."""
    chosen = [list(some) for some in quiz.chosen]
    chosen[number].append(option)
    quiz.chosen = chosen


def place_of(quiz, number, right):
    return next(
        i
        for i, one in enumerate(quiz.asked["questions"][number]["options"])
        if one["right"] == right
    )


# ---------------------------------------------------------------- every question


def whole(question):
    texts = [one.text for one in question.options]
    assert len(question.wrong) >= 2 and len({*texts}) == len(texts)
    assert question.ask.rstrip("`").endswith("?")
    assert all(one.says.endswith(".") and one.text for one in question.options)
    assert len({one.says for one in question.options}) == len(texts), "each has its own answer"


def guesses_in(lesson):
    text = (COURSE / "authoring" / f"{lesson}.py").read_text(encoding="utf-8")
    return re.findall(r'^guess\(\s*"([^"]+)"', text, re.MULTILINE)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_guess_of_a_lesson_has_its_reasons_and_no_other(lesson):
    assert [*question_files()[lesson].BECAUSE] == guesses_in(lesson)


def test_an_answer_that_comes_of_several_mistakes_is_told_by_two_of_them():
    wrong = [("2", "too small"), ("2", "halved"), ("2", "cut off"), ("3", "halved"), ("5", "added")]
    question = recall.computed("how many?", ("4", "right"), [*wrong, ("4", "by luck")])
    assert [tuple(option) for option in question.wrong] == [
        ("2", "too small Or: halved"),
        ("5", "added"),
    ]


def test_every_lesson_has_questions_and_asks_of_those_before_it():
    authored = sorted((COURSE / "authoring").glob("*/*.py"))
    assert [f"{path.parent.name}/{path.stem}" for path in authored] == LESSONS
    for path, lesson in list(zip(authored, LESSONS))[1:]:
        text = path.read_text(encoding="utf-8")
        at = re.findall(rf'^# %%\nrecall\("{lesson}"\)$', text, re.MULTILINE)
        assert len(at) == 1 and text.index("recall(") < text.index("\nguess("), lesson


@pytest.mark.parametrize("name", REASONS)
def test_reasons_are_whole(name):
    question = REASONS[name]
    whole(question)
    assert len(question.options) == 3
    # A long right one among short wrong ones would be a hint.
    assert len(question.right.text) < 2 * max(len(one.text) for one in question.wrong)


@pytest.mark.parametrize(("lesson", "name"), RECALLS)
def test_recall_has_fresh_numbers_each_time(lesson, name):
    make = question_files()[lesson].RECALL[name]
    drawn = [recall.drawn(f"{lesson}/{name}", make, turn) for turn in range(4)]
    assert len({one.ask for one in drawn}) == 4
    for one in drawn:
        whole(one)
        assert re.search(r"\d", one.ask)
    assert recall.drawn(f"{lesson}/{name}", make, 2) == drawn[2], "the same turn asks the same"


def test_of_a_square_root_of_segments_nothing_is_said_that_is_not_so():
    """It is said to compute more than it has to: so it must fit."""
    make = question_files()["2_checkpointing/1_pytorch"].RECALL["segments"]
    for seed in range(100):
        question = make(random.Random(seed))
        for one in question.wrong:
            assert "square root" not in one.says or int(one.text) > int(question.right.text)


def test_the_first_lessons_have_enough_to_ask_for():
    assert len(recall.due_names(LESSONS[:1])) >= 3


# ---------------------------------------------------------------- shown, answered, kept, switched off


def test_a_reason_is_asked_after_the_reveal_and_each_answer_is_kept(shown):
    name = next(iter(REASONS))
    guess(name, 4, "times")
    reveal(name, 10, "times")
    quiz = shown[-1]
    assert REASONS[name].right.says not in repr(quiz) + quiz.still()[0]["text/html"]
    wrong, right = (place_of(quiz, 0, kind) for kind in (False, True))
    press(quiz, 0, wrong)
    press(quiz, 0, right)
    kept = [
        {key: record[key] for key in ("kind", "name", "right", "first")}
        for record in read_records("questions")
    ]
    assert kept == [
        {"kind": "because", "name": name, "right": False, "first": True},
        {"kind": "because", "name": name, "right": True, "first": False},
    ]


def test_progress_counts_what_was_known_at_the_first_try(shown, capsys):
    show_progress()
    assert "questions" not in capsys.readouterr().out
    for right in (True, False):
        questions.because(next(iter(REASONS)))
        press(shown[-1], 0, place_of(shown[-1], 0, right))
    press(shown[-1], 0, place_of(shown[-1], 0, True))
    show_progress()
    assert "1 of 2 questions right at the first try." in capsys.readouterr().out


def test_a_guess_without_reasons_is_revealed_as_ever(shown):
    reveal("nobody's", 10, "times")
    assert len(shown) == 1


def test_one_setting_takes_all_of_them_off(shown):
    ask_questions(False)
    reveal(next(iter(REASONS)), 10, "times")
    recall.recall(LESSONS[1])
    put_in_order("train_accumulated")
    check(train_accumulated=by_count, seed=1)
    assert [type(one).__name__ for one in shown] == ["Card", "Card"]
    ask_questions(True)
    recall.recall(LESSONS[1])
    assert len(shown) == 3


def test_what_is_asked_in_a_lesson_comes_from_those_before(shown):
    recall.recall(LESSONS[2])
    names = [record["name"] for record in read_records("questions")]
    assert len(names) == 3 and all(name.startswith((LESSONS[0], LESSONS[1])) for name in names)
    assert len({name.rpartition("/")[0] for name in names}) == 2, "of several lessons"
    recall.recall(LESSONS[0])
    assert len(shown) == 1, "nothing comes before the first lesson"
    with pytest.raises(CourseError, match="no one lesson 'nowhere'; the lessons are 0_start/"):
        recall.recall("nowhere")
    with pytest.raises(CourseError, match="from 1, not 0"):
        recall.recall(LESSONS[1], 0)


def test_an_optional_lesson_is_asked_about_only_where_it_was_done(shown):
    optional = "2_checkpointing/4_budgets"
    recall.recall("3_local_sgd/1_pytorch")
    names = [record["name"] for record in read_records("questions")]
    assert not any(name.startswith(optional) for name in names)
    append_record("progress", {"notebook": optional})
    recall.recall("3_local_sgd/1_pytorch")
    names = [record["name"] for record in read_records("questions")]
    assert any(name.startswith(optional) for name in names)
    table = (COURSE / "README.md").read_text(encoding="utf-8")
    said = {*re.findall(r"\(lessons/(\S+)\.ipynb\) \(optional\)", table)}
    assert said & {*LESSONS} == {
        one for one in LESSONS if getattr(question_files()[one], "OPTIONAL", False)
    }


def test_a_lesson_that_was_left_out_is_not_asked_about():
    """The first lesson of the unit leads to the optional one, past two others."""
    before = LESSONS[: LESSONS.index("2_checkpointing/4_budgets")]
    assert "1_accumulation/4_lazy_tensors" not in recall.taken(before) and len(before) > 5
    append_record("progress", {"notebook": "2_checkpointing/1_pytorch"})
    assert recall.taken(before) == ["2_checkpointing/1_pytorch"]


def test_what_was_not_known_comes_again_first(shown):
    recall.recall(LESSONS[1])
    quiz = shown[-1]
    [first, *others] = [record["name"] for record in read_records("questions")]
    press(quiz, 0, place_of(quiz, 0, False))
    for number in range(1, len(others) + 1):
        press(quiz, number, place_of(quiz, number, True))
    assert recall.due_names(LESSONS[:1])[0] == first
    recall.recall(LESSONS[1])
    asked = [one["ask"] for one in shown[-1].asked["questions"]]
    assert not {*asked} & {one["ask"] for one in quiz.asked["questions"]}, "fresh numbers"


def test_what_a_notebook_keeps_is_the_same_each_time(shown, work):
    """nbval compares it: a fresh work folder gives the same text."""
    texts = []
    for _ in range(2):
        recall.recall(LESSONS[2])
        texts.append((repr(shown[-1]), shown[-1].still()[0]["text/html"]))
        (work / "questions.jsonl").unlink()
    assert texts[0] == texts[1]


def test_recall_in_a_terminal(monkeypatch):
    said, given = [], iter(["z", "a", "b", "c", "d", "", "", ""])

    def read(_):
        return next(given)

    known = recall.ask_in_terminal(2, LESSONS[0], said.append, read)
    text = "\n".join(said)
    assert "1 of 2. " in text and "Choose a, b, c" in text and known in (0, 1)
    assert f"{known} of 2 right at the first try." in text
    assert any(
        record["kind"] == "recall" and record["right"] for record in read_records("questions")
    )

    def end(_):
        raise EOFError

    assert recall.ask_in_terminal(2, None, said.append, end) == 0


def test_a_terminal_asks_of_the_lessons_that_were_begun():
    assert recall.begun(None) == LESSONS[:1]
    append_record("progress", {"notebook": LESSONS[3]})
    assert recall.begun(None) == LESSONS[:4]


# ---------------------------------------------------------------- lines in order


def exercises_of(lesson):
    text = (COURSE / "authoring" / f"{lesson}.py").read_text(encoding="utf-8")
    return text, re.findall(r'^# %% exercise="(\w+)"', text, re.MULTILINE)


@pytest.mark.parametrize("lesson", LESSONS)
def test_lines_stand_before_the_exercises_that_have_them(lesson):
    text, names = exercises_of(lesson)
    shown = re.findall(r'^put_in_order\("(\w+)"\)\n+# %% exercise="(\w+)"', text, re.MULTILINE)
    own = [*getattr(question_files()[lesson], "LINES", {})]
    assert shown == [(name, name) for name in names if name in own]
    assert len(shown) == len(own) == text.count("put_in_order(")


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_long_loop_has_its_lines(lesson):
    """But not in the last unit, where nobody puts them there for the learner, nor where a loop like it was just put in order."""
    _, names = exercises_of(lesson)
    least = 5 if lesson in THREE_FIRST else 6
    without = {
        *("places", "linear_decay"),  # lines in order by itself; one statement
        *("accumulation_arguments", "exact_trainer", "arguments_for_budget"),  # arguments
        *("fallbacks", "communication", "untrained_parameters", "LocalSGDCallback"),  # no one loop
        "loss_in_chunks",  # as chunked_loss
    }
    long = []
    for name in names:
        lines = [text for text, _ in ordering.lines_of(find_exercise(name), {})]
        loops = any(line.startswith(("for ", "while ")) for line in lines)
        if len(lines) >= least and (loops or lesson in THREE_FIRST) and name not in without:
            long.append(name)
    assert lesson.startswith("6_") or [*getattr(question_files()[lesson], "LINES", {})] == long


def arranged(puzzle, placed):
    return tuple((puzzle["lines"][line], depth) for line, depth in placed)


@pytest.mark.parametrize("name", PUZZLES)
def test_what_is_accepted_is_right_and_its_neighbours_are_not(name):
    """Every two statements exchanged that stand next to each other: what the check finds right must be accepted, too."""
    exercise = find_exercise(name)
    puzzle = puzzle_of(exercise)
    accepted = [arranged(puzzle, placed) for placed in puzzle["accepted"]]

    def outcome(placed):
        try:
            answer = answer_in(exercise, ordering.source_of(exercise, placed))
        except CourseError:
            return "no Python"
        return judge(exercise, answer, 5, search_seconds=-1).outcome

    # Of many, those that are furthest from each other: the first, the last and some between.
    assert {outcome(placed) for placed in accepted[:: max(1, len(accepted) // 6)]} == {RIGHT}
    assert outcome(accepted[-1]) == RIGHT
    tried = set()
    for placed in accepted:
        for swapped, pair in ordering.neighbours_exchanged(placed):
            if pair not in tried and swapped not in accepted:
                assert outcome(swapped) != RIGHT, swapped
            tried.add(pair)


def test_lines_that_are_the_same_are_there_as_often_as_they_are_needed():
    puzzle = puzzle_of(find_exercise("train_with_marks"))
    assert puzzle["lines"].count("mark_step()") == 2
    first = puzzle["lines"].index("mark_step()")
    assert [line for line, _ in puzzle["accepted"][0]].count(first) == 2


@pytest.mark.parametrize("name", PUZZLES)
def test_wrong_lines_are_known_mistakes_and_are_named(name):
    puzzle = puzzle_of(find_exercise(name))
    right = [text for text, _ in ordering.lines_of(find_exercise(name), {})]
    assert len(puzzle["wrong"]) >= 3 and not {*right} & {
        puzzle["lines"][i] for i in puzzle["wrong"]
    }
    own = {*ordering.wrong_lines(find_exercise(name), questions.written("LINES", name)).values()}
    named = {one["name"] for one in puzzle["known"]}
    assert own <= named, "each wrong line alone, in its place, is named with its hint"
    assert not any(one["placed"] in puzzle["accepted"] for one in puzzle["known"])


JUDGED = """import { judge } from "./lines.mjs";
import { readFileSync } from "node:fs";
const [puzzle, placed] = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(placed.map((one) => judge(puzzle, one))));
"""


@pytest.fixture
def said_of(tmp_path):
    """What the puzzle's script says of arrangements, run by the node that Playwright brings."""
    node, _ = compute_driver_executable()
    (tmp_path / "lines.mjs").write_text(script("lines"), encoding="utf-8")
    (tmp_path / "judged.mjs").write_text(JUDGED, encoding="utf-8")

    def said(puzzle, placed):
        given = json.dumps([puzzle, placed])
        command = [node, tmp_path / "judged.mjs"]
        run = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
        return json.loads(run.stdout)

    return said


def with_wrong_lines(puzzle, order):
    """An accepted order with each wrong line in each place."""
    for wrong, at in product(puzzle["wrong"], range(len(order))):
        yield [*order[:at], [wrong, order[at][1]], *order[at + 1 :]]


def mistakes_in_other_orders(puzzle):
    """Known mistakes that only have wrong lines in place of right ones, made in each accepted order: (arrangement, name, whether one of them has lines below it)."""
    solution = puzzle["accepted"][0]
    for known in puzzle["known"]:
        pairs = zip(solution, known["placed"])
        given = {one: line for (one, _), (line, _) in pairs if line in puzzle["wrong"]}
        heads = any(puzzle["lines"][line].endswith(":") for line in given.values())
        for order in puzzle["accepted"]:
            placed = [[given.get(line, line), depth] for line, depth in order]
            if order is solution and placed != known["placed"]:
                break
            yield placed, known["name"], heads


@pytest.mark.parametrize("name", PUZZLES)
def test_a_wrong_line_in_an_accepted_order_is_told_as_the_check_tells_it_or_not_at_all(
    name, said_of
):
    """A mistake may change two lines, and each of them alone be another mistake or none that is known."""
    exercise = find_exercise(name)
    puzzle = puzzle_of(exercise)
    known = [(one["placed"], one["name"]) for one in puzzle["known"]]
    others = [*mistakes_in_other_orders(puzzle)]
    told = said_of(puzzle, [placed for placed, _ in known])
    assert [one["mistake"] for one in told] == [mistake for _, mistake in known]
    told = said_of(puzzle, [placed for placed, *_ in others])
    for (*_, mistake, heads), said in zip(others, told):
        assert said["mistake"] == mistake or heads and "one of the wrong ones" in said["says"]
    named = [(placed, mistake) for (placed, mistake, _), one in zip(others, told) if one["mistake"]]
    asked = [one for order in puzzle["accepted"] for one in with_wrong_lines(puzzle, order)]
    for placed, said in zip(asked, said_of(puzzle, asked)):
        assert not said["right"]
        assert not said["mistake"] or (placed, said["mistake"]) in [*named, *known], placed

    def seen(placed):
        source = ordering.source_of(exercise, arranged(puzzle, placed))
        return see(exercise, answer_in(exercise, source), 5).observation

    named = [one for one in named if one not in known]
    for placed, mistake in random.Random(name).sample(named, min(len(named), 2)):
        mine = seen(placed)
        assert any(same(mine, seen(one)) for one, of in known if of == mistake), placed


def test_an_order_that_is_not_known_is_not_called_wrong_for_good(said_of):
    """Not every right order can be known: a complete one is sent on to the check, one that is only begun is not."""
    puzzle = puzzle_of(find_exercise("train_locally"))
    order = puzzle["accepted"][0]
    guard = [i for i, (line, _) in enumerate(order) if puzzle["lines"][line].startswith("if ")][0]
    moved = [*order[:guard], *([line, depth - 2] for line, depth in order[guard:])]
    [whole, begun] = said_of(puzzle, [moved, moved[:-1]])
    assert not whole["right"] and "is indented less than in the nearest order" in whole["says"]
    assert whole["says"].endswith("write it: `check` decides.")
    assert "`check`" not in begun["says"]


def test_lines_are_kept_when_they_are_checked_and_not_shown_before(shown):
    put_in_order("train_accumulated")
    [lines] = shown
    assert "backward" not in repr(lines) + lines.still()[0]["text/html"]
    lines.result = {"right": False, "mistake": "loss not divided", "tries": 1}
    lines.result = {"right": True, "mistake": "", "tries": 2}
    kept = [(one["name"], one["right"], one["mistake"]) for one in read_records("questions")]
    assert kept == [
        ("train_accumulated", False, "loss not divided"),
        ("train_accumulated", True, ""),
    ]

    def train_accumulated():
        pass

    put_in_order(train_accumulated)
    assert repr(shown[-1]) == repr(lines)
    with pytest.raises(CourseError, match="peak_at_batch has no lines to put in order"):
        put_in_order("peak_at_batch")
    with pytest.raises(CourseError, match="the nearest is"):
        put_in_order("train_acumulated")


# ---------------------------------------------------------------- the learner's own loop


def by_count(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# fmt: off
def in_long_lines(
    model,
    optimizer,
    loss_function,
    micro_batches,
    accumulation_steps,
):
    for number, (inputs, targets) in enumerate(
        micro_batches,
        start=1,
    ):
        loss = loss_function(
            model(inputs),
            targets,
        )
        (
            loss / accumulation_steps
        ).backward()
        if number % accumulation_steps == 0:
            optimizer.step(), optimizer.zero_grad()
# fmt: on


def by_window(net, opt, criterion, data, k):
    while data:
        window, data = data[:k], data[k:]
        for pair in window:
            criterion(net(pair[0]), pair[1]).backward()
        for parameter in net.parameters():
            parameter.grad /= len(window)
        opt.step()
        opt.zero_grad()


def by_autograd(model, optimizer, loss_function, micro_batches, accumulation_steps):
    weights = list(model.parameters())
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        total = [torch.zeros_like(weight) for weight in weights]
        for inputs, targets in window:
            parts = torch.autograd.grad(loss_function(model(inputs), targets), weights)
            total = [t + p / len(window) for t, p in zip(total, parts, strict=True)]
        weights[0].grad = total[0]
        optimizer.step()
        optimizer.zero_grad()


def asked_about(exercise, loop):
    run = questions.written("OWN_RUNS", exercise)(loop)
    found = own_loop.questions_about(exercise, run)
    for question in found:
        whole(question)
    return {question.ask: question for question in found}


@pytest.mark.parametrize(
    ("loop", "gradient", "step"),
    [
        (by_count, "(loss / accumulation_steps).backward()", "optimizer.step()"),
        (in_long_lines, "( ...", "optimizer.step(), optimizer.zero_grad()"),
        (by_window, "criterion(net(pair[0]), pair[1]).backward()", "opt.step()"),
        (by_autograd, "weights[0].grad = total[0]", "optimizer.step()"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_questions_are_about_the_loop_as_it_was_written(loop, gradient, step):
    found = asked_about("train_accumulated", loop)
    line, moves, moved = found.values()
    assert f"`{gradient}`" in line.right.text and f"`{step}`" in moved.right.text
    assert moves.ask.startswith("6 micro-batches") and moves.right.text == "after 3, 6"


def test_a_shorter_last_window_moves_the_weight_too():
    found = asked_about("train_accumulated_to_the_end", by_window)
    assert "after 3, 5" in [question.right.text for question in found.values()]
    assert "after 3" in [one.text for question in found.values() for one in question.wrong]


def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


def with_own_accumulation(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    """The same in a helper for each batch, and with the gradients emptied outside of the block."""
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

    def batch_done(batch):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            accelerator.sync_gradients and accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
        optimizer.zero_grad()

    for batch in dataloader:
        batch_done(batch)
    model.train()


@pytest.mark.parametrize("loop", [train_with_accelerator, with_own_accumulation])
def test_with_accelerate_it_is_asked_when_the_gradients_were_synchronised(loop):
    synced, *_ = asked_about("train_with_accelerator", loop).values()
    assert synced.right.text == "for 2, 4, 5"
    assert "for 1, 3, 5" in [one.text for one in synced.wrong]


def train_checkpointed(accelerator, model, optimizer, dataloader):
    model.train()
    model.gradient_checkpointing_enable()
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


def test_a_checkpointed_loop_is_asked_how_its_layers_ran():
    ran, order, synced = asked_about("train_checkpointed", train_checkpointed).values()
    assert (ran.right.text, order.right.text) == ("36", "3, 2, 1")
    assert "18" in [one.text for one in ran.wrong]
    assert synced.right.text == "for 4, 6"


def token_weighted_backward(model, window):
    number = sum(one["labels"][:, 1:].ne(-100).sum() for one in window)
    for one in window:
        scores = model(one["input_ids"])[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(
            scores, one["labels"][:, 1:].flatten(), reduction="sum"
        )
        (loss / number).backward()


def test_a_loop_that_makes_no_step_is_asked_for_divisor_and_parts():
    divisor, line, parts = asked_about("token_weighted_backward", token_weighted_backward).values()
    assert divisor.right.text == "10" and {"3", "13"} <= {one.text for one in divisor.wrong}
    assert "`(loss / number).backward()`" in line.right.text and parts.right.text == "3"


def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    for weight in model.parameters():
        distributed.broadcast(weight.data, src=0)
    steps = len(micro_batches) // (ranks * accumulation_steps)
    mine = iter(micro_batches[rank::ranks])
    for step in range(1, steps + 1):
        for _ in range(accumulation_steps):
            (loss_of(model, next(mine)) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            for weight in model.parameters():
                distributed.all_reduce(weight.data, distributed.ReduceOp.AVG)


class OneRank:
    """The same with a class, whose steps are all in one line of the answer."""

    def __init__(self, model, optimizer, loss_of, k):
        self.model, self.optimizer, self.loss_of, self.k = model, optimizer, loss_of, k

    def average(self):
        for weight in self.model.parameters():
            both = [torch.empty_like(weight) for _ in range(distributed.get_world_size())]
            distributed.all_gather(both, weight.data)
            weight.data = torch.stack(both).mean(0)

    def train(self, windows, local_steps):
        for step, window in enumerate(windows, 1):
            for batch in window:
                (self.loss_of(self.model, batch) / self.k).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % local_steps == 0 or step == len(windows):
                self.average()


def by_class(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    for weight in model.parameters():
        distributed.broadcast(weight.data, src=0)
    ranks = distributed.get_world_size()
    mine = micro_batches[distributed.get_rank() :: ranks]
    steps = len(micro_batches) // (ranks * accumulation_steps)
    windows = [mine[i * accumulation_steps : (i + 1) * accumulation_steps] for i in range(steps)]
    OneRank(model, optimizer, loss_of, accumulation_steps).train(windows, local_steps)


@pytest.mark.parametrize("loop", [train_local_sgd, by_class])
def test_on_ranks_the_questions_are_where_they_met_and_what_they_sent(loop):
    met, sent, apart = asked_about("train_local_sgd", loop).values()
    assert met.right.text == "after 7, 15, 19" and "2 more" in met.right.says
    assert "after 3, 7, 11, 15, 19" in [one.text for one in met.wrong]
    assert sent.right.text == "16" and "20" in [one.text for one in sent.wrong]
    assert apart.right.text == "after 1, 3" and "after 2, 4, 5" in [one.text for one in apart.wrong]


def test_with_an_outer_optimizer_the_steps_are_those_of_the_inner_one():
    """Five of the inner and three of the outer one: neither are the optimizer's."""
    exercise = find_exercise("train_diloco")
    met, sent, apart = asked_about("train_diloco", answer_of(exercise, {})).values()
    assert apart.ask.startswith("This rank made 5 inner steps") and "outer step" in apart.ask
    assert "2 more inner steps" in met.right.says
    assert "its 5 inner steps; recorded were 3" in sent.wrong[0].says
    told = [question.ask for question in (met, sent, apart)]
    told += [
        one.says for question in (met, sent, apart) for one in (question.right, *question.wrong)
    ]
    assert not [words for words in told if "optimizer step" in words]


def test_on_ranks_a_line_is_asked_for_where_messages_differ():
    def in_two(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
        distributed.all_reduce(torch.zeros(3))
        train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps)
        return local_steps

    *_, line = asked_about("train_local_sgd", in_two).values()
    assert "`train_local_sgd(model, optimizer" in line.right.text


def token_backward(model, window):
    count = sum(one["labels"][:, 1:].ne(-100).sum() for one in window).float()
    distributed.all_reduce(count)
    share = distributed.get_world_size() / count
    for number, one in enumerate(window, 1):
        with contextlib.nullcontext() if number == len(window) else model.no_sync():
            scores = model(one["input_ids"])[:, :-1].flatten(0, 1)
            targets = one["labels"][:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
            (loss * share).backward()


def test_a_loop_without_steps_that_met_before_its_first_micro_batch():
    """Nothing is said of steps, and the meeting before the first forward pass is not asked for."""
    found = asked_about("token_backward", token_backward)
    _, met, sent = found.values()
    assert met.right.text == "after 2" and sent.right.text == "8"
    said = [one.says for question in found.values() for one in (question.right, *question.wrong)]
    assert not [says for says in said if " step" in says]
    run = questions.written("OWN_RUNS", "token_backward")(token_backward)
    line = own_loop._first_meeting(run)
    assert "after the first forward pass" in line.ask.lower()
    assert "`(loss * share).backward()`" in line.right.text


def all_in_a_helper(*given):
    windows = len(given)
    by_count(*given)
    return windows


def test_a_helper_does_not_hide_when_the_weight_moved():
    """One line of the answer sees all micro-batches go through."""
    line, moves, moved = asked_about("train_accumulated", all_in_a_helper).values()
    assert moves.right.text == "after 3, 6"
    assert "`by_count(*given)`" in line.right.text and "`by_count(*given)`" in moved.right.text


OWN = [
    (name, number)
    for file in question_files().values()
    for name in getattr(file, "OWN_RUNS", {})
    for number in range(1 + len(find_exercise(name).also_right))
    # These know the probe's own model or optimizer.
    if (name, number) not in {("train_checkpointed", 4), ("train_with_marks", 4)}
]


@pytest.mark.parametrize(("name", "number"), OWN)
def test_right_answers_in_other_styles_are_asked_the_same(name, number):
    exercise = find_exercise(name)
    ways = ({}, *exercise.also_right)
    mine, other = (asked_about(name, answer_of(exercise, ways[i])) for i in (0, number))
    assert len(other) >= 2
    for ask in mine.keys() & other.keys():
        right = other[ask].right.text
        assert right == mine[ask].right.text or right.startswith("line ") or "change" in ask, ask


def test_after_a_right_answer_and_no_other(shown):
    check(train_accumulated=by_count, seed=1)
    assert [type(one).__name__ for one in shown] == ["Card", "Quiz"]
    assert len(shown[1].asked["questions"]) == 3

    def undivided(model, optimizer, loss_function, micro_batches, accumulation_steps):
        by_count(model, optimizer, lambda *pair: 4 * loss_function(*pair), micro_batches, 4)

    check(train_accumulated=undivided, seed=1)
    assert [type(one).__name__ for one in shown[2:]] == ["Card"]


def test_a_right_answer_that_cannot_be_recorded_stays_right(shown):
    scope: dict = {}
    # Without source: what `python -c` began with is that of a "<string>", from Python 3.13 on.
    code = compile("def loop(*given):\n    by_count(*given)", "<nowhere>", "exec")
    exec(code, {"by_count": by_count}, scope)
    check(train_accumulated=scope["loop"], seed=1)
    assert [repr(one) for one in shown] == ["train_accumulated: right, 3 of 3 points"]


def test_questions_go_on_where_nothing_can_be_kept_and_pass_over_what_is_damaged(
    shown, work, capsys
):
    work.write_text("a file")
    recall.recall(LESSONS[2])
    [quiz] = shown
    quiz.chosen = [[0], [], []]
    said = capsys.readouterr().err
    assert said.startswith("Questions and answers could not be kept. ") and said.count("\n") == 1
    work.unlink()
    work.mkdir()
    for name in ("questions", "settings", "progress"):
        (work / f"{name}.jsonl").write_text('garbage\n{"questions": 3}\n[]\n')
    recall.recall(LESSONS[2])
    assert len(shown) == 2
    assert "questions.jsonl: 3 lines could not be read" in capsys.readouterr().err


@pytest.mark.parametrize("lesson", LESSONS)
def test_built_solutions_ask_as_of_today(lesson):
    """The page of a solution asks what its notebook holds; no cell changes where a question is asked in other words."""
    notebook = read_notebook(COURSE / "solutions" / f"{lesson}.ipynb")
    assert not ask_as_today(notebook), f"run `trainlean build {lesson}`"


def test_another_question_in_a_built_solution_is_put_as_of_today():
    """A reason, a recall question, one about the solution's own loop and a puzzle, each in words of its own."""
    notebook = read_notebook(COURSE / "solutions" / "1_accumulation" / "1_pytorch.ipynb")
    before = json.dumps(notebook)
    seen = Counter()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            state = output.get("metadata", {}).get("trainlean", {}).get("state", {})
            if "puzzle" in state:
                state["puzzle"]["title"] = "other"
                seen["puzzle"] += 1
            elif "asked" in state:
                state["asked"]["questions"][0]["ask"] = "other"
                output.data["text/html"] = "other"
                seen[state["asked"]["title"][:5]] += 1
    assert {*seen} == {"puzzle", "Why i", "From ", "About"}
    assert ask_as_today(notebook) == seen.total()
    assert json.loads(json.dumps(notebook)) == json.loads(before)


def test_two_reasons_of_one_cell_stay_two(shown):
    names = list(REASONS)[:3]
    cell = new_code_cell("\n".join(f'reveal("{name}", 1)' for name in names))
    for name in names:
        questions.because(name)
        state = as_saved({"asked": shown[-1].asked, "chosen": [[]]})
        output = new_output("display_data", metadata={"trainlean": {"state": state}})
        cell.outputs.append(output)
    before = json.dumps(cell)
    assert not ask_as_today(new_notebook(cells=[cell]))
    assert json.dumps(cell) == before
    cell.outputs[1].metadata["trainlean"]["state"]["asked"]["questions"][0]["ask"] = "other"
    assert ask_as_today(new_notebook(cells=[cell])) == 1
    assert cell.outputs[1].metadata["trainlean"]["state"]["asked"] == as_saved(shown[1].asked)


def as_saved(asked):
    return json.loads(json.dumps(asked))
