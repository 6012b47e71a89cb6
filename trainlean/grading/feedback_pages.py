"""A page for each learner: what was seen, why it is wrong, a hint; no test's source."""

import html
from pathlib import Path

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.feedback import OUTCOME_COLOURS
from trainlean.exercises.verdicts import NOT_ATTEMPTED, RIGHT, SAME_RESULTS, Verdict
from trainlean.grading.names import file_names
from trainlean.grading.rows import Row
from trainlean.grading.sheets import number
from trainlean.workspace import write_whole

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 760px; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.05rem; margin: 1.6rem 0 .4rem }}
.exercise {{ border-left: 4px solid; padding: .3rem .9rem; margin: .7rem 0 }} .exercise p {{ margin: .2rem 0 }}
pre {{ background: #f3f4f6; padding: .5rem; overflow-x: auto; white-space: pre-wrap }} summary {{ cursor: pointer }} footer {{ color: #6b7280; margin-top: 2rem; font-size: .85rem }}
</style>
<h1>{title}</h1>
{body}
<footer>{footer}</footer></html>
"""


def write_feedback(folder: Path, rows: list[Row], exercises: list[Exercise], footer: str) -> None:
    """An HTML page for each learner, whole in itself: message, what was seen, why, a hint; no tests' source."""
    for row, place in zip(rows, file_names(row.learner for row in rows), strict=True):
        write_whole(Path(folder) / f"{place}.html", feedback_page(row, exercises, footer))


def feedback_page(row: Row, exercises: list[Exercise], footer: str = "") -> str:
    """The page of one learner."""
    possible = sum(exercise.points for exercise in exercises)
    parts = [f"<p><b>{row.total:g} of {possible} points</b></p>"]
    if row.counted != row.points:
        parts.append(
            f"<p>{row.points:g} points were earned; {row.counted:g} count after the late policy.</p>"
        )
    if number(row.manual.get("adjustment", "")):
        parts.append(f"<p>Adjustment by the instructor: {number(row.manual['adjustment']):+g}.</p>")
    if row.manual.get("comment"):
        parts.append(f"<p>Comment: {html.escape(row.manual['comment'])}</p>")
    parts += [f"<p>{html.escape(reason)}</p>" for reason in row.reasons]
    for lesson in dict.fromkeys(exercise.notebook for exercise in exercises):
        parts.append(f"<h2>{html.escape(lesson)}</h2>")
        parts += [
            _exercise_part(exercise, row.verdicts.get(exercise.name))
            for exercise in exercises
            if exercise.notebook == lesson
        ]
    return PAGE.format(
        title=html.escape(row.learner), body="\n".join(parts), footer=html.escape(footer)
    )


def _exercise_part(exercise: Exercise, verdict: Verdict | None) -> str:
    outcome = verdict.outcome if verdict else NOT_ATTEMPTED
    colour = OUTCOME_COLOURS[outcome]
    points = verdict.points if verdict else 0
    lines = [
        f'<p><b style="color:{colour}">{outcome.capitalize()}</b> · {exercise.name} · {points} of {exercise.points} points</p>'
    ]
    if verdict and outcome != RIGHT:
        lines.append(f"<p>{html.escape(verdict.message)}</p>")
        if verdict.mistake:
            lines.append(
                f"<p>{SAME_RESULTS}: <b>{html.escape(verdict.mistake[:1].upper() + verdict.mistake[1:])}.</b> {html.escape(verdict.why)}</p>"
            )
        if outcome != NOT_ATTEMPTED:
            folded = {
                "A hint": html.escape(verdict.hint),
                "Where it was raised": _pre(verdict.traceback),
                "What your answer printed": _pre(verdict.printed[-2000:]),
            }
            lines += [
                f"<details><summary>{title}</summary>{text}</details>"
                for title, text in folded.items()
                if text
            ]
    return f'<div class="exercise" style="border-color:{colour}">{"".join(lines)}</div>'


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""
