"""A lesson as a page: its text, stubs, outputs and widgets, help with each exercise, and the solutions on a page of their own."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape

from jinja2 import pass_context
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML

from trainlean.exercises.exercise import Exercise
from trainlean.notebooks.course import Lesson
from trainlean.notebooks.notebook import BEGIN, END, Place, cut, nbgrader_mark, read_notebook
from trainlean.pages import LiveWidgets
from trainlean.pictures.widget import WEB
from trainlean.site.glossary import Term, TermLinks
from trainlean.site.links import Links, page_of, way
from trainlean.site.markdown import Headings, html_of, line_of
from trainlean.workspace import COURSE

CELLS = COURSE / "trainlean" / "site" / "web" / "cells.html.j2"
GLOSSARY = "docs/glossary.html"
GUESS_FIRST = "Guess first; then open this and compare."
RIGHT_ANSWER = "What check says to a right answer."


@dataclass
class Page:
    """A page of the site: where it lies, its title, its HTML, its headings (level, id, words) and the widgets on it.

    `searched` says whether the search finds it.
    """

    path: str
    title: str
    html: str
    headings: list[tuple[int, str, str]] = field(default_factory=list)
    widgets: tuple[str, ...] = ()
    searched: bool = True


@dataclass(frozen=True)
class Asked:
    """An exercise of a lesson's page: its heading there and the heading's address."""

    exercise: Exercise
    heading: str
    address: str


class Cells(HTMLExporter):
    """Writes a notebook's cells for the site. `written` writes the texts of the present lesson, one after the other."""

    exclude_input_prompt = True
    exclude_output_prompt = True
    written: Callable[[str], str]

    def __init__(self, **kwargs):
        super().__init__(
            raw_template=CELLS.read_text(encoding="utf-8"),
            extra_template_paths=[str(WEB)],
            preprocessors=[LiveWidgets],
            **kwargs,
        )

    def from_notebook_node(self, nb, resources=None, **kwargs):
        """As of every template: HTMLExporter would read the page once more, for alternative texts that are there already."""
        self.register_filter("highlight_code", Highlight2HTML(pygments_lexer="ipython3"))
        return TemplateExporter.from_notebook_node(self, nb, resources, **kwargs)

    @pass_context
    def markdown2html(self, context, source):
        """Markdown as HTML, with links to pages and the glossary."""
        return self.written(source)


class LessonPages:
    """Makes the pages of lessons, one after the other; `asked` collects their exercises and `met` where each term was first used."""

    def __init__(self, links: Links, terms: list[Term], exercises: Mapping[str, Exercise]):
        self.links, self.terms, self.exercises = links, terms, exercises
        self.exporter = Cells()
        self.asked: list[Asked] = []
        self.met: dict[Term, Lesson] = {}

    def pages(self, place: Place, lesson: Lesson) -> list[Page]:
        """The lesson's page and that of its solutions. CourseError: the solution is not built."""
        notebook = read_notebook(place.solution)
        source, path = f"lessons/{place.name}.ipynb", page_of(f"lessons/{place.name}.ipynb")
        solved = page_of(f"solutions/{place.name}.ipynb")
        solutions = []
        heading = ""
        for cell in notebook.cells:
            if cell.cell_type != "code":
                found = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
                heading = found[-1] if found else heading
                continue
            name = str(nbgrader_mark(cell).get("grade_id", ""))
            if name in self.exercises:
                solutions.append((name, heading, _without_marks(cell.source)))
                cell.outputs = []
            elif name.removesuffix("-check") in self.exercises:
                exercise = self.exercises[name.removesuffix("-check")]
                cell.metadata["trainlean_folded"] = RIGHT_ANSWER
                cell.metadata["trainlean_below"] = help_html(exercise, way(solved, path))
                self._ask(exercise, heading, path)
            if re.search(r"^guess\(", cell.source, re.MULTILINE):
                cell.outputs = []
            elif re.search(r"^\s*reveal\(", cell.source, re.MULTILINE):
                cell.metadata["trainlean_folded"] = GUESS_FIRST
            cell.source = cut(cell.source)
        headings = Headings()
        terms = TermLinks(self.terms, way(GLOSSARY, path))
        self.exporter.written = lambda text: terms.linked(
            self.links.placed(html_of(text, headings), source)
        )
        body, resources = self.exporter.from_notebook_node(
            notebook, {"trainlean": {"scripts_apart": True}}
        )
        for term in terms.met:
            self.met.setdefault(term, lesson)
        widgets = tuple(resources["trainlean"].get("widgets", ()))
        answers = _solutions_html(lesson, solutions, way(path, solved))
        return [
            Page(path, lesson.title, body, headings.headings, widgets),
            Page(solved, f"Solutions: {lesson.title}", answers, searched=False),
        ]

    def _ask(self, exercise, heading, path):
        renderer = Headings()
        html_of(f"## {heading}", renderer)
        [(_, id_, words)] = renderer.headings
        self.asked.append(Asked(exercise, words, f"{path}#{id_}"))


def help_html(exercise: Exercise, solutions: str) -> str:
    """Hints, known mistakes as questions, and the way to the solution: everything folded or a click away."""
    total = len(exercise.hints)
    hints = "".join(
        f"<details><summary>Hint {number} of {total}</summary>{html_of(hint)}</details>"
        for number, hint in enumerate(exercise.hints, 1)
    )
    questions = "".join(
        f"<li><details><summary>{line_of(mistake.hint)}</summary>"
        f"<p><b>{escape(mistake.name)}</b>: {line_of(mistake.why)}</p></details></li>"
        for mistake in exercise.mistakes
    )
    if questions:
        questions = (
            f"<details><summary>{len(exercise.mistakes)} questions, each about a known mistake</summary>"
            f"<ol>{questions}</ol></details>"
        )
    points = f"{exercise.points} point{'s' if exercise.points > 1 else ''}"
    return (
        f'<aside class="help" aria-label="Help with {exercise.name}"><p><code>{exercise.name}</code>, {points}</p>{hints}{questions}'
        f'<p><a href="{solutions}#{exercise.name}">Solution</a>, on a page of its own</p></aside>'
    )


def _without_marks(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip() not in (BEGIN, END)]
    return "\n".join(lines)


def _solutions_html(lesson: Lesson, solutions: list[tuple[str, str, str]], back: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    parts = [f'<h1>Solutions</h1><p>Of <a href="{back}">{escape(lesson.title)}</a>.</p>']
    for name, heading, source in solutions:
        parts.append(f'<h2 id="{name}">{line_of(heading)}</h2>')
        parts.append(highlight(source, PythonLexer(), HtmlFormatter()))
    return "".join(parts)
