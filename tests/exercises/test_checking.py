"""Checking whole notebooks from outside: what is taken out of them, and what becomes of damaged ones."""

import json
import threading
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from trainlean.exercises import checking
from trainlean.exercises.checking import check_notebooks
from trainlean.exercises.finding import all_exercises
from trainlean.exercises.verdicts import CRASHED, NOT_ATTEMPTED, RIGHT, WRONG
from trainlean.notebooks.statements import needed_for, run_statements, statements
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
    monkeypatch.setattr(checking, "SECONDS", 2)
    _, seen = rows(capsys, write(tmp_path, SIGNATURE + FOR_EVER))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "within 2 s" in seen["train_accumulated"]["message"]


def test_a_wait_without_an_end_ends_though_it_computes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 1)
    monkeypatch.setattr(checking, "CLOCK_FACTOR", 2)
    _, seen = rows(capsys, write(tmp_path, "import time\n" + SIGNATURE + "    time.sleep(600)\n"))
    assert seen["train_accumulated"]["outcome"] == CRASHED
    assert "within 1 s" in seen["train_accumulated"]["message"]


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
