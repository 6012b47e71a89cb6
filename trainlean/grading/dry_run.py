"""Who handed in what, and what cannot be read: a look before the run."""

import contextlib

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainlean.grading.judging import clean_text
from trainlean.grading.plan import Plan
from trainlean.grading.submissions import Submission
from trainlean.grading.workers import WorkerProcess


def show_dry_run(submissions: list[Submission], plan: Plan) -> int:
    """Print who handed in what, and what cannot be read; nothing of it is run and nothing is written.

    A worker reads the notebooks, under the limits of a run: a learner's JSON can take gigabytes.
    """
    table = Table("learner", "notebook", "lesson", "problem")
    status = 0
    worker = WorkerProcess(plan)
    with contextlib.closing(worker):
        for submission in submissions:
            lines = [("", "", problem) for problem in submission.problems]
            for file in submission.notebooks:
                data, problem, _ = file.content()
                lessons: tuple[str, ...] = ()
                if data is not None:
                    problem, lessons = worker.lessons_in(data, file.where)
                lines.append((file.where, ", ".join(lessons), clean_text(problem)))
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
