"""Who handed in what, and what cannot be read: a look before the run."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainlean.exercises.checking import belonging
from trainlean.exercises.exercise import Exercise
from trainlean.grading.submissions import Submission, Unread
from trainlean.notebooks.notebook import notebook_of
from trainlean.workspace import CourseError


def show_dry_run(submissions: list[Submission], exercises: dict[str, Exercise]) -> int:
    """Print who handed in what, and what cannot be read; nothing of it is run and nothing is written."""
    table = Table("learner", "notebook", "lesson", "problem")
    status = 0
    for submission in submissions:
        lines = [("", "", problem) for problem in submission.problems]
        for file in submission.notebooks:
            try:
                notebook = notebook_of(file.read(), file.where)
                lesson = ", ".join(
                    dict.fromkeys(
                        exercise.notebook
                        for exercise in belonging(Path(file.where), notebook, exercises.values())
                    )
                )
                lines.append((file.where, lesson, ""))
            except (Unread, CourseError) as error:
                said = str(error)
                lines.append(
                    (
                        file.where,
                        "",
                        said if said.startswith(file.where) else f"{file.where} {said}",
                    )
                )
            except (RecursionError, MemoryError, ValueError) as error:
                lines.append(
                    (file.where, "", f"{file.where} cannot be read: {type(error).__name__}.")
                )
        status |= any(problem for *_, problem in lines)
        lines += [("", "", note) for note in submission.notes]
        for number, line in enumerate(lines):
            table.add_row(Text(submission.learner if number == 0 else ""), *map(Text, line))
    screen = Console()
    screen.print(table)
    notebooks = sum(len(submission.notebooks) for submission in submissions)
    screen.print(
        f"{len(submissions)} learners, {notebooks} notebooks; nothing was run.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return int(status)
