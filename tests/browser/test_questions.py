"""The lessons' questions and the class's slides in a browser, without a kernel and a network: every answer right and wrong, by keyboard too."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from seen_pages import violations

from trainlean.exercises import ordering, questions
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.ordering import put_in_order, puzzle_of
from trainlean.exercises.questions import question_files
from trainlean.exercises.recall import fresh_questions
from trainlean.grading.deck import write_deck
from trainlean.grading.sheets import write_csv
from trainlean.grading.tally import HEADER
from trainlean.pages import write_page

QUIZ, LINES = ".tl-quiz", ".tl-lines"
PUZZLES = [name for file in question_files().values() for name in getattr(file, "LINES", {})]


@pytest.fixture(scope="module")
def asked():
    """Every question of the course: all reasons, and all that is recalled, once."""
    reasons = [one for file in question_files().values() for one in file.BECAUSE.values()]
    return [*reasons, *fresh_questions(question_files(), 1000)]


@pytest.fixture(scope="module")
def address(tmp_path_factory, asked):
    cells = []

    def saved(widget):
        data, metadata = widget._repr_mimebundle_()
        data.pop("application/vnd.jupyter.widget-view+json", None)
        output = new_output("display_data", data, metadata=metadata)
        cells.append(new_code_cell("...", outputs=[output]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ordering, "display", saved)
        saved(questions.quiz_of("recall", "All of them", asked))
        for name in PUZZLES:
            put_in_order(name)
    path = tmp_path_factory.mktemp("page") / "lesson.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return write_page(path).as_uri()


@pytest.fixture
def page(address, open_page):
    page = open_page(address, viewport={"width": 1200, "height": 900}, offline=True)
    page.wait_for_selector(LINES)
    return page


def test_every_answer_says_what_is_right_or_wrong_about_it(page, asked):
    """All in one go within the page; the next test presses as a hand does."""
    rows = page.evaluate(
        """() => [...document.querySelectorAll('.tl-question')].map((one, i, all) => {
          const before = !one.hidden;
          const said = [...one.querySelectorAll('.tl-option')].map((option) => {
            option.click();
            return [option.lastChild.textContent, option.parentElement.className, option.nextSibling.textContent];
          });
          return [before, said];
        })"""
    )
    assert len(rows) == len(asked)
    for question, (was_there, said) in zip(asked, rows, strict=True):
        assert was_there, "each comes when the one before is answered"
        expected = [
            (
                one.text,
                "tl-right" if one == question.right else "tl-wrong",
                f"{'Right' if one == question.right else 'No'}. {one.says}",
            )
            for one in question.options
        ]
        assert [tuple(row) for row in said] == [
            tuple(text.replace("`", "") for text in row) for row in expected
        ]
    assert "right at the first try." in page.locator(f"{QUIZ} [role=status]").inner_text()


def test_questions_by_keyboard(page, asked):
    first = page.locator(".tl-question").first
    options = first.locator(".tl-option")
    assert page.locator(".tl-question:visible").count() == 1
    options.first.focus()
    right = asked[0].options.index(asked[0].right)
    for number in [*[i for i in range(options.count()) if i != right], right]:
        while not options.nth(number).evaluate("(one) => one === document.activeElement"):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    assert first.locator(".tl-right").count() == 1
    assert page.locator(".tl-question:visible").count() == 2


def build(page, puzzle, placed):
    """Put these lines into the puzzle that is open, by keyboard."""
    box = page.locator(f"{LINES}[open]")
    for number, (line, depth) in enumerate(placed):
        box.locator(".tl-pool button").nth(line).focus()
        page.keyboard.press("Enter")
        row = box.locator(".tl-answer button").nth(number)
        row.focus()
        for _ in range(7):  # to the margin, then as deep as asked
            page.keyboard.press("ArrowLeft")
        for _ in range(depth - 1):
            page.keyboard.press("ArrowRight")
    box.locator(".tl-check").press("Enter")
    return box.locator(".tl-verdict").inner_text()


def opened(page, name):
    box = page.locator(LINES).nth(PUZZLES.index(name))
    box.locator("summary").press("Enter")
    return box, puzzle_of(find_exercise(name))


def test_lines_by_keyboard_right_and_wrong(page):
    box, puzzle = opened(page, "train_accumulated")
    assert "Right." in build(page, puzzle, puzzle["accepted"][0])
    for _ in range(len(puzzle["accepted"][0])):
        box.locator(".tl-answer button").last.press("Delete")
    assert box.locator(".tl-answer button").count() == 0
    box.locator(".tl-check").press("Enter")
    assert "Nothing is placed yet" in box.locator(".tl-verdict").inner_text()
    known = next(one for one in puzzle["known"] if one["name"] == "loss not divided")
    assert "Loss not divided." in build(page, puzzle, known["placed"])


def test_lines_by_mouse(page):
    box, puzzle = opened(page, "train_accumulated")
    placed = puzzle["accepted"][0]
    pool, answer = box.locator(".tl-pool button"), box.locator(".tl-answer button")
    for line, _ in placed[:2]:
        pool.nth(line).click()
    # Dragged before the first, then back to its place with a button, then out.
    pool.nth(placed[2][0]).drag_to(answer.first, target_position={"x": 10, "y": 3})
    texts = [puzzle["lines"][line] for line, _ in placed]
    assert answer.all_inner_texts() == [texts[2], texts[0], texts[1]]
    box.get_by_role("button", name="down", exact=True).click()
    box.get_by_role("button", name="down", exact=True).click()
    assert answer.all_inner_texts() == texts[:3]
    answer.nth(1).drag_to(box.locator(".tl-pool"), target_position={"x": 2, "y": 2})
    assert answer.all_inner_texts() == [texts[0], texts[2]]
    # A line is also dropped on a used one, which Firefox must not see: to a disabled button it gives no events.
    used = pool.nth(placed[0][0])
    assert used.is_disabled()
    assert used.evaluate("(one) => getComputedStyle(one).pointerEvents") == "none"


def test_every_known_arrangement_is_named_and_every_accepted_one_is_right(page):
    judged = """([source, puzzle, placed]) => import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
      .then(({ judge }) => placed.map((one) => judge(puzzle, one)))"""
    from trainlean.pictures.widget import script

    for name in PUZZLES:
        puzzle = puzzle_of(find_exercise(name))
        known = [one["placed"] for one in puzzle["known"]]
        wrong = [[[int(line), 1]] for line in puzzle["wrong"]]
        parts = [puzzle["accepted"][0][:n] for n in range(1, len(puzzle["accepted"][0]))]
        shifted = [[[line, depth + 1] for line, depth in puzzle["accepted"][0]]]
        said = page.evaluate(
            judged,
            [script("lines"), puzzle, [*puzzle["accepted"], *known, *wrong, *parts, *shifted]],
        )
        at = len(puzzle["accepted"])
        assert all(one["right"] for one in said[:at])
        assert not any(one["right"] for one in said[at:])
        assert [one["mistake"] for one in said[at:][: len(known)]] == [
            one["name"] for one in puzzle["known"]
        ]
        rest = said[at + len(known) :]
        assert all("is one of the wrong ones" in one["says"] for one in rest[: len(wrong)])
        # What is begun rightly may be a known mistake already, such as one that never zeroes.
        assert all(one["mistake"] or "in place" in one["says"] for one in rest[len(wrong) : -1])
        assert "is indented further than in the nearest order" in rest[-1]["says"]


def test_of_two_equal_lines_either_may_stand_first(page):
    """A loop with two marks: each line of the pool is placed once."""
    box, puzzle = opened(page, "train_with_marks")
    [one, other] = [i for i, text in enumerate(puzzle["lines"]) if text == "mark_step()"]
    marks = iter([other, one])
    placed = [
        [next(marks) if line == one else line, depth] for line, depth in puzzle["accepted"][0]
    ]
    assert "Right." in build(page, puzzle, placed)


def test_legible_and_without_violations(page):
    for option in page.locator(".tl-question").first.locator(".tl-option").all():
        option.click()
    box, puzzle = opened(page, "train_with_accelerator")
    for line, _ in puzzle["accepted"][0][:3]:
        box.locator(".tl-pool button").nth(line).click()
    box.locator(".tl-check").click()
    parts = (QUIZ, f"{LINES}[open]")
    for part in parts:
        assert violations(page, part) == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(f"{QUIZ}.tl-dark")
    for part in parts:
        assert violations(page, part, ["color-contrast"]) == []
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 900})
        for part in parts:
            assert page.locator(part).evaluate("(one) => one.scrollWidth <= one.clientWidth + 2")


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deck")
    table = [
        ["train_accumulated", "right", "", 200],
        ["train_accumulated", "wrong", "never zeroed", 60],
        ["train_accumulated", "no notebook", "", 500],
    ]
    table += [["peak_at_batch", "wrong", "everything grows", 40]]
    write_csv(folder / "grades_mistakes.csv", [HEADER, *table])
    write_deck(folder / "deck.html", folder / "grades_mistakes.csv")
    return (folder / "deck.html").as_uri()


def test_the_slides(deck, open_page):
    page = open_page(deck, viewport={"width": 1280, "height": 800}, offline=True)
    place, slide = page.locator("#place"), page.locator("section:visible")
    assert place.inner_text() == "1 of 2" and slide.count() == 1
    assert violations(page, "body") == []
    page.keyboard.press("b")
    assert slide.locator(".option[aria-pressed=true] b").inner_text() == "b"
    assert not slide.locator(".answer").is_visible()
    page.keyboard.press("Space")
    assert slide.locator(".answer").is_visible() and violations(page, "body") == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "body", ["color-contrast"]) == []
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert place.inner_text() == "2 of 2" and page.locator("#next").is_disabled()
    slide.locator(".option").first.click()
    page.get_by_role("button", name="show the answer").click()
    assert "60 of 260 made it." in slide.inner_text(), "of those who handed it in"
    assert "no notebook" not in slide.inner_text()
    right = slide.locator(".option.right")
    assert right.count() == 1
    page.reload()
    assert place.inner_text() == "2 of 2", "a slide has its address"
