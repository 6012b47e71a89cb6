"""JupyterLab as `trainlean lab` opens it, in the course's own environment: the map with the learner's progress, and a lesson as a learner uses it.

The lesson lies where the course's first one does. All goes on in one page, since opening it takes longest.
"""

import json
import re
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from running_lab import PATIENCE, TOKEN, RunningLab
from seen_pages import violations

from trainlean.notebooks.course import course_map
from trainlean.notebooks.notebook import KERNELSPEC
from trainlean.notebooks.saving import STATE, VIEW

LESSONS = course_map()
FIRST = LESSONS[0]
LESSON = f"lessons/{FIRST.name}.ipynb"
CELLS = [
    new_markdown_cell(
        "# A lesson\n\n" + "It explains a thing at length. " * 20 + "\n\n## Exercise: one"
    ),
    # The answer, with one place to change.
    new_code_cell(
        """from trainlean import check
WRONG = True
def peak_at_batch(peak, batch, new_batch):
    grows = peak if WRONG else ("activations", "temporary")
    return peak | {category: peak[category] / batch * new_batch for category in grows}
check(peak_at_batch)"""
    ),
    new_code_cell("WRONG = False\ncheck(peak_at_batch)"),
    new_code_cell(
        """import time
from trainlean.costs.runs import Run
from trainlean import explorer, player, record
calls, seconds = [], 1
def run(size, steps):
    return Run(f"{size}x{steps}", {"micro_batch": size, "accumulation_steps": steps}, {"weights": size * 2**20}, (size / 50,), size * steps)
def measure_point(micro_batch, accumulation_steps):
    calls.append(micro_batch)
    time.sleep(seconds)
    return run(micro_batch, accumulation_steps)
explorer([run(16 // k, k) for k in (1, 2, 4)], measure=measure_point, budget=10 * 2**20)"""
    ),
    new_code_cell("explorer([run(8, 1), run(4, 1)])"),
    new_code_cell(
        """def loop(batches):
    weight = 0.0
    for i, x in enumerate(batches):
        weight -= x
    return weight
player(record(loop, [1.0, 2.0], watch={"weight": lambda v: v["weight"], "micro-batch": lambda v: v["i"]}), step=1)"""
    ),
    new_code_cell(
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), leave=False): time.sleep(0.05)"
    ),
    new_code_cell("seconds = 30"),
    new_code_cell("print('measured', calls)"),
    new_code_cell(
        """from trainlean import put_in_order, recall
recall("1_accumulation/1_pytorch")
put_in_order("train_accumulated")"""
    ),
]
ASKING = ":is(.tl-quiz, .tl-lines)"
WINDOW = {"width": 1440, "height": 900}
# What Notebook 7 says of itself in its console, whatever it shows.
OF_NOTEBOOK = (
    r"reading 'schema'|'filebrowser:open-path' not registered|403 .*/static/notebook/\w+\.woff2"
)
FIRST_EXPLORER, SECOND_EXPLORER, PLAYER, SLOW, CALLS, QUESTIONS = 3, 4, 5, 7, 8, 9


class Lab(RunningLab):
    """JupyterLab on the course with one lesson."""

    def __init__(self, folder):
        self.lesson = folder / LESSON
        self.lesson.parent.mkdir(parents=True)
        nbformat.write(new_notebook(cells=CELLS, metadata={"kernelspec": KERNELSPEC}), self.lesson)
        super().__init__(folder)

    def answered(self, exercise, outcome, points, mistake=""):
        """Write down what a lesson's kernel writes down of an answer."""
        record = {
            "notebook": FIRST.name,
            "exercise": exercise,
            "outcome": outcome,
            "points": points,
            "mistake": mistake,
        }
        (self.folder / "TRAINLEAN_WORK").mkdir(exist_ok=True)
        with open(self.folder / "TRAINLEAN_WORK" / "progress.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def answers(self, kind):
        """How many answers of a kind the learner's records have, once the kernel has written them."""
        path, until = self.folder / "TRAINLEAN_WORK" / "questions.jsonl", time.monotonic() + 10
        while time.monotonic() < until:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if found := sum(json.loads(line)["kind"] == kind for line in lines):
                return found
            time.sleep(0.1)
        return 0


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.end()


@pytest.fixture(scope="module")
def page(lab, open_page_of_module):
    """JupyterLab on the map."""
    page = open_page_of_module(f"{lab.root}lab?token={TOKEN}&reset", viewport=WINDOW)
    page.set_default_timeout(PATIENCE * 1000)
    page.locator("#trainlean-start").get_by_role("heading", name="Train Lean").wait_for()
    return page


def lesson_is_there(page):
    """Wait until a lesson and its kernel are."""
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
    )


def command(page, name, **arguments):
    """Begin one of JupyterLab's commands."""
    page.evaluate(
        "([name, more]) => void jupyterapp.commands.execute(name, more)", [name, arguments]
    )


def cell(page, number):
    """A cell, brought into view: JupyterLab draws only what is near."""
    page.evaluate(f"jupyterapp.shell.currentWidget.content.scrollToItem({number}, 'center')")
    return page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}']")


def run(page, number):
    """Run a cell, to its end."""
    page.evaluate(
        """async (number) => {
          const notebook = jupyterapp.shell.currentWidget.content;
          notebook.deselectAll();
          notebook.activeCellIndex = number;
          await jupyterapp.commands.execute('notebook:run-cell');
        }""",
        number,
    )


def says(page, number, words, selector=""):
    """Wait until an output of a cell says something."""
    cell(page, number).locator(f".jp-OutputArea {selector}".strip()).get_by_text(
        re.compile(words)
    ).first.wait_for()


# In letters' heights.
WIDEST = (
    "(all) => Math.max(...all.map((p) => p.clientWidth / parseFloat(getComputedStyle(p).fontSize)))"
)


def titled(explorer, words):
    """Wait until an explorer shows this point."""
    explorer.locator(".tl-title").first.filter(has_text=re.compile(f"^{words}$")).wait_for()


def dark(page, is_dark):
    """Change the theme, and wait until it is seen: meanwhile a splash screen lies above all."""
    command(page, "apputils:change-theme", theme=f"JupyterLab {'Dark' if is_dark else 'Light'}")
    page.wait_for_function(
        "(light) => document.body.dataset.jpThemeLight === light && !document.querySelector('#jupyterlab-splash')",
        arg=str(not is_dark).lower(),
    )


def save(page, lab):
    page.evaluate("jupyterapp.shell.currentWidget.context.save()")
    return nbformat.read(lab.lesson, as_version=4)


def views(notebook):
    """What a notebook shows of widgets."""
    outputs = (output for one in notebook.cells for output in one.get("outputs", []))
    return [output.data[VIEW] for output in outputs if VIEW in output.get("data", {})]


def test_the_map_opens_first_shows_progress_and_leads_into_lessons(lab, page):
    start = page.locator("#trainlean-start")
    assert start.get_by_role("heading", level=3).count() == len(LESSONS)
    assert page.locator(".jp-Launcher").count() == 0
    assert page.get_by_text("Would you like to").count() == 0  # news, privacy
    assert "Begin with the first lesson" in start.inner_text()
    assert start.locator(".state.open").count() == sum(len(one.exercises) for one in LESSONS)
    assert start.locator("p").evaluate_all(WIDEST) <= 46

    # What a lesson's kernel writes down is on the map when it comes into view again.
    names = [name for name, _ in FIRST.exercises]
    lab.answered(names[0], "right", FIRST.exercises[0][1])
    lab.answered(names[1], "wrong", 0, "weights forgotten")
    start.get_by_role("link", name=FIRST.title).first.click()
    lesson_is_there(page)
    assert page.evaluate("jupyterapp.shell.currentWidget.context.path") == LESSON
    page.locator(".lm-TabBar-tab", has_text="Train Lean").first.click()
    start.locator(".state.right").first.wait_for()
    card = start.locator(".lesson").first
    assert f"1 right, 1 wrong, {len(names) - 2} open" in card.inner_text()
    assert f"{names[1]}: wrong (weights forgotten)" in card.inner_text()
    assert f"1 of {start.locator('.state').count()} exercises are right" in start.inner_text()
    assert violations(page, "#trainlean-start") == []
    dark(page, True)
    assert violations(page, "#trainlean-start") == []
    dark(page, False)


def test_a_learners_day(lab, page, open_page):
    """In one test, since each step begins where the one before ends."""
    page.get_by_role("link", name=FIRST.title).first.click()
    lesson_is_there(page)
    assert page.get_by_text("Would you like to").count() == 0  # news
    prose = (
        cell(page, 0)
        .locator("p")
        .evaluate("(p) => p.clientWidth / parseFloat(getComputedStyle(p).fontSize)")
    )
    assert prose <= 46
    heading = cell(page, 0).locator("h2")
    assert heading.evaluate("(one) => getComputedStyle(one).borderLeftWidth") == "4px"

    # Answer wrong, then right.
    for number in range(len(CELLS)):
        if number != SLOW:
            run(page, number)
    says(page, 1, r"^Wrong|wrong")
    says(page, 2, "Right|right")

    # Move controls, by keyboard and mouse.
    says(page, CALLS, r"measured \[\]")
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    first.get_by_label("micro-batch").focus()
    page.keyboard.press("ArrowLeft")
    titled(first, "8×2, measured")
    first.get_by_role("option", name=re.compile("^4×4")).click()
    titled(first, "4×4, measured")
    first.locator(".tl-points").press("ArrowLeft")
    titled(first, "8×2, measured")
    first.locator(".tl-points").press("ArrowRight")
    titled(first, "4×4, measured")
    # The other explorer, of the same runs' names, stands as it stood.
    titled(cell(page, SECOND_EXPLORER), "8×1, measured")
    assert page.locator(".tl-explorer input[type=radio]:checked").count() == 2
    ids = page.evaluate("[...document.querySelectorAll('.trainlean [id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))  # in Jupyter each widget is a module of its own
    broken = violations(page, ".jp-Notebook .tl-explorer")
    assert broken == []

    # Answer questions, by keyboard: arrows go from answer to answer and not from cell to cell, and the answers are kept.
    quiz = cell(page, QUESTIONS).locator(".tl-quiz")
    quiz.locator(".tl-option").nth(1).press("ArrowUp")
    assert page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == QUESTIONS
    for _ in range(4):
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowDown")
    quiz.locator(".tl-right").first.wait_for()
    lines = cell(page, QUESTIONS).locator(".tl-lines")
    lines.locator("summary").press("Enter")
    lines.locator(".tl-pool button").first.press("Enter")
    lines.locator(".tl-check").press("Enter")
    assert lines.locator(".tl-verdict").inner_text()
    lines.locator(".tl-answer button").first.press("ArrowRight")  # kept without another check
    assert violations(page, f".jp-Notebook {ASKING}") == []
    assert lab.answers("recall") >= 1 and lab.answers("lines") == 1

    # Measure: one press and a double click are a measurement each. The button is off before the kernel hears of it.
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    first.get_by_label("fixed memory").check()
    first.get_by_label("micro-batch").fill("0")
    button = first.get_by_role("button", name="measure this point")
    bar = first.locator("progress")
    assert button.evaluate("(one) => (one.click(), one.disabled)")
    says(page, FIRST_EXPLORER, r"^\d+×4 measured\.$", ".tl-status")
    titled(first, r"\d+×4, measured")
    assert button.is_enabled() and bar.is_hidden()
    first.get_by_label("accumulation steps").fill("0")
    button.dblclick()
    says(page, FIRST_EXPLORER, r"^\d+×1 measured\.$", ".tl-status")
    page.wait_for_timeout(1500)
    run(page, CALLS)
    says(page, CALLS, r"measured \[\d+, \d+\]")

    # The third press, in a thread of its own in JupyterLab, is interrupted; a cell waits until then, and is not measured with it.
    run(page, SLOW)
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    first.get_by_label("accumulation steps").fill("1")
    button.click()
    says(page, FIRST_EXPLORER, "Measuring .*Interrupt the kernel", ".tl-status")
    assert bar.is_visible()
    began = time.monotonic()
    command(page, "notebook:interrupt-kernel")
    says(page, FIRST_EXPLORER, "could not be measured. It was interrupted.", ".tl-status")
    assert time.monotonic() - began < 15 and button.is_enabled() and bar.is_hidden()

    # Dark theme.
    dark(page, True)
    cell(page, FIRST_EXPLORER).locator(".tl-explorer.tl-dark").wait_for()
    assert violations(page, ".jp-Notebook .tl-explorer") == []
    cell(page, PLAYER).locator(".tl-player.tl-dark").wait_for()
    assert violations(page, ".jp-Notebook .tl-player") == []
    for kind in (".tl-quiz", ".tl-lines"):
        cell(page, QUESTIONS).locator(f"{kind}.tl-dark").wait_for()
    assert violations(page, f".jp-Notebook {ASKING}") == []
    card = cell(page, 2).locator(".jp-OutputArea-output div[style*=border-left]").first
    paper = card.evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert max(int(share) for share in re.findall(r"\d+", paper)[:3]) < 100
    dark(page, False)

    # Save: the widgets are kept with the notebook, the progress bar is not.
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    first.get_by_role("option", name=re.compile("^8×2")).click()
    titled(first, "8×2, measured")
    cell(page, PLAYER).get_by_role("button", name="last step").click()
    page.wait_for_timeout(600)
    saved = save(page, lab)
    states = saved.metadata.widgets[STATE]["state"]
    assert len(views(saved)) == 5 and all(view["model_id"] in states for view in views(saved))
    assert not saved.cells[6].outputs
    assert lab.lesson.stat().st_size < 500_000
    kept = lab.lesson.read_bytes()

    # Restart the kernel: the explorer says so before anything is pressed; it and the player live on.
    page.evaluate("void jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    status = first.locator(".tl-status")
    status.filter(has_text=re.compile("^No kernel answers.*Run this cell")).wait_for(timeout=10_000)
    first.get_by_label("fixed batch").check()
    button.click()
    says(page, FIRST_EXPLORER, "^No kernel answers", ".tl-status")
    assert button.is_enabled()
    first.get_by_role("option", name=re.compile("^4×4")).click()
    titled(first, "4×4, measured")
    cell(page, PLAYER).get_by_role("button", name="first step").click()
    # JupyterLab keeps no widgets now: what is saved are the pictures, and no view that would be an error.
    saved = save(page, lab)
    states = saved.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    assert all(view["model_id"] in states for view in views(saved))
    for number in (FIRST_EXPLORER, SECOND_EXPLORER, PLAYER):
        assert "image/png" in saved.cells[number].outputs[0].data

    # With the cell run again the word is gone, and the button measures.
    run(page, FIRST_EXPLORER)
    status.filter(has_not_text="No kernel answers").wait_for()
    button.click()
    says(page, FIRST_EXPLORER, "×1 measured", ".tl-status")

    # Close, and open again what was saved before, on the next day.
    page.close()
    for session in lab.ask("sessions"):
        lab.ask(f"sessions/{session['id']}", "DELETE")
    lab.lesson.write_bytes(kept)
    page = open_page(f"{lab.root}lab/tree/{LESSON}?token={TOKEN}&reset", viewport=WINDOW)
    page.set_default_timeout(PATIENCE * 1000)
    lesson_is_there(page)
    first = cell(page, FIRST_EXPLORER).locator(".tl-explorer")
    first.wait_for()
    titled(first, "8×2, measured")
    first.get_by_role("option", name=re.compile("^4×4")).click()
    titled(first, "4×4, measured")
    says(page, FIRST_EXPLORER, "^No kernel answers", ".tl-status")
    assert "at step 7" in cell(page, PLAYER).locator(".tl-note").inner_text()
    cell(page, QUESTIONS).locator(".tl-quiz .tl-right").first.wait_for()
    cell(page, QUESTIONS).locator(".tl-lines summary").press("Enter")
    cell(page, QUESTIONS).locator(".tl-answer button[aria-label$='indented 2 times']").wait_for()
    for number in range(len(CELLS)):
        cell(page, number).wait_for()
        assert page.get_by_text("Error displaying widget").count() == 0
    page.close()

    # Notebook 7 shows it, too, in a window as high as the lesson.
    page = open_page(
        f"{lab.root}notebooks/{LESSON}?token={TOKEN}",
        own=OF_NOTEBOOK,
        viewport={"width": 1000, "height": 6000},
    )
    page.set_default_timeout(PATIENCE * 1000)
    titled(page.locator(".tl-explorer").first, "8×2, measured")
    for kind, count in ((".tl-explorer", 2), (".tl-player", 1), (".tl-quiz", 1), (".tl-lines", 1)):
        page.locator(kind).nth(count - 1).wait_for()
    assert page.get_by_text("Error displaying widget").count() == 0
