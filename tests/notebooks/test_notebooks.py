"""Reading, cutting, executing and comparing notebooks; and nbval in the build's own environment."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked_kernels
import nbformat
import psutil
import pytest

from trainlean.notebooks import building
from trainlean.notebooks import notebook as nb
from trainlean.processes import still_running
from trainlean.workspace import COURSE, CourseError

EXERCISE = '''# %% [markdown]
# # Adding one

# %% exercise="add" points=2
def add(x):
    """x plus one."""
    # BEGIN SOLUTION
    y = x + 1
    return y
    # END SOLUTION

# %% check="add"
# check(add)
add(1)
'''


def course(root: Path, **files: str) -> list[nb.Place]:
    """A course in a temporary folder: `a_b="..."` becomes authoring/unit/a_b.py."""
    (root / "authoring" / "unit").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / "authoring" / "unit" / f"{name}.py").write_text(text, encoding="utf-8")
    return nb.find_notebooks(course=root)


def build_all(places: list[nb.Place]) -> list[Path]:
    """Build what is stale and say what it was."""
    stale = building.find_stale(places)
    for item in stale:
        building.build(item)
    return [item.path for item in stale]


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    return not psutil.pid_exists(pid) or not still_running([psutil.Process(pid)])


# ---------------------------------------------------------------- the cut


@pytest.mark.parametrize(
    "source, stub",
    [
        (
            "def f(x):\n    # BEGIN SOLUTION\n    y = 1\n    return y\n    # END SOLUTION",
            "def f(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()",
        ),
        (
            "for x in y:\n    if x:\n        # BEGIN SOLUTION\n        go()\n        # END SOLUTION\n    on()",
            "for x in y:\n    if x:\n        # YOUR CODE HERE\n        raise NotImplementedError()\n    on()",
        ),
        (
            "def f():\n    # BEGIN SOLUTION\n    a()\n    # END SOLUTION\n    b()\n    # BEGIN SOLUTION\n    c()\n    # END SOLUTION",
            "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()\n    b()\n    # YOUR CODE HERE\n    raise NotImplementedError()",
        ),
        (
            "# BEGIN SOLUTION\nsizes = {'a': 1,\n         'b': 2}\n\n# a remark\nn: int = 3\na, b = 1, 2\n# END SOLUTION",
            "sizes = None  # YOUR CODE HERE\nn = None  # YOUR CODE HERE\na = None  # YOUR CODE HERE\nb = None  # YOUR CODE HERE",
        ),
        (
            "my_guess = 40  # BEGIN/END SOLUTION\nguess('bytes', my_guess, 'MiB')",
            "my_guess = None  # YOUR CODE HERE\nguess('bytes', my_guess, 'MiB')",
        ),
        (
            "def f():\n    return 4  # BEGIN/END SOLUTION",
            "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()",
        ),
        (
            "# BEGIN SOLUTION\nmodel.train()\n# END SOLUTION",
            "# YOUR CODE HERE\nraise NotImplementedError()",
        ),
        (
            "# BEGIN SOLUTION\nx[0] = 1\n# END SOLUTION",
            "# YOUR CODE HERE\nraise NotImplementedError()",
        ),
        ("%%px\n# BEGIN SOLUTION\nn = 1\n# END SOLUTION", "%%px\nn = None  # YOUR CODE HERE"),
        ("# BEGIN SOLUTION\nn = 1\nn = 2\n# END SOLUTION", "n = None  # YOUR CODE HERE"),
        ("x = 1\ny = 2", "x = 1\ny = 2"),
    ],
)
def test_cut(source, stub):
    assert nb.cut(source) == stub


@pytest.mark.parametrize(
    "text, says",
    [
        ("# %%\n# BEGIN SOLUTION\nx = 1\n", r":2: BEGIN SOLUTION without an END"),
        ("# %%\nx = 1\n# END SOLUTION\n", r":3: END SOLUTION without a BEGIN"),
        (
            "# %%\n# BEGIN SOLUTION\nx = 1\n# BEGIN SOLUTION\n# END SOLUTION\n",
            r":4: BEGIN SOLUTION again .* line 2",
        ),
        (
            "# %%\nx = 1\n\n# %%\n\n# BEGIN SOLUTION\n\n# END SOLUTION\n",
            r":6: nothing stands between",
        ),
        ("# %%\n#BEGIN SOLUTION\nx = 1\n#END SOLUTION\n", r":2: a mark stands alone"),
        ("# %%\nx = 1  # END SOLUTION\n", r":2: a mark stands alone"),
        (EXERCISE.split("# %% check")[0], r":5: exercise 'add' has no check cell"),
        (EXERCISE.replace('# %% check="add"', "# %%"), r":5: exercise 'add' has no check cell"),
        (
            EXERCISE.replace("# check(add)\n", ""),
            r":13: the check cell of 'add' must call `check\(add\)`",
        ),
        (EXERCISE + EXERCISE, r":19: exercise 'add' stands already in line 5"),
        (
            EXERCISE.replace("def add", "def added"),
            r":5: exercise 'add' must define a function add",
        ),
        (EXERCISE.replace(" points=2", ""), r":5: exercise 'add' needs points"),
        (EXERCISE.replace("points=2", "points=0"), r":5: exercise 'add' needs points"),
        (EXERCISE.replace('exercise="add"', 'exercice="add"'), r":5: cells know no 'exercice'"),
        (
            EXERCISE.replace("    # BEGIN SOLUTION\n", "").replace("    # END SOLUTION\n", ""),
            r":5: exercise 'add' marks no solution",
        ),
        (
            EXERCISE.replace("def add", "# BEGIN SOLUTION\ndef add")
            .replace('    """x plus one."""\n    # BEGIN SOLUTION\n', "")
            .replace("    # END", "# END"),
            r":5: cut, exercise 'add' no longer defines add",
        ),
        (
            EXERCISE.replace("return y", "return ("),
            r":5: exercise 'add' is not valid Python in line 5",
        ),
        ('# %% check="add"\ncheck(add)\n', r":2: check 'add' has no exercise cell before it"),
        (
            '# %% [markdown] exercise="add" points=1\n# text\n',
            r":2: exercise 'add' stands on a text cell",
        ),
        ("# %% points=2\nx = 1\n", r":2: points belong on the exercise cell"),
        ("# %%\nx = 1\n\n# %%\n\n# %%\ny = 1\n", r"this code cell is empty"),
        (
            "import os  # above the first mark\n\n# %%\nx = 1\n# END SOLUTION\n",
            r":5: END SOLUTION without a BEGIN",
        ),
        ("x = 1\n", r"has no cell"),
    ],
)
def test_authors_mistakes_get_one_sentence_with_file_and_line(tmp_path, text, says):
    [place] = course(tmp_path, first=text)
    with pytest.raises(CourseError, match=says) as caught:
        nb.read_authored(place)
    assert "first.py" in str(caught.value) and "\n" not in str(caught.value)


def test_exercise_may_be_an_assignment(tmp_path):
    text = '# %% exercise="size" points=1\n# BEGIN SOLUTION\nsize = 4 * 10\n# END SOLUTION\n\n# %% check="size"\ncheck(size)\n'
    [place] = course(tmp_path, first=text)
    assert building.fresh_lesson(place).cells[0].source == "size = None  # YOUR CODE HERE"


def test_magics_are_no_python_and_classes_are_definitions():
    assert nb.defined_names("%%px\n!ls\nx: int = 1\nclass A:\n    inner = 2") == {"x", "A"}


def test_text_may_stand_between_an_exercise_and_its_check(tmp_path):
    [place] = course(
        tmp_path,
        first=EXERCISE.replace(
            '# %% check="add"', '# %% [markdown]\n# Then check it.\n\n# %% check="add"'
        ),
    )
    assert nb.exercise_cells(building.fresh_lesson(place)) == [nb.ExerciseCell("add", 2, 1, 3)]


def test_a_long_name_makes_valid_ids(tmp_path):
    [place] = course(tmp_path, first=EXERCISE.replace("add", "a" * 70))
    lesson = building.fresh_lesson(place)
    nbformat.validate(lesson)
    assert len({cell.id for cell in lesson.cells}) == len(lesson.cells)


def test_marks_of_another_tool_are_no_exercise():
    cells = [
        nbformat.v4.new_code_cell("x", metadata={"nbgrader": mark})
        for mark in ({"solution": True}, "text", {"grade": True})
    ]
    assert nb.exercise_cells(nbformat.v4.new_notebook(cells=cells)) == []


def test_lesson_carries_nbgrader_metadata_tags_and_no_solution(tmp_path):
    [place] = course(tmp_path, first=EXERCISE + '\n# %% tags=["devices"]\nprint(1)\n')
    lesson = building.fresh_lesson(place)
    nbformat.validate(lesson)
    exercise, check = lesson.cells[1], lesson.cells[2]
    assert exercise.metadata.nbgrader == {
        "grade": False,
        "grade_id": "add",
        "locked": False,
        "schema_version": 3,
        "solution": True,
        "task": False,
    }
    assert check.metadata.nbgrader == {
        "grade": True,
        "grade_id": "add-check",
        "locked": True,
        "points": 2,
        "schema_version": 3,
        "solution": False,
        "task": False,
    }
    assert lesson.cells[3].metadata == {"tags": ["devices"]}
    assert "y = x + 1" not in json.dumps(lesson)
    assert nb.exercise_cells(lesson) == [nb.ExerciseCell("add", 2, 1, 2)]


def test_ids_are_unique_and_move_with_the_content(tmp_path):
    cells = ["# %%\nx = 1\n", "# %%\nx = 1\n", "# %%\ny = 2\n"]
    ids = [cell.id for cell in nb.read_authored(course(tmp_path, first="\n".join(cells))[0]).cells]
    assert len(set(ids)) == 3
    again = [
        cell.id
        for cell in nb.read_authored(course(tmp_path, first="\n".join(reversed(cells)))[0]).cells
    ]
    assert set(again) == set(ids) and again[0] == ids[2]


# ---------------------------------------------------------------- names and reading


def test_notebooks_are_found_by_path_name_unit_and_last_part(tmp_path):
    for name in ("0_start/1_a", "1_next/1_b", "1_next/2_c", "2_last/1_b"):
        path = tmp_path / "authoring" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# %%\nx = 1\n")

    def names(*given):
        return [place.name for place in nb.find_notebooks(given, tmp_path)]

    assert names() == ["0_start/1_a", "1_next/1_b", "1_next/2_c", "2_last/1_b"]
    assert names("solutions/2_last/") == names("./authoring/2_last/1_b.py") == ["2_last/1_b"]
    assert (
        names(tmp_path / "authoring/1_next/2_c.py")
        == names("lessons/1_next/2_c.ipynb")
        == names("2_c")
        == ["1_next/2_c"]
    )
    assert (
        names("1_next") == names(tmp_path / "solutions" / "1_next") == ["1_next/1_b", "1_next/2_c"]
    )
    assert names("2_c", "1_a") == ["0_start/1_a", "1_next/2_c"]
    with pytest.raises(CourseError, match="no notebook '3_d'; it has 0_start/1_a"):
        names("3_d")
    with pytest.raises(
        CourseError,
        match="1_b names several notebooks: 1_next/1_b, 2_last/1_b; give the whole name",
    ):
        names("1_b")


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "There is no notebook"),
        (b"", "is empty"),
        (b'{"cells": [', "line 1: this is not JSON"),
        (
            b'{\n<<<<<<< HEAD\n"cells": []\n=======\n>>>>>>> theirs\n}',
            "line 2: git left merge conflict marks",
        ),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "a number of thousands of digits"),
        (b"<!DOCTYPE html>", "it is a web page: download the notebook itself"),
        (b"version https://git-lfs.github.com/spec/v1", "run `git lfs pull`"),
        (b"[1, 2]", "not a Jupyter notebook"),
        (b'{"a": 1}', "not a Jupyter notebook"),
        (
            b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code"}]}',
            "not a Jupyter notebook",
        ),
        (
            b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 7}',
            "not a Jupyter notebook",
        ),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"nbformat": 9, "nbformat_minor": 0, "metadata": {}, "cells": []}', "notebook format 9"),
    ],
)
def test_unreadable_notebooks_get_one_sentence(tmp_path, content, says):
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CourseError, match=says) as caught:
        nb.read_notebook(path)
    assert "x.ipynb" in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_no_notebook(tmp_path):
    with pytest.raises(CourseError, match="is a folder"):
        nb.read_notebook(tmp_path)


def test_old_formats_are_upgraded(tmp_path):
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {},
        "worksheets": [
            {
                "metadata": {},
                "cells": [
                    {
                        "cell_type": "code",
                        "input": ["x = 1\n", "y = 2"],
                        "language": "python",
                        "metadata": {},
                        "outputs": [],
                        "prompt_number": 1,
                        "collapsed": False,
                    }
                ],
            }
        ],
    }
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(old))
    assert nb.read_notebook(path).cells[0].source == "x = 1\ny = 2"
    bare = {
        "nbformat": 4,
        "nbformat_minor": 2,
        "metadata": {},
        "cells": [{"cell_type": "code", "source": ["a\n", "b"], "metadata": {}}],
    }
    path.write_text(json.dumps(bare))
    [cell] = nb.read_notebook(path).cells
    assert cell.id and nb.read_notebook(path).nbformat_minor == 5
    assert (cell.source, cell.outputs, cell.execution_count) == ("a\nb", [], None)
    del old["worksheets"][0]["cells"][0]["collapsed"]
    old["worksheets"][0]["cells"][0]["metadata"] = None
    path.write_text(json.dumps(old))
    assert nb.read_notebook(path).cells[0].metadata == {}


# ---------------------------------------------------------------- building


def test_build_executes_cuts_and_then_finds_nothing_stale(tmp_path):
    text = (
        EXERCISE
        + """
# %%
import os
from pathlib import Path
from trainlean.workspace import append_record, read_records
append_record("runs", {})
print(Path.cwd().name, len(read_records("runs")), os.environ["TRAINLEAN_QUIET"], os.environ["OMP_NUM_THREADS"])

# %% tags=["raises-exception"]
1 / 0

# %%
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()

# %%
import ipywidgets
ipywidgets.IntSlider(3)
"""
    )
    places = course(tmp_path, first=text, second="# %%\nprint('two')\n")
    first, second = places
    assert build_all(places) == [first.solution, first.lesson, second.solution, second.lesson]
    solution = nb.read_notebook(first.solution)
    nbformat.validate(solution)
    assert building.unfinished(solution) is None
    assert solution.cells[2].outputs[0].data["text/plain"] == "2"
    assert solution.cells[3].outputs[0].text == "unit 1 1 1\n"
    assert "image/png" in solution.cells[5].outputs[0].data
    assert list(solution.cells[6].outputs[0].data) == ["text/plain"]  # no widget without its kernel
    assert (
        "execution" not in json.dumps([cell.metadata for cell in solution.cells])
        and "widgets" not in solution.metadata
    )
    assert all(
        cell.outputs == [] and cell.execution_count is None
        for cell in nb.read_notebook(first.lesson).cells
        if cell.cell_type == "code"
    )
    assert build_all(places) == []

    before = first.lesson.read_bytes()
    first.lesson.unlink()
    assert build_all(places) == [first.lesson] and first.lesson.read_bytes() == before

    course(tmp_path, second="# %%\nprint('three')\n")
    assert build_all(places) == [second.solution, second.lesson]
    assert nb.read_notebook(second.solution).cells[0].outputs[0].text == "three\n"


def test_where_only_texts_change_outputs_stay(tmp_path):
    """A number that each run prints anew tells whether it ran."""
    code = "# %%\nimport time\nprint(time.time_ns())\n"
    [place] = course(tmp_path, first=f"# %% [markdown]\n# One.\n\n{code}")
    build_all([place])
    [before] = nb.read_notebook(place.solution).cells[1].outputs

    course(tmp_path, first=f"# %% [markdown]\n# Two.\n\n{code}\n# %% [markdown]\n# Three.\n")
    assert build_all([place]) == [place.solution, place.lesson]
    built = nb.read_notebook(place.solution)
    assert [cell.source for cell in built.cells if cell.cell_type == "markdown"] == [
        "Two.",
        "Three.",
    ]
    assert built.cells[1].outputs == [before] and building.find_stale([place]) == []

    course(tmp_path, first=f"# %% [markdown]\n# Two.\n\n{code}print(1)\n")
    build_all([place])
    assert nb.read_notebook(place.solution).cells[1].outputs[0].text != before.text


def test_stale_is_said_with_its_reason(tmp_path):
    [place] = course(tmp_path, first="# %%\nx = 1\nx\n")
    build_all([place])
    good = place.solution.read_text()

    def reason(old, new):
        assert old in good
        place.solution.write_text(good.replace(old, new))
        return [item.why for item in building.find_stale([place])]

    assert reason('"execution_count": 1,\n   "id"', '"execution_count": null,\n   "id"') == [
        "has a cell that was never run (cell 1)"
    ]
    assert reason('"x = 1\\n"', '"x = 2\\n"') == ["differs from the authored cells"]
    assert reason('"metadata": {},\n   "outputs"', '"metadata": {"tags": []},\n   "outputs"') == [
        "differs from the authored cells"
    ]
    assert reason("Train Lean", "another") == ["has other notebook metadata than a build gives"]
    assert reason('"nbformat": 4', '"nbformat": ')[0].startswith("cannot be read")
    assert reason(nb.read_authored(place).cells[0].id, "another-id") == [building.OTHER_TEXT]
    failed = json.loads(good)
    failed["cells"][0]["outputs"] = [
        {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
    ]
    assert reason(good, json.dumps(failed)) == ["has a cell that failed (cell 1)"]
    place.solution.write_text(good)
    for lesson in (place.lesson.read_bytes() + b"\n", b"\xff"):
        place.lesson.write_bytes(lesson)
        assert [item.why for item in building.find_stale([place])] == ["differs from a fresh cut"]


def test_a_cell_that_raises_fails_with_file_cell_and_line(tmp_path):
    [place] = course(
        tmp_path, first="# %%\n\n\ndef f():\n    return 1 / 0\n\n# %%\n# why\nx = 1\nf()\n"
    )
    with pytest.raises(
        building.CellError,
        match=r"first\.py:10: cell 2 raises ZeroDivisionError: division by zero$",
    ) as caught:
        build_all([place])
    assert "return 1 / 0" in caught.value.traceback
    assert not place.solution.exists()


def test_outputs_may_not_name_this_machine_nor_be_huge(tmp_path):
    [place] = course(tmp_path, first="# %%\nimport trainlean\n\n# %%\nprint(trainlean.__file__)\n")
    with pytest.raises(
        CourseError, match=r"first\.py:5: the output of cell 2 names a folder of this machine"
    ):
        build_all([place])
    [place] = course(tmp_path, first="# %%\nx = 1\n\n# %%\nprint('x\\n' * 150_000)\n")
    with pytest.raises(
        CourseError,
        match=r"first\.ipynb would have 1\d{3} kB, more than 500; cell 2 is the largest",
    ):
        build_all([place])
    assert not place.solution.exists()


def test_processes_that_a_notebook_leaves_are_ended(tmp_path):
    text = "# %%\nimport subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True).pid)\n"
    [place] = course(tmp_path, first=text)
    build_all([place])
    pid = int(nb.read_notebook(place.solution).cells[0].outputs[0].text)
    assert ended(pid)


def test_orphans_are_found_but_not_a_learners_own_notebooks(tmp_path):
    places = course(tmp_path, first="# %%\nx = 1\n", second="# %%\nx = 2\n")
    build_all(places)
    own = nbformat.v4.new_notebook()
    nbformat.write(own, tmp_path / "lessons" / "unit" / "Untitled.ipynb")
    copies = tmp_path / "solutions" / "unit" / ".ipynb_checkpoints"
    copies.mkdir()
    nbformat.write(own, copies / "first-checkpoint.ipynb")
    assert building.find_orphans(places, tmp_path) == []
    places[1].authored.unlink()
    assert building.find_orphans(places[:1], tmp_path) == [places[1].lesson, places[1].solution]


# ---------------------------------------------------------------- a learner's work is never lost


def edit(place: nb.Place, change) -> None:
    lesson = nb.read_notebook(place.lesson)
    change(lesson)
    nbformat.write(lesson, place.lesson)


def test_build_keeps_a_lesson_aside_only_when_it_was_worked_in(tmp_path, work):
    [place] = course(tmp_path, first=EXERCISE)
    building.build(building.Stale(place, place.lesson, ""))
    edit(
        place,
        lambda lesson: lesson.metadata.update(language_info={"name": "python", "version": "3.13"}),
    )  # only opened and saved
    assert building.build(building.Stale(place, place.lesson, "")) is None
    edit(place, lambda lesson: lesson.cells[1].update(source="def add(x):\n    return 7"))
    kept = building.build(building.Stale(place, place.lesson, ""))
    assert kept.parent == work / "kept" and "return 7" in kept.read_text()
    assert building.find_stale([place])[-1].path == place.solution  # the lesson is current again
    nbformat.write(nbformat.v4.new_notebook(), place.lesson)  # not one that was cut here
    assert building.build(building.Stale(place, place.lesson, "")).parent == work / "kept"


def test_reset_gives_the_lesson_back_and_keeps_even_an_unreadable_one(tmp_path):
    [place] = course(tmp_path, first=EXERCISE)
    assert building.reset_lesson(place) is None
    fresh = place.lesson.read_bytes()
    place.lesson.write_text("<<<<<<< HEAD\n")
    with pytest.raises(
        CourseError, match="merge conflict .* reset the whole lesson: `trainlean reset "
    ):
        building.reset_exercise(place, "add")
    kept = [building.reset_lesson(place), building.reset_lesson(place)]
    assert place.lesson.read_bytes() == fresh
    assert kept[0].read_text() == "<<<<<<< HEAD\n" and kept[1].read_bytes() == fresh


def test_reset_of_one_exercise_leaves_the_rest_alone(tmp_path):
    [place] = course(tmp_path, first=EXERCISE)
    building.reset_lesson(place)
    stub = nb.read_notebook(place.lesson).cells[1].source

    def work_in(lesson):
        lesson.cells[0].source = "my notes"
        lesson.cells[1].source = "def add(x):\n    return 7"
        copy = nbformat.v4.new_code_cell("def add(x):\n    return 8")  # pasted: without metadata
        lesson.cells += [copy, nbformat.v4.new_code_cell("def half(:")]

    edit(place, work_in)
    kept = building.reset_exercise(place, "add")
    assert (
        "return 7" in kept.read_text() and "return 8" in kept.read_text() and kept.suffix == ".py"
    )
    lesson = nb.read_notebook(place.lesson)
    assert [cell.source for cell in lesson.cells] == [
        "my notes",
        stub,
        "# check(add)\nadd(1)",
        "def half(:",
    ]

    edit(place, lambda lesson: lesson.cells.pop(1))  # deleted: comes back where it was
    assert building.reset_exercise(place, "add") is None
    assert nb.exercise_cells(nb.read_notebook(place.lesson)) == [nb.ExerciseCell("add", 2, 1, 2)]
    with pytest.raises(CourseError, match="has no exercise 'ad'; its exercises: add"):
        building.reset_exercise(place, "ad")


# ---------------------------------------------------------------- the course's own solutions, and nbval


@pytest.mark.parametrize(
    "path", sorted((COURSE / "solutions").rglob("*.ipynb")), ids=lambda path: path.stem
)
def test_every_cell_of_the_solutions_ran(path):
    """nbval compares nothing in a cell without an execution count, so a stripped notebook would pass it."""
    assert building.unfinished(nb.read_notebook(path)) is None
    assert path.stat().st_size <= building.SIZE_LIMIT


def nbval(folder: Path) -> subprocess.CompletedProcess:
    """Strict nbval with the Makefile's options and the course's conftest, on a folder elsewhere."""
    options = re.search(r"^NBVAL = (.*)$", (COURSE / "Makefile").read_text(), re.MULTILINE)[1]
    options = options.replace(
        "tests/support/nbval.cfg", str(COURSE / "tests" / "support" / "nbval.cfg")
    ).split()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *options,
        str(folder),
    ]
    environment = dict(os.environ)
    if forked_kernels.PLACE not in environment:  # no server that this worker could share
        environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": f"{COURSE}{os.pathsep}{COURSE / 'tests' / 'support'}"},
        capture_output=True,
        text=True,
    )


def test_nbval_repeats_the_build_and_sees_a_wrong_number(tmp_path):
    right = """# %%
import os, sys, time
from trainlean.workspace import append_record, read_records
append_record("runs", {})
print(len(read_records("runs")), os.environ["OMP_NUM_THREADS"], os.environ["PYTHONHASHSEED"], set("abc"))

# %%
import pandas
now = 1 + time.time() % 8  # spaces before it, which pandas turns into &nbsp;
text = f"{now:8.3f} s ({now - 1e-3:8.3f}\N{EN DASH}{now:8.3f})", f"{now:8.1f} samples/s"
print(*text)
pandas.DataFrame({"time": text[:1], "samples/s": text[1:], "peak MiB": [12.3]})

# %%
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
with open("child", "w") as file:
    file.write(str(child.pid))
"""
    # a time that is not in the fixed form; and the first notebook's record must not be seen
    wrong = right.split("# %%\nimport pandas")[0] + "# %%\nprint(f'{time.time():.3f} s')\n"
    build_all(course(tmp_path, right=right, wrong=wrong))
    done = nbval(tmp_path / "solutions")
    assert "1 failed, 4 passed" in done.stdout, done.stdout
    assert "wrong.ipynb::Cell 1" in done.stdout and done.returncode == 1
    assert ended(int((tmp_path / "solutions" / "unit" / "child").read_text()))


def test_the_readme_lists_every_lesson_with_its_minutes():
    rows = dict(
        re.findall(
            r"\]\(lessons/(\S+)\.ipynb\).*\| (\d+) \|$",
            (COURSE / "README.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    minutes = {}
    for place in nb.find_notebooks():
        text = place.authored.read_text(encoding="utf-8")
        minutes[place.name] = re.search(r"\*\*Minutes\*\*: (\d+)", text)[1]
    assert list(rows.items()) == list(minutes.items())


def test_reading_notebooks_does_not_build_a_grammar_of_web_addresses():
    """Which took two seconds of every process that reads one."""
    code = "import sys, trainlean.notebooks.notebook; sys.exit('lark' in sys.modules or 'rfc3987_syntax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=COURSE).returncode == 0
