"""Grade a class: questions put to every submission in isolation, verdicts given here, nothing lost on the way."""

from collections.abc import Callable, Iterable, Iterator

from trainlean.grading.judging import clean_text, judge_answers, noted
from trainlean.grading.plan import Graded, Plan
from trainlean.grading.submissions import Submission
from trainlean.grading.workers import local_workers


def grade_all(
    submissions: Iterable[Submission],
    plan: Plan,
    *,
    workers: int = 1,
    done: Iterable[Graded] = (),
    collect: Callable | None = None,
) -> Iterator[Graded]:
    """Every notebook of every submission, judged, in the order in which they come; what `done` holds already is passed over.

    `collect(tasks)` may collect the answers elsewhere: it takes (number, bytes, where), or (number, None, why it cannot be read),
    and yields (number, Answers, seconds).
    """
    known = {(graded.learner, graded.where): graded.sha256 for graded in done}
    tasks = [(submission, file) for submission in submissions for file in submission.notebooks]
    digests: dict[int, str] = {}
    cache: dict = {}

    def to_collect() -> Iterator[tuple[int, bytes | None, str]]:
        for number, (submission, file) in enumerate(tasks):
            data, problem, digest = file.content()
            if known.get((submission.learner, file.where)) != digest:
                digests[number] = digest
                yield number, data, problem or file.where

    collect = collect or local_workers(plan, workers)
    for number, answers, seconds in collect(to_collect()):
        submission, file = tasks[number]
        verdicts, observations = judge_answers(answers, plan, cache)
        seen = {name: noted(observation) for name, observation in observations.items()}
        when = file.submitted.isoformat(timespec="seconds") if file.submitted else None
        yield Graded(
            submission.learner,
            file.where,
            digests[number],
            clean_text(answers.problem),
            tuple(verdicts),
            when,
            round(seconds, 3),
            seen,
        )
