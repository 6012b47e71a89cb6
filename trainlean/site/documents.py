"""The course's documents, its exercises and its glossary as pages."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from trainlean.notebooks.course import Lesson, unit_title, units_of
from trainlean.site.glossary import SOURCE, Term
from trainlean.site.lessons import Asked, Page
from trainlean.site.links import Links, page_of, way
from trainlean.site.markdown import Headings, html_of, line_of

EXERCISES = "exercises.html"


def documents(course: Path) -> list[str]:
    """The texts that have a page: what stands at the root, the data's origin, and all of docs/ but the glossary, which is made apart."""
    paths = [
        *sorted(course.glob("*.md")),
        *sorted(course.glob("docs/*.md")),
        course / "data/README.md",
    ]
    found = [path.relative_to(course).as_posix() for path in paths if path.is_file()]
    return [name for name in found if name != SOURCE]


def document_page(source: str, links: Links) -> Page:
    """A markdown document as a page."""
    renderer = Headings(like_github=True)
    html = html_of((links.course / source).read_text(encoding="utf-8"), renderer)
    title = renderer.headings[0][2] if renderer.headings else source
    body = f'<div class="prose">{links.placed(html, source)}</div>'
    return Page(page_of(source), title, body, renderer.headings[1:])


def glossary_page(terms: Sequence[Term], met: dict[Term, Lesson]) -> Page:
    """Every term with its sentence and the lesson that first uses it."""
    path = page_of(SOURCE)
    rows = []
    for term in terms:
        first = met.get(term)
        where = (
            f' <span class="soft">First in <a href="{way(page_of(f"lessons/{first.name}.ipynb"), path)}">{escape(first.title)}</a>.</span>'
            if first
            else ""
        )
        rows.append(
            f'<dt id="{term.anchor}">{escape(term.name)}</dt><dd>{line_of(term.says)}{where}</dd>'
        )
    return Page(path, "Glossary", f'<h1>Glossary</h1><dl class="glossary">{"".join(rows)}</dl>')


def exercises_page(asked: Sequence[Asked], lessons: Sequence[Lesson]) -> Page:
    """Every exercise of the course, by lesson."""
    parts = [
        "<h1>Exercises</h1><p>Each opens in its lesson, with its stub, hints and questions.</p>"
    ]
    headings = []
    for unit, inside in units_of(list(lessons)).items():
        headings.append((2, unit, unit_title(unit)))
        parts.append(f'<h2 id="{unit}">{escape(unit_title(unit))}</h2>')
        for lesson in inside:
            rows = [
                f'<li><a href="{one.address}">{escape(one.heading.removeprefix("Exercise: "))}</a> '
                f'<span class="soft"><code>{one.exercise.name}</code>, {one.exercise.points} points, {len(one.exercise.mistakes)} known mistakes</span></li>'
                for one in asked
                if one.exercise.notebook == lesson.name
            ]
            if rows:
                parts.append(f"<h3>{escape(lesson.title)}</h3><ul>{''.join(rows)}</ul>")
    return Page(EXERCISES, "Exercises", "".join(parts), headings)
