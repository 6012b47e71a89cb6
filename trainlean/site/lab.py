"""The start page inside JupyterLab: the map with the learner's standing, given by Jupyter's server to the extension in jupyter/start.

`trainlean lab` loads both; no other JupyterLab of the environment does.
"""

import asyncio
import json
from dataclasses import dataclass

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado.web import authenticated

from trainlean.exercises.progress import Standing, standings
from trainlean.notebooks.course import Lesson, course_map
from trainlean.site.map import TEMPLATES, map_html

OPEN = "open"  # the state of what has not been answered yet


@dataclass(frozen=True)
class ExerciseStanding:
    """An exercise on the map: its name, its state (right, wrong, crashed, open) and that state with its points in words."""

    name: str
    state: str
    words: str


@dataclass(frozen=True)
class LessonStanding:
    """A lesson on the map: its exercises and, in words, how many of them are right."""

    exercises: tuple[ExerciseStanding, ...]
    words: str


def lesson_standing(lesson: Lesson, found: dict[str, Standing]) -> LessonStanding:
    """Where a learner stands with a lesson."""
    exercises = []
    counts = {"right": 0, "wrong": 0, "crashed": 0, OPEN: 0}
    for name, _ in lesson.exercises:
        mine = found.get(name)
        state = mine.outcome if mine and mine.outcome in counts else OPEN
        counts[state] += 1
        words = state + (f" ({mine.mistake})" if mine and mine.mistake else "")
        exercises.append(ExerciseStanding(name, state, words))
    best = sum(found[name].of(points) for name, points in lesson.exercises if name in found)
    possible = sum(points for _, points in lesson.exercises)
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    return LessonStanding(tuple(exercises), f"{', '.join(parts)} · {best:g} of {possible} points")


def start_html() -> str:
    """The start page of the learner whose records are in the work folder."""
    from trainlean.site.markdown import line_of  # imports nbconvert: not while the server starts

    lessons, found = course_map(), standings()
    standing = {lesson.name: lesson_standing(lesson, found) for lesson in lessons}
    shown = map_html(lessons, lambda one: f"lessons/{one.name}.ipynb", line_of, standing)
    states = [one.state for mine in standing.values() for one in mine.exercises]
    begun = [lesson for lesson in lessons if any(n in found for n, _ in lesson.exercises)]
    style = "".join((TEMPLATES / name).read_text("utf-8") for name in ("start.css", "map.css"))
    words = (
        f"{states.count('right')} of {len(states)} exercises are right."
        if begun
        else ("Begin with the first lesson. What you get right is noted here.")
    )
    return f'<style>{style}</style><h1>Train Lean</h1><p>{words}</p><div class="map">{shown}</div>'


class StartHandler(JupyterHandler):
    """Answers with the start page as JSON: {"html": ...}."""

    @authenticated
    async def get(self):
        """The page as it is now."""
        html = await asyncio.get_running_loop().run_in_executor(None, start_html)
        self.finish(json.dumps({"html": html}))


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "trainlean.site.lab"}]


def _load_jupyter_server_extension(server) -> None:
    base = server.web_app.settings["base_url"]
    server.web_app.add_handlers(".*$", [(url_path_join(base, "trainlean/start"), StartHandler)])
