"""The map of the course: read from the lessons' heads, and put around each lesson by the build."""

import re

import nbformat
import pytest

from trainlean.notebooks.building import find_stale, write
from trainlean.notebooks.course import (
    LINK,
    around,
    course_map,
    fresh_lesson,
    map_text,
    next_text,
    read_head,
    unit_title,
    units_of,
)
from trainlean.notebooks.notebook import Place, find_notebooks, make_lesson, read_authored
from trainlean.workspace import COURSE, write_whole

LESSONS = {lesson.name: lesson for lesson in course_map()}
HEAD = """# %% [markdown]
# # The {title}
#
# **You will be able to** do {title}.
#
# **Minutes**: 12, with a halt · **Before this**: {before}. {more}

# %%
print(1)
"""


def made(root, **lessons):
    """A course in a folder, with `name="what stands behind its minutes"`."""
    for name, (before, more) in lessons.items():
        text = HEAD.format(title=name, before=before, more=more)
        write_whole(root / "authoring" / f"{name.replace('__', '/')}.py", text)
    return find_notebooks(course=root)


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_says_what_the_map_shows(name):
    lesson = LESSONS[name]
    assert lesson.title and lesson.purpose.endswith(".") and lesson.minutes and lesson.before
    earlier = [*LESSONS][: [*LESSONS].index(name)]
    assert set(lesson.needs) <= {*earlier}, "a lesson needs only what comes before it"
    assert not [need for need in lesson.needs if LESSONS[need].optional] or lesson.optional


def test_the_exercises_of_the_map_are_those_of_the_lessons():
    for name, lesson in LESSONS.items():
        text = (COURSE / "authoring" / f"{name}.py").read_text(encoding="utf-8")
        assert len(lesson.exercises) == len(re.findall(r'\bexercise="', text))


@pytest.mark.parametrize("name", LESSONS)
def test_map_and_way_on_lead_to_every_lesson_and_the_next(name):
    lessons = [*LESSONS.values()]
    here = Place(name).lesson.parent
    for text in (map_text(name, lessons), next_text(name, lessons)):
        targets = [(here / target).resolve() for _, target in LINK.findall(text)]
        assert {target.relative_to(COURSE).suffix for target in targets} <= {".ipynb"}
        reached = {
            target.relative_to(COURSE / "lessons").with_suffix("").as_posix() for target in targets
        }
        if text.startswith("<details>"):
            assert reached == LESSONS.keys() - {name}
        elif name != lessons[-1].name:
            assert lessons[lessons.index(LESSONS[name]) + 1].name in reached


def test_a_lesson_stands_between_map_and_way_on(tmp_path):
    places = made(
        tmp_path,
        a_one__1_first=("nothing like `a.b()` 3.5", ""),
        a_one__2_second=(
            "[the first](1_first.ipynb)",
            "This lesson is optional. See [more](../b_sgd/1_third.ipynb).",
        ),
        b_sgd__1_third=(
            "[the first](../a_one/1_first.ipynb) and [more](https://x.org/y.html)",
            "",
        ),
    )
    for place in places:
        authored = read_authored(place)
        lesson = fresh_lesson(place, authored)
        nbformat.validate(lesson)
        assert lesson.cells[1:-1] == make_lesson(authored).cells
        assert lesson.cells[0].source.startswith("<details>") and "map" in lesson.cells[0].source
    first, second, third = (fresh_lesson(place).cells[-1].source for place in places)
    assert "(2_second.ipynb) (12 minutes, optional) or [The b_sgd__1_third](" in first
    assert "**Next**: [The b_sgd__1_third](../b_sgd/1_third.ipynb) (12 minutes) · **Before**" in (
        second
    )
    assert "the last lesson" in third and "(../a_one/2_second.ipynb)" in third
    lessons = course_map(tmp_path)
    assert lessons[2].needs == ("a_one/1_first",)
    assert lessons[0].before == "nothing like `a.b()` 3.5"
    # What is told beside it is no need.
    assert lessons[1].needs == ("a_one/1_first",)
    assert [unit_title(unit) for unit in units_of(lessons)] == ["A one", "B SGD"]
    assert around("a_one/1_first", lessons) == (None, lessons[1:])
    # One lesson more changes lessons, which are cut at once, and no solution, which would have to run.
    for place in places:
        ran = read_authored(place)
        ran.cells[1].execution_count = 1
        write(ran, place.solution)
        write(fresh_lesson(place), place.lesson)
    assert find_stale(places) == []
    [*_, added] = made(tmp_path, c__1_fourth=("nothing", ""))
    assert [stale.path for stale in find_stale(places)] == [place.lesson for place in places]
    assert read_head(added).optional is False


def test_a_lone_notebook_without_a_head_is_a_lesson_all_the_same(tmp_path):
    path = tmp_path / "authoring" / "unit" / "a.py"
    write_whole(path, "# %%\nprint(1)\n")
    [place] = find_notebooks(course=tmp_path)
    assert read_head(place).title == "a" and read_head(place).minutes is None
    assert [cell.source for cell in fresh_lesson(place).cells] == ["print(1)"]
