"""Explorer and player on a page without a kernel and without a network, as `trainlean page` writes it."""

import io
import re

import nbformat
import numpy as np
import pytest
from made_runs import make_run
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image
from seen_pages import violations

from trainlean.costs.runs import MiB
from trainlean.pages import write_page
from trainlean.pictures.explorer import explorer
from trainlean.pictures.player import player
from trainlean.recordings.loops import record

EXPLORER, PLAYER = ".tl-explorer", ".tl-player"


def loop(batches, k):
    weight, gradient = 2.0, None
    for i, x in enumerate(batches):
        gradient = (gradient or 0.0) + x / k
        if (i + 1) % k == 0:
            weight -= 0.1 * gradient
            gradient = None
    return weight


def saved(widget):
    """A cell whose output is what a saved notebook has of a widget."""
    data, metadata = widget._repr_mimebundle_()
    data.pop("application/vnd.jupyter.widget-view+json", None)
    return new_code_cell("...", outputs=[new_output("display_data", data, metadata=metadata)])


@pytest.fixture(scope="module")
def steps():
    watch = {name: lambda values, name=name: values[name] for name in ("weight", "gradient")}
    watch["micro-batch"] = lambda values: values["i"]
    return player(record(loop, [1.0, -3.0, 2.0, 5.0], 2, watch=watch), step=1)


@pytest.fixture(scope="module")
def address(tmp_path_factory, steps):
    runs = [make_run(16 // k, k, speed=60 + 10 * (16 // k)) for k in (1, 2, 4, 8, 16)]
    runs += [make_run(1, 1, speed=50), make_run(4, 1, speed=95, checkpointing="every layer")]
    cells = [
        new_markdown_cell("# A lesson\n\n" + "It explains a thing at length. " * 20),
        new_markdown_cell(
            "With $k$ windows, `$HOME` and\n\n"
            r"$$\nabla L = \frac{1}{k} \left( \nabla L_1 + \dots \right)$$"
            "\n\n<details open><summary>More</summary>\n\n"
            + "It is folded. " * 40
            + "\n\n</details>"
        ),
        new_code_cell("if k and not 2.0:  # a remark\n    print('words', None)"),
        new_markdown_cell("## Exercise: one\n\nA [link](other.html) in a line of text."),
        saved(explorer(runs, measure=lambda micro_batch: None, budget=90 * MiB)),
        saved(explorer(runs[:3], budget=150 * MiB)),
        saved(steps),
    ]
    path = tmp_path_factory.mktemp("page") / "lesson.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return write_page(path).as_uri()


@pytest.fixture
def page(address, open_page):
    page = open_page(address, viewport={"width": 1300, "height": 1000}, offline=True)
    page.wait_for_selector(PLAYER)
    return page


def sentence(page, number=0):
    return page.locator(".tl-sentence").nth(number).inner_text()


def title(page):
    return page.locator(".tl-title").first.inner_text()


def test_every_control_answers_to_mouse_and_keyboard(page):
    one = page.locator(EXPLORER).first
    assert sentence(page).endswith("the fastest of them is 4×4 with 100 samples/s.")
    assert title(page) == "16×1, measured"
    one.get_by_label("micro-batch").focus()
    page.keyboard.press("ArrowLeft")
    assert title(page) == "8×2, measured"  # the steps give way
    assert one.get_by_label("accumulation steps").get_attribute("aria-valuetext") == "2"
    box = one.get_by_label("micro-batch").bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
    assert title(page) == "1×16, measured"
    one.get_by_label("fixed memory").check()
    assert sentence(page).startswith("Fixed memory, any batch: 5 of 7 runs fit into 90 MiB")
    one.get_by_label("every layer").check()
    assert title(page).startswith("1×16 ckpt was not run; nearest")
    one.get_by_label("budget").fill("60")
    assert "fit into 60 MiB" in sentence(page)
    assert one.get_by_label("budget").get_attribute("aria-valuetext") == "60 MiB"


def test_points_answer_to_hover_click_and_keys_and_the_budget_is_dragged(page):
    point = page.locator(f"{EXPLORER} >> nth=0").get_by_role("option", name=re.compile("^4×4, "))
    point.hover()
    assert page.locator(".tl-tip").first.inner_text() == "4×4, measured: 80 MiB, 100 samples/s"
    tip, there = page.locator(".tl-tip").first.bounding_box(), point.bounding_box()
    assert 0 <= tip["y"] - there["y"] < 40  # below the point, not below the picture
    point.click()
    assert title(page) == "4×4, measured" and point.get_attribute("aria-selected") == "true"
    page.locator(".tl-points").first.focus()
    page.keyboard.press("ArrowRight")
    assert title(page) == "8×2, measured"
    page.keyboard.press("Home")
    assert title(page) == "1×1, measured"
    line = page.locator(".tl-budget").first.bounding_box()
    page.mouse.move(line["x"] + 100, line["y"] + 7)
    page.mouse.down()
    page.mouse.move(line["x"] + 100, line["y"] - 60, steps=3)
    page.mouse.up()
    assert float(re.search(r"fit into (\d+) MiB", sentence(page))[1]) > 110


def test_two_explorers_do_not_disturb_each_other_and_measuring_says_what_it_needs(page):
    before = sentence(page, 1)
    page.locator(EXPLORER).first.get_by_label("budget").fill("10")
    assert sentence(page, 1) == before and "10 MiB" in sentence(page)
    ids = page.evaluate("[...document.querySelectorAll('.trainlean [id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert page.locator(f"{EXPLORER} button").first.is_disabled()
    assert page.locator(".tl-status").inner_text().startswith("Measuring needs the kernel")


def test_from_hand_to_picture_in_50_milliseconds(page):
    """From the event to the laid-out picture, without the browser's own frame; the median, since the machine does other things too."""
    taken = page.evaluate(
        """() => {
          const input = document.querySelector('.tl-explorer input[type=range]'), taken = [];
          for (let i = 0; i < 40; i++) {
            const start = performance.now();
            input.value = i % (Number(input.max) + 1);
            input.dispatchEvent(new Event('input'));
            document.body.getBoundingClientRect();
            taken.push(performance.now() - start);
          }
          return taken.sort((a, b) => a - b);
        }"""
    )
    assert taken[20] < 50


def test_the_player_plays(page):
    player, words = page.locator(PLAYER), page.locator(f"{PLAYER} .tl-note")
    first = page.locator(".tl-frame").inner_html()
    player.get_by_role("button", name="one step forward").click()
    assert "at step 2," in words.inner_text()
    assert page.locator(".tl-frame").inner_html() != first
    player.get_by_label("step", exact=True).focus()
    page.keyboard.press("End")
    assert "at step 19, line 8" in words.inner_text()
    assert "weight 1.75000, 2 of 2 updates" in page.locator(".tl-frame").inner_text()
    player.get_by_role("button", name="one step back").click()
    assert "at step 18," in words.inner_text()
    player.get_by_role("button", name="first step").click()
    assert page.locator(".tl-frame").inner_html() == first
    player.get_by_role("button", name="play").click()
    page.wait_for_function(
        "document.querySelector('.tl-player .tl-note').textContent.includes('step 3,')"
    )
    player.get_by_role("button", name="pause").click()
    still = words.inner_text()
    page.wait_for_timeout(900)  # longer than a step
    assert words.inner_text() == still


def test_tab_reaches_every_control_in_order_and_shows_where_it_is(page):
    page.locator(EXPLORER).first.get_by_label("micro-batch").focus()
    assert [reached(page) for _ in range(6)] == [
        "micro-batch",
        "accumulation steps",
        "checkpointing: off",
        "compare at: fixed batch",
        "budget",
        "runs, by speed and memory",
    ]
    before = sentence(page)
    page.locator(EXPLORER).first.get_by_label("budget").press("End")  # the line, by keys
    assert sentence(page) != before and "5 of 5 runs fit" in sentence(page)
    page.locator(PLAYER).get_by_role("button").first.focus()
    buttons = ["first step", "one step back", "play", "one step forward", "last step"]
    assert [reached(page) for _ in range(6)] == [*buttons, "step"]


def reached(page):
    """The name of what has the focus, which is to be seen; then the key Tab."""
    name, width, style = page.evaluate(FOCUSED)
    assert width >= 2 and style == "solid", name
    page.keyboard.press("Tab")
    return name


def test_the_players_frames_are_its_pictures(page, steps):
    """What the browser draws of a step is what matplotlib draws of it: the same places are inked."""
    page.locator(PLAYER).get_by_role("button", name="last step").click()
    steps.step = len(steps.recording["frames"])

    def inked(png):
        grey = Image.open(io.BytesIO(png)).convert("L").resize((120, 60))
        return np.asarray(grey) < 245

    drawn, theirs = inked(page.locator(".tl-frame svg").screenshot()), inked(steps.png())
    assert (drawn & theirs).sum() / (drawn | theirs).sum() > 0.7


def test_where_no_scripts_run_each_widget_is_its_picture_and_its_text(address, open_page):
    page = open_page(address, java_script_enabled=False, offline=True)
    shown = page.locator("[data-trainlean-widget] img").evaluate_all(
        "(all) => all.map((one) => [one.alt.split(':')[0], one.naturalWidth > 500])"
    )
    explorers = [["Memory against speed", True]] * 2
    assert shown == [*explorers, ["Step-by-step player", True]]


def test_legible_and_without_violations_in_both_themes(page):
    page.set_viewport_size({"width": 1440, "height": 900})
    assert violations(page, "html") == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(f"{EXPLORER}.tl-dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 17)"
    assert violations(page, "html", ["color-contrast", "link-in-text-block"]) == []
    assert page.locator("h2").evaluate("(one) => getComputedStyle(one).borderLeftWidth") == "4px"
    # Nothing is cut or drawn too small to read, from a wide window down to 150 % of a small one.
    for width in (1440, 1024, 800, 533):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(100)
        assert page.evaluate(SQUEEZED) == [], width
        assert page.evaluate(SMALLEST_OF_PLAYER) > 10, width
        for words in ("explains", "folded"):
            prose = page.locator("p", has_text=words).evaluate(
                "(p) => p.clientWidth / parseFloat(getComputedStyle(p).fontSize)"
            )
            assert prose <= 46


def test_formulas_are_there_without_a_network(page):
    """As MathML: laid out, with nothing of LaTeX left, neither in a line nor on a line of its own."""
    formulas = page.locator("math")
    assert formulas.count() == 2
    assert [formulas.nth(i).get_attribute("display") for i in range(2)] == ["inline", "block"]
    fraction = page.locator("math mfrac > *")
    numerator, denominator = (fraction.nth(i).bounding_box() for i in range(2))
    assert numerator["y"] + numerator["height"] <= denominator["y"]
    assert "\\" not in page.locator("body").inner_text() and "$" not in formulas.last.text_content()
    assert page.locator("code", has_text="$HOME").count() == 1  # code stays what it is


FOCUSED = """() => {
  const one = document.activeElement, look = getComputedStyle(one), group = one.closest('fieldset');
  const name = one.getAttribute('aria-label') || one.labels[0].innerText;
  return [(group ? group.querySelector('legend').innerText + ': ' : '') + name, parseFloat(look.outlineWidth), look.outlineStyle];
}"""
SQUEEZED = """() => [...document.querySelectorAll('.tl-explorer *')]
  .filter((one) => {
    const size = parseFloat(getComputedStyle(one).fontSize), own = one.getBoundingClientRect();
    const around = one.closest('.tl-explorer').getBoundingClientRect();
    const words = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    return words && !one.closest('[hidden]') && own.width && (size < 11 || own.right > around.right + 2 || own.left < around.left - 2);
  })
  .map((one) => one.outerHTML.slice(0, 120))"""
# Pixels of the smallest letters in the player's picture, as large as it is shown.
SMALLEST_OF_PLAYER = """() => Math.min(...[...document.querySelectorAll('.tl-frame text')]
  .map((one) => parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a))"""
