"""A class from its submissions to what is handed back: the run, the files it leaves, and what the class got wrong most often."""

import csv
import io
import os
import secrets
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trainlean.exercises.checking import belonging
from trainlean.exercises.exercise import Exercise
from trainlean.exercises.feedback import OUTCOME_COLOURS
from trainlean.exercises.verdicts import OUTCOMES, RIGHT, WRONG
from trainlean.grading.cluster import with_cluster
from trainlean.grading.gradebooks import (
    Row,
    fill_canvas,
    fill_moodle,
    graded_exercises,
    load_late_policy,
    read_manual,
    rows_of,
    write_feedback,
    write_gradebook,
    write_gradescope,
)
from trainlean.grading.log import Log, last_run, log_path, read_log, to_line
from trainlean.grading.overlay import exercises_with
from trainlean.grading.plan import Graded, Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import NONE, Isolation, find_isolation
from trainlean.grading.submissions import Submission, Unread, find_submissions
from trainlean.notebooks.notebook import notebook_of
from trainlean.workspace import CourseError, write_whole

INTERRUPTED = 130  # exit status


def grade_class(
    path: Path,
    output: Path,
    *,
    seed: int | None = None,
    workers: int | None = None,
    lessons: tuple[str, ...] = (),
    overlay: Path | None = None,
    late: Path | None = None,
    canvas: Path | None = None,
    canvas_column: str | None = None,
    moodle: Path | None = None,
    gradescope: Path | None = None,
    cluster: str | None = None,
    trust: bool = False,
    dry_run: bool = False,
) -> int:
    """Grade all submissions and write what is handed back. Exit status: 0, 1 when something could not be read, 130 when interrupted."""
    output = Path(output)
    if output.suffix.lower() != ".csv":
        raise CourseError(f"--output is the gradebook and must end in .csv, not {output.name}.")
    exercises = due(exercises_with(overlay), lessons)
    policy = load_late_policy(late)
    read_manual(output)  # what is wrong with it is said before the run, not after
    submissions = find_submissions(path)
    for form in (canvas, moodle):
        if form is not None and not Path(form).is_file():
            raise CourseError(f"There is no {form}; check the path.")
    screen = Console(stderr=True)
    if dry_run:
        return show_dry_run(submissions, exercises)
    isolation = (
        Isolation(
            NONE,
            "Isolation: each engine of the cluster looked for its own, and refuses to work without.",
        )
        if cluster
        else find_isolation(trust)
    )
    _say(isolation.sentence)
    start, done, ended = last_run(read_log(log_path(output)))
    plan = Plan(exercises, secrets.randbelow(1_000_000) if seed is None else seed, isolation)
    resumes = (
        not ended
        and start["fingerprint"] == plan.fingerprint()
        and seed in (None, start["seed"])
        and start["exercises"] == list(exercises)
    )
    if resumes:
        plan = Plan(exercises, start["seed"], isolation)
        _say(
            f"Going on with the run that was interrupted: {len(done)} notebooks are graded already."
        )
    done = done if resumes else []
    _say(f"Seed {plan.seed}: the same questions are put again with --seed {plan.seed}.")
    count = workers or min(
        8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    log = Log(log_path(output))
    graded = _still_there(done, submissions)
    try:
        if not resumes:
            log.add(
                {
                    "event": "run",
                    "seed": plan.seed,
                    "fingerprint": plan.fingerprint(),
                    "exercises": list(exercises),
                    "isolation": isolation.sentence,
                    "begun": _now(),
                }
            )
        graded += _run(
            submissions,
            plan,
            count,
            graded,
            log,
            screen,
            with_cluster(plan, cluster, count, trust) if cluster else None,
        )
        rows = rows_of(submissions, graded, exercises, policy)
        left = write_everything(output, rows, plan, canvas, canvas_column, moodle, gradescope)
        log.add({"event": "end", "ended": _now(), "learners": len(submissions)})
    except KeyboardInterrupt:
        _say(f"Interrupted. Nothing is lost: the same command goes on from {log_path(output)}.")
        return INTERRUPTED
    finally:
        log.close()
    show_class(rows, graded_exercises(rows, exercises))
    for sentence in left:
        _say(sentence)
    unread = [problem for submission in submissions for problem in submission.problems] + [
        one.problem for one in graded if one.problem
    ]
    for problem in unread:
        _say(problem)
    if unread:
        _say(
            f"{len(unread)} of the files handed in could not be graded; each has its reason in {output}."
        )
    return 1 if unread else 0


def due(exercises: dict[str, Exercise], lessons: tuple[str, ...]) -> dict[str, Exercise]:
    """The exercises of the lessons that are named (whole names, or units); all when none is."""
    known = {exercise.notebook for exercise in exercises.values()}
    for lesson in lessons:
        if not any(name == lesson or name.startswith(f"{lesson}/") for name in known):
            raise CourseError(
                f"There is no lesson {lesson!r}; the lessons are {', '.join(sorted(known))}."
            )
    if not lessons:
        return exercises
    return {
        name: exercise
        for name, exercise in exercises.items()
        if any(
            exercise.notebook == lesson or exercise.notebook.startswith(f"{lesson}/")
            for lesson in lessons
        )
    }


def _still_there(done: list[Graded], submissions: list[Submission]) -> list[Graded]:
    """What an interrupted run has graded, as far as the same files are still there unchanged."""
    digests = {
        (submission.learner, file.where): file.content()[2]
        for submission in submissions
        for file in submission.notebooks
    }
    latest = {(one.learner, one.where): one for one in done}
    return [one for key, one in latest.items() if digests.get(key) == one.sha256]


def _run(
    submissions: list[Submission],
    plan: Plan,
    workers: int,
    done: list[Graded],
    log: Log,
    screen: Console,
    asked,
) -> list[Graded]:
    total = sum(len(submission.notebooks) for submission in submissions)
    columns = (
        TextColumn("Grading"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    fresh = []
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        bar = bars.add_task("", total=total, completed=len(done))
        for one in grade_all(
            submissions,
            plan,
            workers=min(workers, max(1, total - len(done))),
            done=done,
            asked=asked,
        ):
            log.add(to_line(one))
            fresh.append(one)
            bars.advance(bar)
    return fresh


def write_everything(
    output: Path,
    rows: list[Row],
    plan: Plan,
    canvas: Path | None,
    canvas_column: str | None,
    moodle: Path | None,
    gradescope: Path | None,
) -> list[str]:
    """All files of a run; returns a sentence for each form in which a learner was not found."""
    exercises = graded_exercises(rows, plan.exercises)
    possible = sum(exercise.points for exercise in exercises)
    submitted = list(rows)
    write_gradebook(output, rows, exercises, read_manual(output))
    written = [output, log_path(output)]
    footer = f"Seed {plan.seed}. {plan.isolation.sentence}"
    pages = beside(output, "_feedback")
    write_feedback(pages, submitted, exercises, footer)
    tally, picture = beside(output, "_mistakes.csv"), beside(output, "_mistakes.png")
    write_tally(tally, submitted, exercises)
    plot_class(submitted, exercises, picture)
    written += [f"{pages}/", tally, picture]
    left = []
    for form, fill, ending in (
        (canvas, lambda *a: fill_canvas(*a, canvas_column), "_canvas.csv"),
        (moodle, fill_moodle, "_moodle.csv"),
    ):
        if form is not None:
            target = beside(output, ending)
            missing = fill(form, target, rows, possible)
            written.append(target)
            left += [f"Not in {form}: {', '.join(missing)}."] if missing else []
    if gradescope is not None:
        write_gradescope(gradescope, submitted, exercises, footer)
        written.append(f"{gradescope}/")
    _say(f"Written: {', '.join(map(str, written))}.")
    return left


def beside(output: Path, ending: str) -> Path:
    """A file or folder that belongs to a gradebook."""
    return output.with_name(output.stem + ending)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _say(sentence: str) -> None:
    Console().print(sentence, markup=False, highlight=False, soft_wrap=True)


# ---------------------------------------------------------------- before the run


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
        for number, line in enumerate(lines):
            table.add_row(Text(submission.learner if number == 0 else ""), *map(Text, line))
    Console().print(table)
    _say(
        f"{len(submissions)} learners, {sum(len(submission.notebooks) for submission in submissions)} notebooks; nothing was run."
    )
    return int(status)


# ---------------------------------------------------------------- what the class got wrong


def tally(rows: list[Row], exercises: list[Exercise]) -> list[tuple[str, str, str, int]]:
    """(exercise, outcome, mistake, learners): how often each was seen, in course order, the most frequent first."""
    counted = []
    for exercise in exercises:
        seen = Counter(
            (row.verdicts[exercise.name].outcome, row.verdicts[exercise.name].mistake)
            for row in rows
            if exercise.name in row.verdicts
        )
        missing = sum(exercise.name not in row.verdicts for row in rows)
        counted += [
            (exercise.name, outcome, mistake, number)
            for (outcome, mistake), number in sorted(
                seen.items(), key=lambda item: (-item[1], item[0])
            )
        ]
        counted += [(exercise.name, "no notebook", "", missing)] if missing else []
    return counted


def write_tally(path: Path, rows: list[Row], exercises: list[Exercise]) -> None:
    """The tally as a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [("exercise", "outcome", "mistake", "learners"), *tally(rows, exercises)]
    )
    write_whole(path, out.getvalue())


def show_class(rows: list[Row], exercises: list[Exercise]) -> None:
    """Print a line for each exercise: how many got it right, and the mistakes that were made most often."""
    counted = tally(rows, exercises)
    outcomes = [outcome for outcome in OUTCOMES if any(line[1] == outcome for line in counted)]
    table = Table("exercise", *outcomes, "most frequent mistakes")
    for exercise in exercises:
        lines = [line for line in counted if line[0] == exercise.name]
        by_outcome = Counter()
        for _, outcome, _, number in lines:
            by_outcome[outcome] += number
        mistakes = [f"{mistake} ({number})" for _, _, mistake, number in lines if mistake][:3]
        table.add_row(
            exercise.name, *(str(by_outcome[outcome]) for outcome in outcomes), ", ".join(mistakes)
        )
    Console().print(table)


def plot_class(rows: list[Row], exercises: list[Exercise], path: Path) -> None:
    """A picture of the tally: outcomes by exercise, and the mistakes to teach again."""
    from matplotlib.figure import Figure

    lines = tally(rows, exercises)
    mistakes = sorted(
        (
            (number, f"{mistake}  ({name})")
            for name, outcome, mistake, number in lines
            if mistake and outcome == WRONG
        ),
        reverse=True,
    )[:12]
    heights = [max(1, len(exercises)), max(0.1, len(mistakes))]
    figure = Figure(figsize=(9, 1.6 + 0.32 * sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    names = [exercise.name for exercise in exercises]
    start = [0] * len(names)
    seen_at_all = {outcome for _, outcome, _, _ in lines}
    for outcome in sorted(
        seen_at_all.intersection(OUTCOMES),
        key=lambda outcome: (outcome != RIGHT, OUTCOMES.index(outcome)),
    ):
        widths = [
            sum(number for name, seen, _, number in lines if name == exercise and seen == outcome)
            for exercise in names
        ]
        above.barh(
            names, widths, left=start, color=OUTCOME_COLOURS.get(outcome, "#9ca3af"), label=outcome
        )
        start = [before + width for before, width in zip(start, widths, strict=True)]
    above.invert_yaxis()
    above.set_title("Outcomes, by exercise", loc="left")
    above.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.08 - 0.3 / heights[0]),
        ncols=len(OUTCOMES),
        frameon=False,
    )
    below.set_visible(bool(mistakes))
    below.barh(
        [name for _, name in mistakes],
        [number for number, _ in mistakes],
        color=OUTCOME_COLOURS[WRONG],
    )
    below.invert_yaxis()
    below.set_title("The mistakes made most often", loc="left")
    below.set_xlabel("learners")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
