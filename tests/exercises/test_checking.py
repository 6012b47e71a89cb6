"""Checking whole notebooks from outside: what is taken out of them, and what becomes of damaged ones."""

import functools
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from trainlean.exercises import checking
from trainlean.exercises.checking import check_notebooks
from trainlean.exercises.finding import all_exercises
from trainlean.exercises.seeing import Seen, see_answer
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG
from trainlean.notebooks.notebook import Place, cut, make_lesson, nbgrader_mark, read_authored
from trainlean.notebooks.statements import (
    Handout,
    cell_statements,
    handout,
    needed_for,
    run_statements,
    statements,
    text_hash,
)
from trainlean.workspace import COURSE, read_records

SIGNATURE = (
    "def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):\n"
)
RIGHT_BODY = """
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
OFF_BY_ONE = RIGHT_BODY.replace("enumerate(micro_batches, 1)", "enumerate(micro_batches)")
FOR_EVER = "    while True:\n        pass\n"


def notebook_of(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def write(folder: Path, *sources) -> Path:
    path = folder / "submission.ipynb"
    nbformat.write(notebook_of(*sources), path)
    return path


def rows(capsys, *paths) -> tuple[int, dict[str, dict]]:
    status = check_notebooks(list(paths), as_json=True, seed=5)
    return status, {row["exercise"]: row for row in json.loads(capsys.readouterr().out)}


# ---------------------------------------------------------------- what is asked at all

UNTOUCHED = """
import sys
from trainlean.exercises.checking import check_notebooks
print(check_notebooks(sys.argv[1:]), "torch" in sys.modules)
"""


def lesson_of(name, folder, change=lambda cells: None):
    lesson = make_lesson(read_authored(Place(name)))
    change(lesson.cells)
    path = folder / "lesson.ipynb"
    nbformat.write(lesson, path)
    return path


def note(cells):
    cells[0].source += "\n\nMy note."


@pytest.mark.parametrize("change", [lambda cells: None, note])
def test_an_untouched_lesson_asks_nothing_and_imports_nothing(tmp_path, change):
    path = lesson_of("0_start/1_where_memory_goes", tmp_path, change)
    done = subprocess.run(
        [sys.executable, "-c", UNTOUCHED, path], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count("not attempted, 0 of 2 points") == 3, done.stderr
    assert done.stdout.endswith("1 False\n")


def test_a_stub_beside_an_answer_is_not_probed(tmp_path, capsys, monkeypatch):
    probed = []

    def see(path, exercise, seed, **_):
        probed.append(exercise.name)
        return Seen({"raised": "ValueError: x"})

    def answer(cells):
        [cell] = [c for c in cells if nbgrader_mark(c).get("grade_id") == "peak_at_batch"]
        cell.source = "def peak_at_batch(*given):\n    return 3"

    monkeypatch.setattr(checking, "see_in_process", see)
    path = lesson_of("0_start/1_where_memory_goes", tmp_path, answer)
    _, found = rows(capsys, path)
    assert probed == ["peak_at_batch"]
    assert [row["outcome"] for row in found.values()] == [NOT_ATTEMPTED, CRASHED, NOT_ATTEMPTED]


# ---------------------------------------------------------------- what an exercise needs


def test_only_what_is_needed_runs():
    found, problems = statements(
        notebook_of(
            "import math\nimport nowhere_to_be_found",
            "print('measuring for a minute')\nraise SystemExit",
            "scale = 2\nscale += 1\nunused = 1 / 0",
            "def helper(x):\n    return math.sqrt(x) * scale",
            "%matplotlib inline\n!ls\ndef answer(x):\n    model = helper(x)\n    return model",
            "model = 1 / 0\nanswer(4)",
        )
    )
    assert problems == {}
    assert run_statements(needed_for("answer", found))["answer"](4) == 6.0


def test_the_last_definition_counts_and_px_cells_too():
    found, _ = statements(
        notebook_of(
            "def answer():\n    return 1",
            "%%px --local\ndef answer():\n    return 2",
            "%%bash\ndef answer(): exit",
        )
    )
    answer = run_statements(needed_for("answer", found))["answer"]
    assert answer() == 2 and answer.__code__.co_firstlineno == 2  # the line that the learner sees


@pytest.mark.parametrize("magic", ["%%time", "%%capture out", "%%px --local", "%%timeit", "%%bash"])
def test_a_cell_under_a_magic_counts_where_its_body_is_run(magic):
    found, _ = statements(notebook_of(f"{magic}\ndef answer():\n    return 3"))
    runs = magic.split()[0] not in ("%%timeit", "%%bash")
    assert bool(found) == runs and (not runs or run_statements(found)["answer"]() == 3)


def test_what_runs_before_a_redefinition_sees_the_definition_before_it():
    found, _ = statements(
        notebook_of(
            "def made(n):\n    return lambda: n",
            "answer = made(1)",
            "def made(n, m):\n    return n * m",
            "def later():\n    return made(2, 3)",
        )
    )
    assert run_statements(needed_for("answer", found))["answer"]() == 1
    assert run_statements(needed_for("later", found))["later"]() == 6


def test_the_search_grows_with_a_notebook_not_with_its_square():
    """Thousands of statements that use each other were read for a minute and a quarter; counted in calls, not in seconds."""

    def calls(size):
        names = [f"a{number}" for number in range(size)]
        tangle = (f"{n} = [{', '.join(names[:p][-20:])}]" for p, n in enumerate(names))
        notebook, count = notebook_of("\n".join(tangle), f"answer = {names[-1]}"), 0

        def called(*_):
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            needed_for("answer", statements(notebook)[0])
        finally:
            sys.setprofile(before)
        return count

    assert calls(200) < 2.5 * calls(100)


def test_a_star_import_may_bind_anything():
    found, _ = statements(notebook_of("from math import *", "def answer():\n    return sqrt(4)"))
    assert run_statements(needed_for("answer", found))["answer"]() == 2


def test_a_decorated_and_a_recursive_function():
    found, _ = statements(
        notebook_of(
            "from functools import cache",
            "@cache\ndef answer(n):\n    return 1 if n < 2 else n * answer(n - 1)",
        )
    )
    assert run_statements(needed_for("answer", found))["answer"](5) == 120
    found, _ = statements(
        notebook_of(
            "@undefined\ndef answer(n):\n    return 0",
            "def answer(n):\n    return n and answer(n - 1)",
        )
    )
    assert run_statements(needed_for("answer", found))["answer"](5) == 0


def test_a_notebook_is_the_main_module():
    found, _ = statements(
        notebook_of("if __name__ == '__main__':\n    scale = 2", "def answer():\n    return scale")
    )
    assert run_statements(needed_for("answer", found))["answer"]() == 2


LESSON = [
    "import math\nfrom trainlean import measure",
    "def payload(x):\n    return 'the lesson'",
    "flops = 3",
    None,  # the exercise
    "steps = measure(payload)",
    "def size(x):\n    return 'of the lesson behind'\nimport string as shown",
]


def lesson_with(answer, *behind):
    """The lesson above with an answer in it and cells of the learner behind, cut for `answer`."""
    cells = [answer if cell is None else cell for cell in LESSON]
    texts = [cell if cell else "def answer(x):\n    raise NotImplementedError()" for cell in LESSON]
    handed_out = Handout({text_hash(text): n for n, text in enumerate(texts)}, {"answer": 3})
    found, _ = statements(notebook_of(*cells, *behind), handed_out)
    return needed_for("answer", found, handed_out)


@pytest.mark.parametrize("name", ["payload", "flops", "steps", "size", "shown", "math", "measure"])
def test_the_learners_helper_is_no_lessons_statement_of_the_same_name(name):
    helper = f"def {name}(x):\n    return ('mine', x)\n"
    use = f"def answer(x):\n    return {name}(x)"
    for needed in (lesson_with(helper + use), lesson_with(use + "\n" + helper)):
        assert run_statements(needed)["answer"](1) == ("mine", 1)
    if name in ("steps", "size", "shown"):  # a cell of the learner's further down
        assert run_statements(lesson_with(use, helper))["answer"](1) == ("mine", 1)


def test_a_statement_of_the_lesson_behind_the_exercise_is_never_taken():
    for name in ("steps", "size", "shown"):
        needed = lesson_with(f"def answer(x):\n    return {name}")
        assert [one.cell for one in needed] == [4]


def test_what_the_lesson_runs_is_left_out_and_told():
    handed_out = Handout({text_hash("rows = measure(print)"): 0}, {"answer": 1})
    found, _ = statements(
        notebook_of("rows = measure(print)", "def answer(x):\n    return rows"), handed_out
    )
    needed = needed_for("answer", found, handed_out)
    assert needed.left_out == {"rows": 1}
    seen = see_answer(
        replace(
            next(iter(all_exercises().values())), name="answer", probe=lambda a, _: {"it": a(1)}
        ),
        needed,
        0,
    )
    assert "cell 1 of the lesson makes it" in seen.observation["raised"]


def test_values_that_the_learner_builds_up_in_the_cell():
    found, _ = statements(
        notebook_of(
            "size = 2\nif size > 3:\n    size = 10",
            "table = {}\nfor n in range(size):\n    table[n] = n\nlayers = [1]\nlayers.append(2)\n"
            "answer = (table, layers)",
        )
    )
    assert run_statements(needed_for("answer", found))["answer"] == ({0: 0, 1: 1}, [1, 2])


def test_an_exercise_that_was_moved_to_the_top_still_finds_the_lessons_definitions():
    texts = [
        "import math",
        "def answer(x):\n    raise NotImplementedError()",
        "def root(x):\n    return -1",
    ]
    handed_out = Handout({text_hash(text): n for n, text in enumerate(texts)}, {"answer": 1})
    cells = ["def answer(x):\n    return math.sqrt(x)", texts[0], texts[2]]
    found, _ = statements(notebook_of(*cells), handed_out)
    assert run_statements(needed_for("answer", found, handed_out))["answer"](4) == 2


def test_what_a_moved_answer_needs_at_once_runs_before_it():
    texts = ["import math", "answer = None", "root = math.sqrt"]
    handed_out = Handout({text_hash(text): n for n, text in enumerate(texts)}, {"answer": 1})
    found, _ = statements(notebook_of("answer = math.sqrt(4)", texts[0], texts[2]), handed_out)
    assert run_statements(needed_for("answer", found, handed_out))["answer"] == 2


def test_the_learners_answer_counts_though_the_stub_stands_below_it():
    stub = "def answer(x):\n    raise NotImplementedError()"
    handed_out = Handout({text_hash(stub): 0}, {"answer": 0})
    found, _ = statements(notebook_of("def answer(x):\n    return x", stub), handed_out)
    assert run_statements(needed_for("answer", found, handed_out))["answer"](3) == 3


def test_a_statement_that_may_not_bind_leaves_the_one_before_it():
    found, _ = statements(
        notebook_of("size = 1\nif len('a') > 3:\n    size = 10", "def answer():\n    return size")
    )
    assert run_statements(needed_for("answer", found))["answer"]() == 1


def test_what_a_class_calls_later_is_what_is_there_later():
    """A method calls what its name means when it is called: the learner's helper below the class, not the lesson's above."""
    needed = lesson_with(
        "class Answer:\n    def __call__(self, x):\n        return payload(x)\n"
        "def payload(x):\n    return ('mine', x)\nanswer = Answer()"
    )
    assert run_statements(needed)["answer"](1) == ("mine", 1)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_what_a_method_with_a_type_parameter_is_annotated_with_is_needed():
    found, _ = statements(
        notebook_of(
            "from collections.abc import Sequence",
            "class Window:\n    def first[T](self, all: Sequence[T]) -> T:\n        return all[0]",
            "def answer():\n    return Window().first([3])",
        )
    )
    assert run_statements(needed_for("answer", found))["answer"]() == 3


def test_a_comprehension_and_the_body_of_a_class_run_at_once():
    for use in ("answer = [made(n) for n in (1, 2)]", "class answer:\n    made = made(2)"):
        found, _ = statements(
            notebook_of(f"def made(n):\n    return n\n{use}\ndef made():\n    return 0")
        )
        answer = run_statements(needed_for("answer", found))["answer"]
        assert answer == [1, 2] or answer.made == 2


@functools.cache
def names_of(lesson):
    """What a lesson binds at its top level."""
    found, _ = statements(read_authored(Place(lesson)))
    return {name for one in found for name in one.binds if name.isidentifier()}


@pytest.mark.parametrize("exercise", all_exercises().values(), ids=lambda exercise: exercise.name)
def test_a_helper_may_have_any_name_that_its_lesson_binds(exercise):
    """The answer sees the learner's helper, and nothing that trains or starts devices runs on the way."""
    cells = read_authored(Place(exercise.notebook)).cells
    number = next(
        n for n, cell in enumerate(cells) if nbgrader_mark(cell).get("grade_id") == exercise.name
    )
    handed_out = handout([exercise.notebook])
    lesson = [cut(cell.source) if cell.cell_type == "code" else None for cell in cells]
    given = [
        cell_statements(n, source, handed_out.cells[text_hash(source)]) if source else []
        for n, source in enumerate(lesson)
    ]
    for name in sorted(names_of(exercise.notebook) - {exercise.name}):
        helper = f"def {name}():\n    return 'mine'\ndef {exercise.name}():\n    return {name}()\n"
        found = [
            one
            for n, cell in enumerate(given)
            for one in (cell_statements(n, helper) if n == number else cell)
        ]
        needed = needed_for(exercise.name, found, handed_out)
        assert {one.cell for one in needed} == {number}, name
        assert run_statements(needed)[exercise.name]() == "mine"


def test_unreadable_cell_is_named():
    _, problems = statements(
        new_notebook(cells=[new_markdown_cell("text"), new_code_cell("def f(:\n  pass")])
    )
    assert list(problems) == [2] and "cell 2" in problems[2] and "line 1" in problems[2]


# ---------------------------------------------------------------- outcomes


def test_right_wrong_and_missing(tmp_path, capsys):
    status, seen = rows(capsys, write(tmp_path, SIGNATURE + RIGHT_BODY))
    assert (
        seen["train_accumulated"]["outcome"] == RIGHT and seen["train_accumulated"]["points"] == 3
    )
    others = [row for name, row in seen.items() if name != "train_accumulated"]
    assert all(
        row["outcome"] == NOT_ATTEMPTED and "does not define" in row["message"] for row in others
    )
    assert status == (1 if others else 0)
    expected = {
        name
        for name, exercise in all_exercises().items()
        if exercise.notebook == "1_accumulation/1_pytorch"
    }
    assert set(seen) == expected


def test_mistake_is_named(tmp_path, capsys):
    status, seen = rows(capsys, write(tmp_path, SIGNATURE + OFF_BY_ONE))
    row = seen["train_accumulated"]
    assert (status, row["outcome"], row["mistake"]) == (1, WRONG, "steps on the first micro-batch")
    assert "behind step 1" in row["message"]


def test_redefinition_is_told(tmp_path, capsys):
    _, seen = rows(capsys, write(tmp_path, SIGNATURE + OFF_BY_ONE, SIGNATURE + RIGHT_BODY))
    row = seen["train_accumulated"]
    assert row["outcome"] == RIGHT
    assert "cells 1, 2; the last one counts" in row["message"]


def test_endless_loop_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 1)
    monkeypatch.setattr(checking, "CLOCK_FACTOR", 50)  # only computing ends it, however busy
    _, seen = rows(capsys, write(tmp_path, SIGNATURE + FOR_EVER))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "does a loop in it never end?" in seen["train_accumulated"]["message"]


def test_a_wait_without_an_end_ends_though_it_computes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 2)
    monkeypatch.setattr(checking, "CLOCK_FACTOR", 1)
    _, seen = rows(capsys, write(tmp_path, "import time\n" + SIGNATURE + "    time.sleep(600)\n"))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "does it wait for something" in seen["train_accumulated"]["message"]


def test_who_ran_out_is_probed_once_more_alone(tmp_path, capsys, monkeypatch):
    """The first time the others may have kept the processor busy."""
    probed, see_in_process = [], checking.see_in_process

    def busy(path, exercise, seed, *, alone=False):
        probed.append((exercise.name, alone))
        return see_in_process(path, exercise, seed, alone=True) if alone else "Too busy."

    monkeypatch.setattr(checking, "see_in_process", busy)
    _, seen = rows(capsys, write(tmp_path, SIGNATURE + RIGHT_BODY))
    assert seen["train_accumulated"]["outcome"] == RIGHT
    assert probed == [("train_accumulated", False), ("train_accumulated", True)]


def test_process_that_disappears(tmp_path, capsys):
    _, seen = rows(capsys, write(tmp_path, "import os\n" + SIGNATURE + "    os._exit(0)\n"))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "ended without an answer" in seen["train_accumulated"]["message"]


def test_cell_that_raises_spoils_only_its_own_exercise(tmp_path, capsys):
    source = SIGNATURE + RIGHT_BODY
    _, seen = rows(capsys, write(tmp_path, "raise ValueError('lesson')", source))
    assert seen["train_accumulated"]["outcome"] == RIGHT
    _, seen = rows(capsys, write(tmp_path, "@undefined\n" + source))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "NameError" in seen["train_accumulated"]["message"]


def test_letters_that_python_does_not_read():
    found, problems = statements(notebook_of("x = '\ud83d'", "y = '\0'", "z = 1"))
    assert problems[1] == "cell 1 is not Python: it holds half a character (U+D83D)"
    assert "null byte" in problems[2] and "None" not in problems[2]
    assert [one.cell for one in found] == [3]


def test_syntax_error_is_told_with_its_cell(tmp_path, capsys):
    _, seen = rows(capsys, write(tmp_path, "x = 1", "def train_accumulated(:\n    pass"))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "cell 2 is not Python" in seen["train_accumulated"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b'{"cells": 3}',
        b"\xff\xfe\x00",
        b"[]",
        b'<<<<<<< HEAD\n{"cells": []}\n=======\n>>>>>>> theirs\n',
    ],
    ids=["empty", "text", "no cells", "not UTF-8", "a list", "merge conflict"],
)
def test_what_is_no_notebook_is_a_row(tmp_path, capsys, content):
    damaged, good = tmp_path / "damaged.ipynb", write(tmp_path, SIGNATURE + RIGHT_BODY)
    damaged.write_bytes(content)
    status = check_notebooks([damaged, good], as_json=True, seed=5)
    found = json.loads(capsys.readouterr().out)
    assert status == 1
    assert (
        found[0]["outcome"] == CRASHED
        and "damaged.ipynb" in found[0]["message"]
        and found[0]["exercise"] is None
    )
    assert any(row["outcome"] == RIGHT for row in found)


def test_missing_file_and_foreign_notebook(tmp_path, capsys):
    status = check_notebooks([tmp_path / "nowhere.ipynb", write(tmp_path, "x = 1")], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert status == 1
    assert "nowhere.ipynb" in found[0]["message"]
    assert "no exercise of this course" in found[1]["message"]


def test_a_lesson_is_known_by_its_place_and_counts_as_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checking, "COURSE", tmp_path)
    lesson = tmp_path / "lessons" / "1_accumulation" / "1_pytorch.ipynb"
    lesson.parent.mkdir(parents=True)
    nbformat.write(notebook_of("x = 1"), lesson)
    assert rows(capsys, lesson)[1]["train_accumulated"]["outcome"] == NOT_ATTEMPTED
    assert read_records("progress") == []
    nbformat.write(notebook_of(SIGNATURE + RIGHT_BODY), lesson)
    for path in (lesson, write(tmp_path, SIGNATURE + RIGHT_BODY)):  # the second is nobody's lesson
        assert rows(capsys, path)[1]["train_accumulated"]["outcome"] == RIGHT
    assert [(record["exercise"], record["outcome"]) for record in read_records("progress")] == [
        ("train_accumulated", RIGHT)
    ]


def test_what_progress_does_not_count_is_said(tmp_path, capsys):
    check_notebooks([write(tmp_path, SIGNATURE + RIGHT_BODY)], seed=5)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("`trainlean progress` does not count this: ")
    assert last.endswith("lessons. check(...) in the notebook itself counts.")
    nbformat.write(notebook_of("train_accumulated = None"), tmp_path / "open.ipynb")
    check_notebooks([tmp_path / "open.ipynb"], seed=5)
    assert "trainlean progress" not in capsys.readouterr().out


def test_an_outcome_that_cannot_be_kept_is_shown_all_the_same(tmp_path, capsys, monkeypatch, work):
    monkeypatch.setattr(checking, "COURSE", tmp_path)
    lesson = tmp_path / "lessons" / "1_accumulation" / "1_pytorch.ipynb"
    lesson.parent.mkdir(parents=True)
    nbformat.write(notebook_of(SIGNATURE + RIGHT_BODY), lesson)
    work.write_text("a file")
    check_notebooks([lesson], seed=5)
    said = capsys.readouterr()
    assert "train_accumulated: right, 3 of 3 points" in said.out
    assert (
        said.err.startswith("The outcome above could not be kept. ") and said.err.count("\n") == 1
    )


def exercise_cell(lesson_cells, name):
    return next(c for c in lesson_cells if nbgrader_mark(c).get("grade_id") == name)


@pytest.mark.parametrize("kind", ["raw", "markdown"])
@pytest.mark.parametrize("others", ["stubs", "answered"])
def test_an_answer_in_a_cell_that_is_no_code_any_more(tmp_path, capsys, kind, others):
    def slip(cells):
        cell = exercise_cell(cells, "train_accumulated")
        cell.cell_type, cell.source = kind, SIGNATURE + RIGHT_BODY
        del cell["outputs"], cell["execution_count"]
        if others == "answered":
            exercise_cell(cells, "places").source = "places = 3"

    path = lesson_of("1_accumulation/1_pytorch", tmp_path, slip)
    message = rows(capsys, path)[1]["train_accumulated"]["message"]
    assert f"is no code cell any more but a {kind} cell" in message and "Esc and then Y" in message


def test_an_answer_from_a_file_beside_the_notebook_is_told_where_it_belongs(tmp_path, capsys):
    (tmp_path / "mine_beside.py").write_text(SIGNATURE + RIGHT_BODY)
    path = write(tmp_path, "from mine_beside import train_accumulated")
    seen = rows(capsys, path)[1]["train_accumulated"]
    assert seen["outcome"] == CRASHED
    assert "mine_beside.py lies beside the notebook, but a check reads" in seen["message"]
    (tmp_path / "mine_beside.py").unlink()
    assert "beside the notebook" not in rows(capsys, path)[1]["train_accumulated"]["message"]


SCALED = SIGNATURE + RIGHT_BODY.replace("/ accumulation_steps", "* scale / accumulation_steps")


@pytest.mark.parametrize("where", ["above", "below", "below, and above"])
def test_a_name_from_below_the_check_is_told(tmp_path, capsys, where):
    def answer(cells):
        exercise_cell(cells, "train_accumulated").source = SCALED
        if where != "below":
            cells.insert(0, new_code_cell("scale = 1"))
        if where != "above":
            cells.append(new_code_cell("scale = 1"))

    path = lesson_of("1_accumulation/1_pytorch", tmp_path, answer)
    check_notebooks([path], seed=5)
    said = capsys.readouterr().out
    assert said.startswith("train_accumulated: right, 3 of 3 points\n")
    assert ("  It takes scale from cell" in said) == (where == "below")


def test_advice_can_be_typed_as_it_stands(tmp_path, capsys):
    folder = tmp_path / "my work"
    folder.mkdir()
    nbformat.write(notebook_of("train_accumulated_to_the_end = 3"), folder / "lesson.ipynb")
    message = rows(capsys, folder / "lesson.ipynb")[1]["train_accumulated"]["message"]
    assert f"`trainlean reset '{folder}/lesson.ipynb' train_accumulated`" in message


def test_judging_never_overlaps(tmp_path, capsys, monkeypatch):
    """Probes draw from torch's one random state: two verdicts at a time would disturb each other."""
    threads, judge = [], checking.verdict

    def noting(*arguments):
        threads.append(threading.current_thread())
        return judge(*arguments)

    monkeypatch.setattr(checking, "verdict", noting)
    lesson = COURSE / "solutions" / "1_accumulation" / "1_pytorch.ipynb"
    status, seen = rows(capsys, lesson)
    assert status == 0 and len(seen) == len(threads) > 1
    assert set(threads) == {threading.main_thread()}
