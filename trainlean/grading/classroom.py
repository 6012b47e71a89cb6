"""A class from its submissions to what is handed back: the run, and the files it leaves."""

import errno
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trainlean.exercises.exercise import Exercise
from trainlean.grading.cluster import cluster_workers
from trainlean.grading.dry_run import show_dry_run
from trainlean.grading.feedback_pages import write_feedback
from trainlean.grading.formats.format import Results
from trainlean.grading.gradebook import read_manual, write_gradebook
from trainlean.grading.log import Log, last_run, log_path, read_log, to_line
from trainlean.grading.options import GradeOptions
from trainlean.grading.overlay import exercises_with
from trainlean.grading.plan import Graded, Plan
from trainlean.grading.rows import (
    exercises_due,
    lessons_due,
    load_late_policy,
    rows_of,
    shortened,
)
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import NONE, Isolation, find_isolation
from trainlean.grading.submissions import Submission, find_submissions
from trainlean.grading.tally import plot_class, show_class, write_tally
from trainlean.workspace import CourseError

INTERRUPTED = 130  # exit status
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MOST_WORKERS = 8  # where nobody says how many


def grade_class(options: GradeOptions) -> int:
    """Grade all submissions and write what is handed back. Exit status: 0, 1 when something could not be read, 130 when interrupted.

    CourseError for options that cannot be, where another run writes to the same gradebook, and where the disk is full.
    """
    output = options.output
    every = exercises_with(options.overlay)
    exercises = due(every, options.lessons)
    elsewhere = {name: one.notebook for name, one in every.items() if name not in exercises}
    policy = load_late_policy(options.late)
    read_manual(output)  # what is wrong with it is said before the run, not after
    submissions = find_submissions(options.submissions)
    if options.dry_run:  # nothing is run, so that limits do where isolation does not work
        plan = Plan(exercises, 0, find_isolation(trust=True), elsewhere=elsewhere)
        return show_dry_run(submissions, plan)
    isolation = (
        Isolation(
            NONE,
            "Isolation: each engine of the cluster looked for its own, and refuses to work without.",
        )
        if options.cluster
        else find_isolation(options.trust_submissions)
    )
    _say(isolation.sentence)
    wanted = Plan(exercises, 0, isolation, elsewhere=elsewhere)
    try:
        log = Log(log_path(output))
    except OSError as error:
        raise _not_written(output, error) from None
    try:
        plan, done, resumes = _plan(options, wanted)
        if resumes:
            _say(
                f"Going on with the run that was interrupted: {len(done)} notebooks are graded already."
            )
        _say(f"Seed {plan.seed}: the same questions are put again with --seed {plan.seed}.")
        graded = _still_there(done, submissions)
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
        graded += _run(submissions, plan, options, graded, log)
        lessons, how = lessons_due(graded, exercises, bool(options.lessons))
        rows = rows_of(submissions, graded, lessons, policy)
        results = Results(
            output,
            rows,
            list(rows),
            exercises_due(exercises, lessons),
            f"Seed {plan.seed}. {isolation.sentence}",
        )
        try:
            missing = write_everything(results, options)
        except OSError as error:
            raise _not_written(output, error) from None
        log.add({"event": "end", "ended": _now(), "learners": len(submissions)})
    except KeyboardInterrupt:
        _say(f"Interrupted. Nothing is lost: the same command goes on from {log_path(output)}.")
        return INTERRUPTED
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise _not_written(output, error) from None
    finally:
        log.close()
    show_class(results.rows, results.exercises)
    problems = {one.learner: [*one.problems] for one in submissions}
    for one in graded:
        problems[one.learner] += filter(None, [one.problem])
    unread = [sentence for each in problems.values() for sentence in shortened(each)]
    notes = [f"{one.learner}: {note}" for one in submissions for note in one.notes]
    for sentence in filter(None, [how, *missing, *notes, *unread]):
        _say(sentence)
    if unread:
        _say(
            f"{sum(map(len, problems.values()))} of the files handed in could not be graded; each has its reason in {output}."
        )
    return 1 if unread else 0


def _not_written(output: Path, error: OSError) -> CourseError:
    what = error.filename or f"{output} and what belongs to it"
    do = "Make room" if error.errno in NO_ROOM else "Give another place, or make it writable"
    return CourseError(
        f"{what} could not be written ({error.strerror}). {do}; nothing that was graded is lost: the same command goes on."
    )


def due(exercises: dict[str, Exercise], lessons: Sequence[str]) -> dict[str, Exercise]:
    """The exercises of the lessons that are named (whole names, or units); all when none is. CourseError for a name that is no lesson's."""
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


def _plan(options: GradeOptions, plan: Plan) -> tuple[Plan, list[Graded], bool]:
    """The plan with its seed, what an interrupted run of the same plan has graded, and whether there is one to go on with."""
    start: Any  # None only where there is no earlier run, which counts as ended
    start, done, ended = last_run(read_log(log_path(options.output)))
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    resumes = (
        not ended
        and start["fingerprint"] == plan.fingerprint()
        and options.seed in (None, start["seed"])
        and start["exercises"] == list(plan.exercises)
    )
    if resumes:
        return replace(plan, seed=start["seed"]), done, True
    return replace(plan, seed=seed), [], False


def _still_there(done: list[Graded], submissions: list[Submission]) -> list[Graded]:
    """What an interrupted run has graded, as far as the same files are still there unchanged."""
    files = {
        (submission.learner, file.where): file
        for submission in submissions
        for file in submission.notebooks
    }
    latest = {(one.learner, one.where): one for one in done}
    return [
        one for key, one in latest.items() if key in files and files[key].content()[2] == one.sha256
    ]


def _run(
    submissions: list[Submission],
    plan: Plan,
    options: GradeOptions,
    done: list[Graded],
    log: Log,
) -> list[Graded]:
    total = sum(len(submission.notebooks) for submission in submissions)
    count = options.workers or min(MOST_WORKERS, _cores())
    collect = (
        cluster_workers(plan, options.cluster, count, options.trust_submissions)
        if options.cluster
        else None
    )
    columns = (
        TextColumn("Grading"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    screen = Console(stderr=True)
    fresh = []
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        bar = bars.add_task("", total=total, completed=len(done))
        for one in grade_all(
            submissions,
            plan,
            workers=min(count, max(1, total - len(done))),
            done=done,
            collect=collect,
        ):
            log.add(to_line(one))
            fresh.append(
                replace(one, seen={})
            )  # it is in the log; a class of thousands would fill the memory
            bars.advance(bar)
    return fresh


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def write_everything(results: Results, options: GradeOptions) -> list[str]:
    """All files of a run; returns a sentence for each form in which a learner was not found, and for each of the instructor's lines that needs a look."""
    output, submitted = results.output, results.submitted
    sentences = write_gradebook(output, results.rows, results.exercises, read_manual(output))
    written: list[str | Path] = [output, log_path(output)]
    pages = results.beside("_feedback")
    write_feedback(pages, submitted, results.exercises, results.footer)
    tally, picture = results.beside("_mistakes.csv"), results.beside("_mistakes.png")
    write_tally(tally, submitted, results.exercises)
    plot_class(submitted, results.exercises, picture)
    written += [f"{pages}/", tally, picture]
    for form in options.formats:
        done = form.write(results)
        written.append(f"{done.path}/" if done.path.is_dir() else done.path)
        if done.missing:
            sentences.append(
                f"No line of {form.path} was filled in for: {', '.join(done.missing)}."
            )
    _say(f"Written: {', '.join(map(str, written))}.")
    return sentences


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(sentence: str) -> None:
    Console().print(sentence, markup=False, highlight=False, soft_wrap=True)
