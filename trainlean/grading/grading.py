"""Grade a class: questions put to every submission in isolation, verdicts given here, nothing lost on the way."""

import hashlib
from collections.abc import Callable, Iterable, Iterator

from trainlean.grading.asking import with_workers
from trainlean.grading.judging import clean_text, judge_answers, noted
from trainlean.grading.plan import Graded, Plan
from trainlean.grading.submissions import Submission, Unread


def grade_all(submissions: Iterable[Submission], plan: Plan, *, workers: int = 1, done: Iterable[Graded] = (), asked: Callable | None = None) -> Iterator[Graded]:
    """Every notebook of every submission, judged, in the order in which they come; what `done` holds already is passed over.

    `asked(tasks)` may put the questions elsewhere: it takes (number, bytes, where) and yields (number, Answers, seconds).
    """
    known = {(graded.learner, graded.where): graded.sha256 for graded in done}
    tasks, read = [], {}
    for submission in submissions:
        for file in submission.notebooks:
            tasks.append((submission, file))
    memory: dict = {}

    def to_ask() -> Iterator[tuple[int, bytes, str]]:
        for number, (submission, file) in enumerate(tasks):
            try:
                data = file.read()
            except Unread as error:
                problem = f"{file.where} {error}"
                digest = hashlib.sha256(problem.encode()).hexdigest()
                data = None
            else:
                digest = hashlib.sha256(data).hexdigest()
            if known.get((submission.learner, file.where)) == digest:
                continue
            read[number] = digest
            yield number, data, problem if data is None else file.where

    ask = asked or with_workers(plan, workers)
    for number, answers, seconds in ask(to_ask()):
        submission, file = tasks[number]
        verdicts, observations = judge_answers(answers, plan, memory)
        seen = {name: noted(observation) for name, observation in observations.items()}
        when = file.submitted.isoformat(timespec="seconds") if file.submitted else None
        yield Graded(submission.learner, file.where, read[number], clean_text(answers.problem), tuple(verdicts), when, round(seconds, 3), seen)
