"""The course's map, read from the heads of the authored files, and the cells of a lesson that come from it.

No lesson is listed anywhere else: the lessons themselves, the site, JupyterLab's start page and the tests take the map from here.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from trainlean.notebooks.notebook import (
    Place,
    digest,
    find_notebooks,
    make_lesson,
    nbgrader_mark,
    read_authored,
    read_notebook,
    shown,
)
from trainlean.workspace import COURSE, CourseError

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
SPELLED = {"sgd": "SGD"}  # words of a folder's name that are not written as they are spoken


@dataclass(frozen=True)
class Lesson:
    """What a lesson's head says, and its exercises with their points.

    `purpose` goes on from "you will be able to"; `before` is the sentence about what it needs, with links, and `needs` the
    lessons that it names; `minutes` is None where the head gives none.
    """

    name: str
    title: str
    purpose: str
    minutes: int | None
    before: str
    needs: tuple[str, ...]
    optional: bool
    exercises: tuple[tuple[str, int], ...]

    @property
    def unit(self) -> str:
        """The folder that the lesson lies in."""
        return self.name.rpartition("/")[0]

    @property
    def words(self) -> str:
        """Its minutes, and whether it may be left out, as one reads it: `30 minutes, optional`."""
        parts = [f"{self.minutes} minutes"] if self.minutes else []
        return ", ".join(parts + ["optional"] * self.optional)


def course_map(course: Path = COURSE) -> list[Lesson]:
    """Every lesson of the course, in the order in which they are taught. CourseError where there is none."""
    return [read_head(place) for place in find_notebooks(course=course)]


def read_head(place: Place) -> Lesson:
    """What the authored file says of its lesson, by its text: to read it as a notebook takes a second."""
    text = place.authored.read_text(encoding="utf-8")
    [_, first, *_] = [*re.split(r"^# %%", text, maxsplit=2, flags=re.MULTILINE), ""]
    head = "\n".join(re.sub(r"^# ?", "", line) for line in first.splitlines())
    title = re.search(r"^# (.+)$", head, re.MULTILINE)
    purpose = re.search(r"\*\*You will be able to\*\* (.+)", head)
    minutes = re.search(r"\*\*Minutes\*\*: (\d+)", head)
    before = re.search(r"\*\*Before this\*\*: (.+?)(?:\.(?=\s)|\.?$)", head, re.MULTILINE)
    return Lesson(
        name=place.name,
        title=title[1].strip() if title else place.name.split("/")[-1],
        purpose=purpose[1].strip() if purpose else "",
        minutes=int(minutes[1]) if minutes else None,
        before=before[1].strip() if before else "",
        needs=tuple(
            lesson_at(target, place.name)
            for _, target in LINK.findall(before[1] if before else "")
            if target.endswith(".ipynb")
        ),
        optional=bool(re.search(r"\boptional\b", head, re.IGNORECASE)),
        exercises=tuple(
            (name, int(points))
            for name, points in re.findall(
                r'^# %%.* exercise="(\w+)".* points=(\d+)', text, re.MULTILINE
            )
        ),
    )


def lesson_at(target: str, here: str) -> str:
    """The name of the lesson to which a link of the lesson `here` leads."""
    path = os.path.normpath(PurePosixPath(here).parent / target)
    return path.replace(os.sep, "/").removesuffix(".ipynb")


def unit_title(unit: str) -> str:
    """The name of a unit, from its folder: `Local SGD` of 3_local_sgd."""
    words = [SPELLED.get(word, word) for word in unit.split("_") if not word.isdigit()]
    title = " ".join(words)
    return title[:1].upper() + title[1:]


def units_of(lessons: list[Lesson]) -> dict[str, list[Lesson]]:
    """The lessons by their unit, both in the order of the course."""
    units: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        units.setdefault(lesson.unit, []).append(lesson)
    return units


def around(name: str, lessons: list[Lesson]) -> tuple[Lesson | None, list[Lesson]]:
    """The lesson before the one named, and those that may come next: after optional ones there is always the next that is not."""
    names = [lesson.name for lesson in lessons]
    at = names.index(name)
    following = lessons[at + 1 :]
    must = next((i for i, lesson in enumerate(following) if not lesson.optional), len(following))
    return (lessons[at - 1] if at else None), following[: must + 1]


def fresh_lesson(place: Place, authored: NotebookNode | None = None) -> NotebookNode:
    """The lesson as it would be built now: cut, between the map and the way on. `authored` spares reading it again."""
    lesson = make_lesson(read_authored(place) if authored is None else authored)
    lessons = course_map(place.course)
    if len(lessons) > 1:
        lesson.cells = [
            _text_cell("course-map", map_text(place.name, lessons)),
            *lesson.cells,
            _text_cell("course-next", next_text(place.name, lessons)),
        ]
        lesson.metadata["trainlean"] = {"cut": digest(lesson)}
    return lesson


def original_of(path: Path, course: Path = COURSE) -> Place:
    """The lesson of which a notebook is a copy, by the marks of its exercises. CourseError: it cannot be read, or has no such mark."""
    marks = {str(nbgrader_mark(cell).get("grade_id")) for cell in read_notebook(path).cells}
    marks = {mark.removesuffix("-check") for mark in marks}
    common = {
        place: sum(name in marks for name, _ in read_head(place).exercises)
        for place in find_notebooks(course=course)
    }
    place = max(common, key=lambda one: common[one])
    if not common[place]:
        raise CourseError(
            f"{shown(path)} is none of the course's lessons, nor a copy that still has the marks of their exercises; copy the cell that you miss from {shown(course / 'lessons')}."
        )
    return place


def _text_cell(name: str, source: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source, id=name, metadata={"tags": ["map"]})


def map_text(name: str, lessons: list[Lesson]) -> str:
    """The map of the course as the lesson's first lines: the lesson's place, and all lessons with links, folded."""
    place = [lesson.name for lesson in lessons].index(name)
    rows = [
        f"- **{unit_title(unit)}**: " + " · ".join(_entry(lesson, name) for lesson in inside)
        for unit, inside in units_of(lessons).items()
    ]
    where = f"<b>{unit_title(lessons[place].unit)}</b>, lesson {place + 1} of {len(lessons)}"
    return "\n".join(
        [f"<details><summary>{where} · map of the course</summary>", "", *rows, "", "</details>"]
    )


def next_text(name: str, lessons: list[Lesson]) -> str:
    """The way on as the lesson's last lines."""
    before, following = around(name, lessons)
    parts = [f"**Next**: {' or '.join(_way(lesson, name) for lesson in following)}"]
    if not following:
        parts = ["This was the last lesson; `trainlean progress` shows which exercises are open"]
    if before:
        parts.append(f"**Before**: {_link(before, name)}")
    return "---\n\n" + " · ".join(parts)


def _entry(lesson: Lesson, here: str) -> str:
    return f"**{lesson.title}**" if lesson.name == here else _link(lesson, here)


def _way(lesson: Lesson, here: str) -> str:
    return _link(lesson, here) + (f" ({lesson.words})" if lesson.words else "")


def _link(lesson: Lesson, here: str) -> str:
    path = os.path.relpath(lesson.name, PurePosixPath(here).parent).replace(os.sep, "/")
    return f"[{lesson.title}]({path}.ipynb)"
