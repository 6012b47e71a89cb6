"""The built site: every page is opened from its folder, without a network, in both themes; links, search, glossary, widgets, help."""

import os
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from seen_pages import violations

from trainlean.exercises.finding import all_exercises
from trainlean.notebooks.course import course_map
from trainlean.notebooks.notebook import Place, nbgrader_mark, read_notebook
from trainlean.site.glossary import read_glossary
from trainlean.site.lessons import GUESS_FIRST, RIGHT_ANSWER
from trainlean.site.links import way
from trainlean.site.map import TEMPLATES
from trainlean.site.writing import write_site
from trainlean.workspace import COURSE

LESSONS = course_map()
LARGEST = 1_500_000  # bytes of a page with all that it loads
NARROW, WIDE = 800, 1440
PLAYING = "lessons/1_accumulation/1_pytorch.html"  # it has an explorer and a player
SHORT = "lessons/2_checkpointing/4_budgets.html"
KINDS = ["index.html", PLAYING, "api.html", "docs/instructors.html", "exercises.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    write_site(folder)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The HTML of every page, by its path in the site."""
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(site.rglob("*.html"))
    }


def without_scripts(html):
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def broken_links(pages, there):
    """Links whose page, or whose place on it, is not there."""
    ids = {
        path: set(map(unescape, re.findall(r' id="([^"]*)"', html))) for path, html in pages.items()
    }
    broken = []
    for path, html in pages.items():
        for target in re.findall(
            r'<(?:a|link|script|img)\b[^>]*?\b(?:href|src)="([^"]*)"', without_scripts(html)
        ):
            target = unescape(target)
            if re.match(r"https?:|mailto:|data:", target):
                continue
            to, _, part = target.partition("#")
            to = os.path.normpath(Path(path).parent / to) if to else path
            if not there(to) or (part and unquote(part) not in ids.get(to, ())):
                broken.append(f"{path}: {target}")
    return broken


def test_every_link_leads_to_a_page_and_a_place_on_it(site, pages):
    assert broken_links(pages, lambda to: (site / to).is_file()) == []
    # The way there is itself tried on links that lead nowhere.
    made = {
        "a/b.html": '<a href="../c.html#x">1</a><a href="b.html">2</a><a href="d.html">3</a>',
        "c.html": '<p id="y">',
    }
    assert broken_links(made, made.__contains__) == ["a/b.html: ../c.html#x", "a/b.html: d.html"]


def test_the_start_page_leads_to_every_lesson_and_each_lesson_to_its_neighbours(pages):
    for before, lesson in zip([None, *LESSONS], LESSONS):
        path = f"lessons/{lesson.name}.html"
        assert f'href="{path}"' in pages["index.html"]
        assert str(lesson.minutes) in pages["index.html"]
        if before:
            there = f"lessons/{before.name}.html"
            assert f'rel="next" href="{way(path, there)}"' in pages[there]
            assert f'rel="prev" href="{way(there, path)}"' in pages[path]


def test_pages_are_small_and_share_scripts_and_style(site, pages):
    shared = sum(path.stat().st_size for path in (site / "static").iterdir())
    assert max(len(html.encode()) for html in pages.values()) + shared < LARGEST
    assert not [path for path, html in pages.items() if "<style" in html or "followTheme" in html]
    assert 'src="../../static/explorer.js"' in pages[PLAYING]
    css = (site / "static" / "site.css").read_text(encoding="utf-8")
    assert all(name in css for name in (".map .lesson", ".tl-figure", "table.dataframe", ".top"))


def test_no_solution_stands_on_a_lessons_page_and_each_is_a_click_away(pages):
    for lesson in LESSONS:
        path, solved = f"lessons/{lesson.name}.html", f"solutions/{lesson.name}.html"
        assert "SOLUTION" not in pages[path] and "SOLUTION" not in pages[solved]
        cells = {
            nbgrader_mark(cell).get("grade_id"): cell.source
            for cell in read_notebook(Place(lesson.name).solution).cells
        }
        stubs = pages[path].count("YOUR CODE HERE")
        assert stubs >= len(lesson.exercises)
        shown = re.sub(r"<[^>]*>", "", unescape(pages[path]))
        for name, _ in lesson.exercises:
            assert f'href="{way(solved, path)}#{name}"' in pages[path]
            assert f'id="{name}"' in pages[solved]
            region = cells[name].split("# BEGIN SOLUTION")[1].split("# END SOLUTION")[0]
            assert region.strip("\n") not in shown


def test_help_with_an_exercise_is_folded_hints_and_mistakes_as_questions(pages):
    for exercise in all_exercises().values():
        page = pages[f"lessons/{exercise.notebook}.html"]
        help_ = page.split(f'aria-label="Help with {exercise.name}"')[1].split("</aside>")[0]
        folded = re.sub(r"<details>.*</details>", "", help_, flags=re.DOTALL)
        assert "Hint" not in folded and "Solution" in folded
        assert help_.count("<details><summary>Hint ") == len(exercise.hints)
        for mistake in exercise.mistakes:
            name = re.search(
                rf"<summary>(?:(?!</summary>).)*</summary><p><b>{re.escape(mistake.name)}</b>",
                unescape(help_),
            )
            assert name, mistake.name


def test_every_term_is_one_sentence_and_linked_where_a_lesson_first_uses_it(pages):
    terms = read_glossary(COURSE)
    glossary = pages["docs/glossary.html"]
    for term in terms:
        assert re.fullmatch(r"[^.]+(\.\d[^.]*)*\.", term.says), f"{term.name}: one sentence"
        assert f'<dt id="{term.anchor}">' in glossary
    unused = [one for one in re.split(r"<dt id=", glossary)[1:] if "First in" not in one]
    assert not unused
    for lesson in LESSONS:
        found = re.findall(
            r'class="term" href="[./]*docs/glossary\.html#([^"]+)"',
            pages[f"lessons/{lesson.name}.html"],
        )
        assert found and len(found) == len(set(found))


def test_answers_are_folded_until_somebody_asks(pages):
    """What a guess is compared with, and what a right answer is told."""
    for lesson in LESSONS:
        page, built = (
            pages[f"lessons/{lesson.name}.html"],
            read_notebook(Place(lesson.name).solution),
        )
        reveals = sum(
            bool(cell.get("outputs") and re.search(r"^\s*reveal\(", cell.source, re.MULTILINE))
            for cell in built.cells
        )
        assert page.count(f"<summary>{GUESS_FIRST}</summary>") == reveals
        assert page.count(f"<summary>{RIGHT_ANSWER}</summary>") == len(lesson.exercises)
        assert "you guessed" not in re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)


# ---------------------------------------------------------------- in a browser


def opened(open_page, site, path, width=WIDE, theme="light"):
    page = open_page(
        (site / path).as_uri(),
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        offline=True,
    )
    page.wait_for_load_state("load")
    return page


def cut_off(page):
    """What is wider than the window and cannot be scrolled."""
    return page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth + 1 ? [] : [...document.querySelectorAll('main *, header *')]
          .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('pre, .highlight, .scrolls, .output, math'))
          .map((one) => one.outerHTML.slice(0, 120)).slice(0, 5)"""
    )


MENU_LINES = (
    "new Set([...document.querySelectorAll('header nav a')].map((one) => one.offsetTop)).size"
)


# Takes each piece of code for one text: its colours are held by test_colours_of_text_are_legible, and axe takes a minute for them.
PLAIN = """() => {
  for (const one of document.querySelectorAll('.highlight pre')) one.textContent = one.textContent;
  for (const one of document.querySelectorAll('math')) one.replaceWith(one.textContent);
}"""
# The rules that what a lesson shows may break; the others are about the frame, which all pages share.
OF_CONTENT = "image-alt heading-order empty-table-header link-name label page-has-heading-one scrollable-region-focusable"


ANSWERED = """() => [...document.querySelectorAll('.tl-quiz .tl-question')].map((one) => {
  for (const option of one.querySelectorAll('.tl-option')) option.click();
  const count = (name) => one.querySelectorAll(name).length;
  return [[...one.querySelectorAll('.tl-says')].map((said) => said.textContent), count('.tl-right'), count('.tl-wrong')];
})"""


def wrongly_answered(page, quizzes):
    """What is wrong with a page's questions, when every answer is chosen; by keyboard they are answered in test_questions.py."""
    page.wait_for_function(
        "(count) => document.querySelectorAll('.tl-quiz .tl-question').length >= count", arg=quizzes
    )
    return [
        said
        for said, right, wrong in page.evaluate(ANSWERED)
        if right != 1
        or wrong != len(said) - 1
        or sum(one.startswith("Right. ") for one in said) != 1
        or any(len(one.split()) <= 2 for one in said)
    ]


def test_every_page_at_800_pixels(site, pages, open_page):
    """Nothing cut off, nothing in the console (`open_page` holds that), in both themes; every question answers; on every third one no violation in what it shows."""
    page = opened(open_page, site, "index.html", NARROW)
    wrong, asking = {}, 0
    for number, path in enumerate(pages):
        page.emulate_media(color_scheme=["light", "dark"][number % 2])
        page.goto((site / path).as_uri())
        page.wait_for_load_state("load")
        found = cut_off(page)
        if page.evaluate(MENU_LINES) != 1:
            found.append("a menu of several lines")
        page.evaluate(PLAIN)
        if not path.startswith("solutions/") and number % 3 == 0:  # it takes most of the time
            found += violations(page, "html", OF_CONTENT.split())
        if quizzes := pages[path].count('data-trainlean-widget="quiz"'):
            asking += quizzes
            found += wrongly_answered(page, quizzes)
        if found:
            wrong[path] = found
    assert wrong == {} and asking


def test_at_800_pixels_code_fits_and_the_contents_are_a_click_away(site, open_page):
    page = opened(open_page, site, SHORT, NARROW)
    wide = (
        "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
    )
    for lesson in (SHORT, PLAYING):
        page.goto((site / lesson).as_uri())
        assert page.locator(".highlight").evaluate_all(wide) == []
    page.get_by_role("link", name="On this page").click()
    assert page.locator("#on-this-page").bounding_box()["y"] < 900


@pytest.mark.parametrize(
    "path, dark",
    [
        ("index.html", True),
        (SHORT, True),
        (SHORT.replace("lessons", "solutions"), True),
        ("api.html", False),
        ("docs/instructors.html", False),
        ("docs/glossary.html", False),
    ],
)
def test_no_kind_of_page_has_a_violation(site, open_page, path, dark):
    page = opened(open_page, site, path)
    page.evaluate(PLAIN)
    assert violations(page, "html") == []
    if dark:  # the others have the same colours
        page.emulate_media(color_scheme="dark")
        page.locator(".trainlean:not(.tl-dark)").first.wait_for(state="detached")  # they hear of it
        assert violations(page, "html", ["color-contrast"]) == []


def test_colours_of_text_are_legible():
    """Of text, links and code, on the paper and on the wash behind code, in both themes."""
    css = (TEMPLATES / "site.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]+)", part))
        for part in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    ]
    assert len(themes) == 2 and themes[0].keys() >= themes[1].keys()
    for theme in themes:
        for name in "ink soft link key name word remark number good poor".split():
            for paper in ("paper", "wash"):
                assert contrast(theme[name], theme[paper]) >= 4.5, (name, paper)
    assert contrast("#fff", "#000") == pytest.approx(21) and contrast("#777", "#777") == 1


def contrast(*colours):
    """By WCAG 2.2: from 1 to 21."""
    light = []
    for colour in colours:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_the_first_paint_is_quick(site, open_page):
    page = opened(open_page, site, KINDS[0])
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    for path in KINDS:
        taken = []
        for _ in range(3):
            page.goto((site / path).as_uri())
            page.wait_for_function(paint)
            taken.append(page.evaluate(paint))
            if taken[-1] < 1000:
                break  # the quickest counts, since the machine does other things too
        assert min(taken) < 1000, path


def test_explorer_and_player_live_on_a_lessons_page(site, open_page):
    page = opened(open_page, site, PLAYING)
    page.wait_for_selector(".tl-player")
    player = page.locator(".tl-player").first
    before = player.locator(".tl-frame").inner_html()
    player.get_by_role("button", name="last step").click()
    assert player.locator(".tl-frame").inner_html() != before
    explorer = page.locator(".tl-explorer").first
    title = explorer.locator(".tl-title").first
    before = title.inner_text()
    explorer.get_by_role("option").last.click()
    assert title.inner_text() != before
    page.evaluate(PLAIN)
    for part in (".tl-explorer", ".tl-player"):
        assert violations(page, part) == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(".tl-player.tl-dark")
    for part in (".tl-explorer", ".tl-player"):
        assert violations(page, part, ["color-contrast"]) == []


def test_search_by_keyboard_from_a_folder(site, open_page):
    page = opened(open_page, site, PLAYING)
    page.evaluate(PLAIN)
    page.keyboard.press("/")
    page.keyboard.type("reentrant warning", delay=1)
    status = page.locator("#found [role=status]")
    status.wait_for()
    assert "found" in status.inner_text() and page.locator("#found mark").count()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"2_checkpointing/.*\.html"))
    for words, says in {"qqzzq": "Nothing found", "no_sync": "found"}.items():
        page.get_by_role("searchbox").fill(words)
        page.wait_for_function(
            "(says) => document.querySelector('#found [role=status]')?.textContent.includes(says)",
            arg=says,
        )
        assert violations(page, ".search") == []
    page.keyboard.press("Escape")
    assert page.locator("#found").is_hidden()


def test_a_term_its_entry_and_the_way_back(site, open_page):
    page = opened(open_page, site, PLAYING)
    term = page.locator("a.term").first
    assert term.get_attribute("title").endswith(".")
    term.click()
    page.wait_for_url(re.compile("glossary.html#"))
    page.locator("dt:target + dd a").click()
    page.wait_for_url(re.compile("/lessons/"))
    assert page.locator("main h1").count() == 1


def test_a_question_opens_and_the_solution_is_one_click_away(site, open_page):
    page = opened(open_page, site, PLAYING)
    help_ = page.locator("aside.help").first
    hint = help_.get_by_text("Hint 1 of")
    hint.click()
    assert help_.locator("details[open] p").first.is_visible()
    question = help_.locator("ol details").first
    help_.get_by_text("questions, each about a known mistake").click()
    question.locator("summary").first.click()
    assert question.locator("p b").first.is_visible()
    help_.get_by_role("link", name="Solution").click()
    page.wait_for_url(re.compile("/solutions/"))
    assert page.locator("h2:target + .highlight").is_visible()
