"""JupyterLab's start page as `trainlean lab` opens it: the map with the learner's progress, and the way into a lesson."""

import json

import pytest
from running_lab import PATIENCE, TOKEN, RunningLab
from seen_pages import violations

from trainlean.notebooks.course import course_map

LESSONS = course_map()
FIRST = LESSONS[0]


# In letters' heights.
WIDEST = (
    "(all) => Math.max(...all.map((p) => p.clientWidth / parseFloat(getComputedStyle(p).fontSize)))"
)


def answered(folder, exercise, outcome, points, mistake=""):
    record = {"exercise": exercise, "outcome": outcome, "points": points, "mistake": mistake}
    (folder / "TRAINLEAN_WORK").mkdir(exist_ok=True)
    with open(folder / "TRAINLEAN_WORK" / "progress.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    lab = RunningLab(tmp_path_factory.mktemp("start"))
    yield lab
    lab.end()


def test_the_map_opens_first_shows_progress_and_leads_into_lessons(lab, open_page):
    page = open_page(f"{lab.root}lab?token={TOKEN}&reset", viewport={"width": 1440, "height": 900})
    page.set_default_timeout(PATIENCE * 1000)
    start = page.locator("#trainlean-start")
    start.get_by_role("heading", name="Train Lean").wait_for()
    assert start.get_by_role("heading", level=3).count() == len(LESSONS)
    assert page.locator(".jp-Launcher").count() == 0
    assert page.get_by_text("Would you like to").count() == 0  # news, privacy
    assert "Begin with the first lesson" in start.inner_text()
    assert start.locator(".state.open").count() == sum(len(one.exercises) for one in LESSONS)
    assert start.locator("p").evaluate_all(WIDEST) <= 46
    assert violations(page, "#trainlean-start") == []
    page.evaluate(
        "jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    page.wait_for_timeout(500)
    assert violations(page, "#trainlean-start") == []

    # What a lesson's kernel writes down is on the map when it comes into view again.
    names = [name for name, _ in FIRST.exercises]
    answered(lab.folder, names[0], "right", FIRST.exercises[0][1])
    answered(lab.folder, names[1], "wrong", 0, "weights forgotten")
    start.get_by_role("link", name=FIRST.title).first.click()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    assert page.evaluate("jupyterapp.shell.currentWidget.context.path") == (
        f"lessons/{FIRST.name}.ipynb"
    )
    page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status === 'idle'"
    )
    page.locator(".lm-TabBar-tab", has_text="Train Lean").first.click()
    start.locator(".state.right").first.wait_for()
    card = start.locator(".lesson").first
    assert f"1 right, 1 wrong, {len(names) - 2} open" in card.inner_text()
    assert f"{names[1]}: wrong (weights forgotten)" in card.inner_text()
    assert f"1 of {start.locator('.state').count()} exercises are right" in start.inner_text()
