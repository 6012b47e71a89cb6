"""Parts of the site, without a browser: links, glossary, search, API, standings; and what `trainlean site` refuses."""

import re

import pytest

import trainlean
from trainlean.exercises.progress import Standing, standings
from trainlean.notebooks.course import Lesson
from trainlean.site import writing
from trainlean.site.glossary import Term, TermLinks, read_glossary
from trainlean.site.lab import lesson_standing
from trainlean.site.links import Links, page_of, way
from trainlean.site.markdown import Headings, html_of
from trainlean.site.reference import api_page
from trainlean.site.searching import sections, text_of
from trainlean.workspace import CourseError, append_record, write_whole


def test_links_between_files_become_links_between_their_pages(tmp_path):
    write_whole(tmp_path / "data" / "x.png", "")
    links = Links(tmp_path, frozenset({"lessons/1_a/1_b.ipynb", "docs/guide.md"}))
    placed = links.placed(
        '<a href="../lessons/1_a/1_b.ipynb#Why">b</a> <a href="gone.py">g</a> <a href="https://x.org/y.md">y</a> <a href="#z">z</a> <img src="../data/x.png" alt="">',
        "docs/guide.md",
    )
    assert placed == (
        '<a href="../lessons/1_a/1_b.html#Why">b</a> g <a href="https://x.org/y.md">y</a> <a href="#z">z</a> <img src="../data/x.png" alt="">'
    )
    assert links.pictures == {"data/x.png"}
    assert page_of("docs/guide.md") == "docs/guide.html"
    assert way("docs/guide.html#a", "docs/guide.html") == "#a"
    assert way("index.html", "lessons/1_a/1_b.html") == "../../index.html"


def test_a_term_is_linked_once_and_not_within_code_links_headings_and_formulas():
    window, sync = (
        Term("window", ("windows",), "What <is> `it`."),
        Term("no_sync", (), "A context."),
    )
    links = TermLinks([window, sync], "g.html")
    kept = '<h2>A window</h2><pre>window</pre><p><a href="x">window</a> <code>a window</code> <math><mi>window</mi></math></p>'
    assert links.linked(kept) == kept and links.met == []
    html = links.linked("<p>Two <b>Windows</b>, a window, <code>no_sync</code>, micro-window</p>")
    assert html.count('class="term"') == 2 and links.met == [window, sync]
    assert (
        '<b><a class="term" href="g.html#window" title="What &lt;is&gt; it.">Windows</a></b>'
        in html
    )
    assert '<code><a class="term" href="g.html#no_sync"' in html
    assert links.linked("<p>window</p>") == "<p>window</p>"


@pytest.mark.parametrize(
    "text, says",
    [
        ("- window: no stars.\n", r"glossary.md:1: an entry is written"),
        ("# Words\n\n- **a** (b): One.\n- **B**: Two.\n", r"glossary.md:4: 'B' stands there twice"),
    ],
)
def test_a_glossary_that_cannot_be_read_gets_one_sentence(tmp_path, text, says):
    write_whole(tmp_path / "docs" / "glossary.md", text)
    with pytest.raises(CourseError, match=says):
        read_glossary(tmp_path)


def test_sections_are_what_a_person_reads_without_hints_and_scripts():
    html = (
        "<p>First <code>a</code>.</p><h2 id='no'>x</h2>"
        '<h2 id="A-&amp;-b">A &amp; <em>b</em></h2><p>Text<script>run()</script></p><aside>Hint</aside>'
    )
    assert sections("Page", "a/b.html", html) == [
        ("Page", "", "a/b.html", "First a. x"),
        ("Page", "A & b", "a/b.html#A-&-b", "Text"),
    ]


def test_headings_have_the_places_that_links_lead_to():
    lesson, document = Headings(), Headings(like_github=True)
    for renderer in (lesson, document):
        html_of("## What `x` is\n\n## What x is\n", renderer)
    assert [id_ for _, id_, _ in lesson.headings] == ["What-x-is", "What-x-is-1"]
    assert [id_ for _, id_, _ in document.headings] == ["what-x-is", "what-x-is-1"]


def test_everything_that_notebooks_import_is_in_the_api_with_its_docstring():
    html = api_page().html
    for names in trainlean.EXPORTS.values():
        for name in names:
            assert f'<h3 id="{name}">' in html
            value = getattr(trainlean, name)
            if callable(value):
                said = html.split(f'<h3 id="{name}">')[1].split("<h3")[0]
                first = re.sub(r"\W+", "", value.__doc__.strip().splitlines()[0])
                assert first[:30] in re.sub(r"\W+", "", text_of(said)), name
    assert (
        "Meter(" in html
        and "self" not in re.sub(r"<p>.*?</p>", "", html).split('id="Meter"')[1][:300]
    )


def test_standings_keep_right_answers_and_the_best_points(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINLEAN_WORK", str(tmp_path))
    for name, outcome, mistake, points in [
        ("a", "wrong", "loss not divided", 0),
        ("a", "right", None, 3),
        ("a", "crashed", None, 0),
        ("b", "right", None, 2),
        ("b", "wrong", "one short", 0),
    ]:
        record = {"exercise": name, "outcome": outcome, "mistake": mistake, "points": points}
        append_record("progress", record)
    found = standings()
    assert found == {
        "a": Standing("right", "", 3, True),
        "b": Standing("wrong", "one short", 2, True),
    }
    lesson = Lesson("u/l", "L", "", 1, "", (), False, (("a", 3), ("b", 2), ("c", 1)))
    mine = lesson_standing(lesson, found)
    assert mine.words == "1 right, 1 wrong, 1 open · 5 of 6 points"
    assert [(one.state, one.words) for one in mine.exercises] == [
        ("right", "right"),
        ("wrong", "wrong (one short)"),
        ("open", "open"),
    ]


def test_a_folder_with_something_else_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("kept")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(CourseError, match="no site of the course; name another folder"):
            writing.write_site(folder)
    # An older site is replaced as a whole, and stays where the new one cannot be written.
    marked = '<meta name="generator" content="trainlean site">'
    site = tmp_path / "site"
    write_whole(site / "index.html", marked)
    write_whole(site / "old.html", "")

    def fails(folder):
        write_whole(folder / "index.html", "half")
        raise CourseError("no solution")

    monkeypatch.setattr(writing, "_write", fails)
    with pytest.raises(CourseError, match="no solution"):
        writing.write_site(site)
    assert (site / "old.html").exists() and sorted(tmp_path.iterdir()) == [
        tmp_path / "mine.txt",
        site,
    ]
    monkeypatch.setattr(
        writing, "_write", lambda folder: write_whole(folder / "index.html", marked) or [4, 7]
    )
    assert writing.write_site(site) == writing.Written(site, 2, 7)
    assert [path.name for path in site.iterdir()] == ["index.html"]
