"""`trainlean site`: everything written into a folder, in one go."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from trainlean.exercises.finding import all_exercises
from trainlean.notebooks.course import Lesson, around, course_map, units_of
from trainlean.notebooks.notebook import Place
from trainlean.pages import LESSONS as LESSON_STYLE
from trainlean.pictures.widget import WEB as WIDGETS
from trainlean.pictures.widget import script, style
from trainlean.site.documents import (
    EXERCISES,
    document_page,
    documents,
    exercises_page,
    glossary_page,
)
from trainlean.site.glossary import SOURCE, read_glossary
from trainlean.site.lessons import LessonPages, Page
from trainlean.site.links import Links, page_of, way
from trainlean.site.map import TEMPLATES, environment, map_html
from trainlean.site.markdown import line_of
from trainlean.site.reference import API, api_page
from trainlean.site.searching import index_script, sections
from trainlean.workspace import COURSE, CourseError, write_whole

START = "index.html"
EMPTY_HEAD = re.compile(r"<th\b[^>]*>\s*</th>")  # says of a column that it has a name, and none
GUIDE = "docs/instructors.html"
MENU = [
    (START, "Map"),
    (EXERCISES, "Exercises"),
    (page_of(SOURCE), "Glossary"),
    (GUIDE, "For instructors"),
    (API, "API"),
    ("README.html", "About"),
]


@dataclass(frozen=True)
class Written:
    """What was written: the folder, how many pages, the bytes of the largest."""

    folder: Path
    pages: int
    largest: int


def write_site(folder: Path) -> Written:
    """Write the course as a site into `folder`, in place of an older site there.

    CourseError: something else lies there, it cannot be written, or a lesson's solution is not built.
    """
    folder = folder.resolve()
    if folder.exists() and not _is_ours(folder):
        raise CourseError(
            f"{folder} holds something that is no site of the course; name another folder."
        )
    part = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        written = _write(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except OSError as error:
        raise CourseError(f"{folder} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Written(folder, len(written), max(written))


def _is_ours(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    start = folder / START
    if start.is_file():
        return '<meta name="generator" content="trainlean site">' in start.read_text(
            "utf-8", "replace"
        )
    return not any(folder.iterdir())


def _write(folder: Path) -> list[int]:
    """Write all pages; the bytes of each."""
    lessons = course_map()
    texts = documents(COURSE)
    links = Links(
        COURSE, frozenset([*texts, SOURCE, *(f"lessons/{lesson.name}.ipynb" for lesson in lessons)])
    )
    terms = read_glossary(COURSE)
    made = LessonPages(links, terms, all_exercises())
    of_lesson: dict[str, Lesson] = {}
    pages = [start_page(lessons)]
    for lesson in lessons:
        page, solutions = made.pages(Place(lesson.name), lesson)
        of_lesson[page.path] = lesson
        pages += [page, solutions]
    pages += [
        exercises_page(made.asked, lessons),
        glossary_page(terms, made.met),
        api_page(),
        *(document_page(source, links) for source in texts),
    ]
    sizes = []
    template = environment().get_template("base.html.j2")
    for page in pages:
        html = framed(template, page, lessons, of_lesson.get(page.path))
        write_whole(folder / page.path, html)
        sizes.append(len(html.encode()))
    _write_shared(folder, pages, links)
    return sizes


def start_page(lessons: list[Lesson]) -> Page:
    """The start page: what the course is, and the map."""
    shown = map_html(lessons, lambda one: page_of(f"lessons/{one.name}.ipynb"), line_of)
    minutes = sum(lesson.minutes or 0 for lesson in lessons)
    exercises = sum(len(lesson.exercises) for lesson in lessons)
    head = (
        "<h1>Training models that do not fit</h1>"
        "<p>Gradient accumulation, gradient checkpointing and Local SGD, each written first in PyTorch, then with Accelerate, then with "
        "transformers' <code>Trainer</code>; proven to be the same training; measured on your own machine.</p>"
        f'<p class="soft">{len(lessons)} lessons, {exercises} exercises, about {round(minutes / 60)} hours. On these pages you read, look up and move the pictures; '
        "<code>make lab</code> opens the lessons where their code runs and your answers are checked.</p>"
    )
    return Page(START, "The course", f'{head}<div class="map">{shown}</div>')


def framed(template, page: Page, lessons: list[Lesson], lesson: Lesson | None) -> str:
    """A page with all that stands around its text."""
    before, following = around(lesson.name, lessons) if lesson else (None, [])
    return template.render(
        page=replace(page, html=Markup(EMPTY_HEAD.sub("<td></td>", page.html))),
        root="../" * page.path.count("/"),
        menu=MENU,
        lesson=lesson,
        number=[one.name for one in lessons].index(lesson.name) + 1 if lesson else 0,
        lessons=lessons,
        units=units_of(lessons),
        before=before,
        following=following,
        link=lambda one: way(page_of(f"lessons/{one.name}.ipynb"), page.path),
    )


def _write_shared(folder: Path, pages: list[Page], links: Links) -> None:
    """What all pages use, once: style, scripts, the index of the search, pictures of documents."""
    static = folder / "static"
    css = "\n".join(
        [
            *((TEMPLATES / f"{name}.css").read_text("utf-8") for name in ("site", "map")),
            LESSON_STYLE.read_text("utf-8"),
            style(),
        ]
    )
    write_whole(static / "site.css", css)
    write_whole(static / "site.js", (TEMPLATES / "site.js").read_text("utf-8"))
    for name in sorted({name for page in pages for name in page.widgets}):
        # As text: a page of a folder may not import a module of it, but may make one.
        text = f"(window.trainleanScripts ??= {{}}).{name} = {json.dumps(script(name))};\n"
        write_whole(static / f"{name}.js", text)
    starts = (WIDGETS / "page.js").read_text("utf-8")
    write_whole(static / "widgets.js", f"(async () => {{\n{starts}}})();\n")
    found = [
        part
        for page in pages
        if page.searched
        for part in sections(page.title, page.path, page.html)
    ]
    write_whole(static / "search.js", index_script(found))
    for picture in sorted(links.pictures):
        place = folder / picture
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(COURSE / picture, place)
