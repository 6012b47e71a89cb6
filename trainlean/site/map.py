"""The map of lessons as HTML: what each is for, its minutes and what it needs; with a learner's standing, where there is one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from trainlean.notebooks.course import LINK, Lesson, lesson_at, unit_title, units_of

TEMPLATES = Path(__file__).parent / "web"


def environment() -> Environment:
    """The site's templates; what they are given is escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(enabled_extensions=("j2",), default=True),
        trim_blocks=True,
    )
    found.globals["unit_title"] = unit_title
    return found


def map_html(
    lessons: Sequence[Lesson],
    link: Callable[[Lesson], str],
    line: Callable[[str], str],
    standing: Mapping | None = None,
) -> str:
    """The map; `link` gives a lesson's address, `line` turns a sentence's markdown into HTML, `standing` is by a lesson's name."""
    of_name = {lesson.name: link(lesson) for lesson in lessons}

    def needs(lesson: Lesson) -> Markup:
        def anchor(found) -> str:
            name = lesson_at(found[2], lesson.name)
            if name not in of_name:
                return found[1]
            return f'<a href="{of_name[name]}" data-lesson="{name}">{found[1]}</a>'

        return Markup(line(LINK.sub(anchor, lesson.before)))

    return (
        environment()
        .get_template("map.html.j2")
        .render(
            units=units_of(list(lessons)),
            needs=needs,
            link=link,
            line=lambda text: Markup(line(text)),
            standing=standing,
        )
    )
