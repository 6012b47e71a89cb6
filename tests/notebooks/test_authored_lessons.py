"""What holds of the text of every lesson: where it imports from, how wide its code is, where its links lead, how long it takes."""

import ast
import inspect
import re
from functools import cache

import nbformat
import pytest

import trainlean
from trainlean.exercises.finding import all_exercises
from trainlean.notebooks.notebook import find_notebooks, make_lesson, read_authored
from trainlean.workspace import COURSE

LESSONS = {place.name: place for place in find_notebooks()}
WIDEST = 100  # letters; more runs out of sight on a screen of 1,440 pixels beside the file list
WORDS, LINES = 200, 10  # that are read in a minute
ASKED = {
    "recall(": 2,
    "reveal(": 0.5,
}  # minutes to answer; lines to order and one's own loop are of the exercise's
IN_THE_HEAD = 1  # minutes of a prediction that no guess keeps: to make it, and to compare it with what is printed
AT_A_STRETCH = 45  # minutes, of a lesson or up to the next place to stop
UNTOUCHED = re.compile(r"whether[^\"]* as (it was|they were)")  # what a probe shows of arguments
SAID = re.compile(r"\bas (it is|they are|it was|they were|before)\b")
LINK = re.compile(r"\]\(([^)#\s]+\.ipynb)\)")


@cache
def authored(name):
    return read_authored(LESSONS[name])


def code_cells(name):
    return [cell.source for cell in authored(name).cells if cell.cell_type == "code"]


def imports_of(source):
    """The modules of this library that a cell names in its imports; lines of IPython magic are passed over."""
    plain = "\n".join("" if line.startswith(("%", "!")) else line for line in source.splitlines())
    for node in ast.walk(ast.parse(plain)):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("name", LESSONS)
def test_every_import_of_the_library_is_from_trainlean(name):
    deeper = [
        module
        for source in code_cells(name)
        for module in imports_of(source)
        if module.startswith("trainlean.")
    ]
    assert not deeper, f"{name}: write `from trainlean import ...`, and add the name to EXPORTS"


def test_what_must_stay_as_it_is_is_said_where_the_exercise_is_set():
    """A check that compares an argument before and after asks for something that the words must ask for, too."""
    silent = []
    for exercise in all_exercises().values():
        if not UNTOUCHED.search(inspect.getsource(exercise.probe)):
            continue
        text = (COURSE / "authoring" / f"{exercise.notebook}.py").read_text(encoding="utf-8")
        before = text.split(f'exercise="{exercise.name}"')[0].split("# %% [markdown]")
        if not SAID.search(before[-1]):
            silent.append(exercise.name)
    assert not silent


@pytest.mark.parametrize("name", LESSONS)
def test_no_line_of_code_runs_out_of_sight(name):
    """Not in the solution, and not in the lesson with its stubs."""
    solution = authored(name)
    wide = [
        line
        for notebook in (solution, make_lesson(solution))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for line in cell.source.splitlines()
        if len(line) > WIDEST
    ]
    assert not wide


def changed_for_good(source):
    """Names that a cell takes from an earlier one and deletes or makes anew from themselves: its second run is another."""
    made, told = set(), set()
    for line in ast.parse(source).body:
        if isinstance(line, ast.FunctionDef | ast.ClassDef):
            made.add(line.name)
            continue
        names = [node for node in ast.walk(line) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        targets = getattr(line, "targets", [getattr(line, "target", line)])
        parts = [part for target in targets for part in getattr(target, "elts", [target])]
        stored = {part.id for part in parts if isinstance(part, ast.Name)}
        if isinstance(line, ast.Assign):
            told |= stored & read - made
        elif isinstance(line, ast.Delete):
            told |= stored - made
        elif isinstance(line, ast.AugAssign) and not isinstance(line.op, ast.BitOr):
            told |= stored - made  # `|=` puts the same into a dictionary again
        stored |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        made |= stored
    return told


@pytest.mark.parametrize("name", LESSONS)
def test_a_cell_can_be_run_twice(name):
    told = [
        f"{', '.join(sorted(names))} in: {source.splitlines()[0]}"
        for source in code_cells(name)
        if not source.startswith("%%") and (names := changed_for_good(source))
    ]
    assert not told, told


def test_what_a_second_run_would_find_changed_is_seen():
    assert changed_for_good("del a") == changed_for_good("a = [b for b in a]") == {"a"}
    assert changed_for_good("a -= 1") == {"a"} and not changed_for_good("a |= {}")
    assert not changed_for_good("a = 1\na = a + 1\na -= 1\ndel a")


@pytest.mark.parametrize("name", LESSONS)
def test_no_lesson_draws_by_hand(name):
    """Figures are drawn in trainlean/pictures, where a test sees them."""
    drawing = [
        module
        for source in code_cells(name)
        for module in imports_of(source)
        if module.split(".")[0] in ("matplotlib", "ipywidgets")
    ]
    assert not drawing


@pytest.mark.parametrize("name", LESSONS)
def test_links_to_other_lessons_lead_somewhere(name):
    here = LESSONS[name].authored.parent
    broken = [
        target
        for cell in authored(name).cells
        if cell.cell_type == "markdown"
        for target in LINK.findall(cell.source)
        if not (here / target).resolve().with_suffix(".py").is_file()
    ]
    assert not broken


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_in_the_readme_and_says_its_minutes_there_too(name):
    text = "\n".join(cell.source for cell in authored(name).cells[:1])
    minutes = re.search(r"\*\*Minutes\*\*: (\d+)", text)
    rows = [
        line
        for line in (COURSE / "README.md").read_text(encoding="utf-8").splitlines()
        if f"(lessons/{name}.ipynb)" in line and line.startswith("|")
    ]
    assert minutes and any(row.endswith(f"| {minutes[1]} |") for row in rows)


def stretches(cells):
    """Minutes up to each place to stop: words and lines of code as they are read, questions, and the exercises' own minutes."""
    minutes = [0.0]
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type == "markdown":
            if "good place to stop" in cell.source:
                minutes.append(0.0)
            minutes[-1] += len(re.findall(r"\w[\w'-]*", cell.source)) / WORDS
            minutes[-1] += sum(map(int, re.findall(r"\*(\d+) minutes\*", cell.source)))
            if "**Predict" in cell.source and not (after and "guess(" in after.source):
                minutes[-1] += IN_THE_HEAD
        elif not cell.metadata.get("jupyter", {}).get("source_hidden"):
            code = [line.split("#")[0].strip() for line in cell.source.splitlines()]
            minutes[-1] += sum(map(bool, code)) / LINES
            minutes[-1] += sum(
                time * len(re.findall(rf"^\s*{re.escape(call)}", cell.source, re.MULTILINE))
                for call, time in ASKED.items()
            )
    return minutes


@pytest.mark.parametrize("name", LESSONS)
def test_the_minutes_are_counted_and_nobody_sits_too_long(name):
    counted = stretches(make_lesson(authored(name)).cells)
    first = authored(name).cells[0].source
    stated = int(re.search(r"\*\*Minutes\*\*: (\d+)", first)[1])
    assert abs(stated - sum(counted)) <= max(5, sum(counted) / 10), f"counted: {sum(counted):.0f}"
    assert max(counted) <= 1.1 * AT_A_STRETCH, [round(minutes) for minutes in counted]


def test_the_checks_see_what_they_look_for():
    text = nbformat.v4.new_markdown_cell("one two\n\n*8 minutes* three")
    stop, code = (
        nbformat.v4.new_markdown_cell("A good place to stop."),
        nbformat.v4.new_code_cell("1\n\n# x"),
    )
    assert stretches([text, code, stop]) == pytest.approx([8 + 5 / WORDS + 1 / LINES, 5 / WORDS])
    asked = nbformat.v4.new_code_cell('recall("one")\n  reveal("two", 3, "s")\nprint("recall(")')
    assert stretches([asked]) == pytest.approx([2.5 + 3 / LINES])
    predict = nbformat.v4.new_markdown_cell("**Predict** it.")
    guessed = nbformat.v4.new_code_cell("guess(1)")
    assert stretches([predict, guessed, predict, code]) == pytest.approx(
        [4 / WORDS + 2 / LINES + IN_THE_HEAD]
    )

    assert list(imports_of("%%px\nfrom trainlean.costs import runs\nimport torch, a.b")) == [
        "trainlean.costs",
        "torch",
        "a.b",
    ]
    assert LINK.findall("[next](../a/1_b.ipynb) and [table](x.md)") == ["../a/1_b.ipynb"]


def test_a_rule_that_is_not_yet_right_has_a_stand_in():
    [cell] = [
        source
        for source in code_cells("2_checkpointing/3_trainer")
        if "if yours_is_right else" in source
    ]
    names = {name: getattr(trainlean, name) for name in ("find_exercise", "judge", "answer_of")}
    names["peak_activations"] = lambda *_: None
    exec(cell.partition("\n\n")[0], names)
    assert not names["yours_is_right"]
    assert names["kept_by_rule"](8, 1, 2, 3) == 8 * 3 + 2


def test_the_lines_that_are_put_in_places_are_those_that_the_check_runs():
    """A probe is a file that is copied alone, so these stand in it and in the lesson."""

    def literal(folder, file, name):
        tree = ast.parse((COURSE / folder / "1_accumulation" / file).read_text())
        [value] = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        ]
        return ast.literal_eval(value)

    shown = literal("authoring", "1_pytorch.py", "lines")
    assert shown == literal("exercises_tests", "1_pytorch/probes.py", "LINES")
