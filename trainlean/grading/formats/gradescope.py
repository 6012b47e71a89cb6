"""Gradescope: results.json, as its autograder reads it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trainlean.grading.formats.format import Format, Results, Written
from trainlean.grading.names import file_names
from trainlean.workspace import write_whole


@dataclass(frozen=True)
class Gradescope(Format):
    """results.json: directly in the folder for one learner, in a folder each for several."""

    name = "Gradescope"
    option = "gradescope"

    path: Annotated[Path, typer.Option(help="a folder for Gradescope's results.json")]

    def write(self, results: Results) -> Written:
        """Write results.json for everyone who handed in something."""
        rows = results.submitted
        for row, name in zip(rows, file_names(row.learner for row in rows), strict=True):
            tests = [
                _test(exercise, row.verdicts.get(exercise.name)) for exercise in results.exercises
            ]
            said = filter(None, [*row.reasons, row.manual.get("comment", ""), results.footer])
            content = {
                "score": row.total,
                "max_score": results.possible,
                "output": " ".join(said),
                "tests": tests,
            }
            folder = self.path if len(rows) == 1 else self.path / name
            write_whole(folder / "results.json", json.dumps(content, indent=1, ensure_ascii=False))
        return Written(self.path)


def _test(exercise, verdict) -> dict:
    from trainlean.exercises.verdicts import RIGHT

    right = verdict is not None and verdict.outcome == RIGHT
    return {
        "name": exercise.name,
        "score": verdict.points if verdict else 0,
        "max_score": exercise.points,
        "status": "passed" if right else "failed",
        "output": str(verdict) if verdict else "There is no readable answer.",
    }
