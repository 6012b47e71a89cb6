"""Grade a class: every submission probed in isolation, verdicts given here, nothing lost on the way."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from trainlean.grading.judging import ALL, WORKER, clean_text, judge_answers, noted, short_of
from trainlean.grading.plan import Answers, Graded, Plan
from trainlean.grading.submissions import Submission
from trainlean.grading.workers import local_workers

STARVED_ANSWERS = 20  # of one learner that ran into a limit, each after up to a minute: the learner's other notebooks wait


def grade_all(
    submissions: Iterable[Submission],
    plan: Plan,
    *,
    workers: int = 1,
    done: Iterable[Graded] = (),
    collect: Callable | None = None,
) -> Iterator[Graded]:
    """Every notebook of every submission, judged, in the order in which they come; what `done` holds already is not read again.

    An answer that failed for want of processes, memory or time while others were probed, or whose worker ended, is probed again
    at the end, by one worker while the others rest (on a cluster: with the others of its kind), before it counts.
    Of a learner with STARVED_ANSWERS of them the notebooks that are left come last, too; where as many fail there, they are not graded.

    `collect(tasks)` may collect the answers elsewhere: it takes (number, bytes, where), or (number, None, why it cannot be read),
    and yields (number, Answers, seconds).
    """
    known = {(graded.learner, graded.where) for graded in done}
    tasks = [(submission, file) for submission in submissions for file in submission.notebooks]
    first = [
        number
        for number, (submission, file) in enumerate(tasks)
        if (submission.learner, file.where) not in known
    ]
    cache: dict = {}
    again: dict[int, tuple[Graded, dict[str, str]]] = {}
    put_off: list[int] = []
    with nullcontext(collect) if collect else local_workers(plan, workers) as collecting:
        for number, one, answers in _judged(tasks, first, plan, collecting, cache, put_off):
            short = short_of(one, answers)
            if (
                workers == 1 and not collect
            ):  # time and memory nobody took: only what ended it counts
                short = {name: what for name, what in short.items() if what == WORKER}
            if short:
                again[number] = one, short
            else:
                yield one
        alone_at_it = collecting if collect else partial(collecting, at_once=1)
        last = [*again, *put_off]
        for number, alone, _ in _judged(
            tasks, last, plan, alone_at_it, cache, sure=frozenset(again)
        ):
            yield _second(again[number][0], alone, again[number][1]) if number in again else alone
            again.pop(number, None)
    yield from (one for one, _ in again.values())


def _judged(
    tasks: list,
    numbers: list[int],
    plan: Plan,
    collect: Callable,
    cache: dict,
    put_off: list[int] | None = None,
    sure: frozenset[int] = frozenset(),
) -> Iterator[tuple[int, Graded, Answers]]:
    """Notebooks by number, judged. Of a learner who has used up STARVED_ANSWERS all but the `sure` ones are `put_off`, or not graded."""
    digests: dict[int, str] = {}
    starved: Counter[str] = Counter()

    def to_collect() -> Iterator[tuple[int, bytes | None, str]]:
        for number in numbers:
            submission, file = tasks[number]
            too_many = starved[submission.learner] >= STARVED_ANSWERS and number not in sure
            if too_many and put_off is not None:
                put_off.append(number)
                continue
            data, problem, digests[number] = file.content()
            if too_many and not problem:
                data = None
                problem = (
                    f"{file.where} was not graded: {STARVED_ANSWERS} answers of this learner had run into a limit "
                    "(time, memory or processes) before it; hand in one notebook for each lesson."
                )
            yield number, data, problem or file.where

    if not numbers:
        return
    for number, answers, seconds in collect(to_collect()):
        submission, file = tasks[number]
        verdicts, observations = judge_answers(answers, plan, cache)
        one = Graded(
            submission.learner,
            file.where,
            digests[number],
            clean_text(answers.problem),
            tuple(verdicts),
            file.submitted.isoformat(timespec="seconds") if file.submitted else None,
            round(seconds, 3),
            {name: noted(observation) for name, observation in observations.items()},
            not_due=answers.not_due,
        )
        starved[submission.learner] += len(short_of(one, answers))
        yield number, one, answers


def _second(one: Graded, alone: Graded, short: dict[str, str]) -> Graded:
    """A notebook of which some exercises were probed again: their second verdicts count, and it says so."""
    if ALL in short:
        note = f"{one.where} could not be read for want of {short[ALL]} and was read again, alone; that counts."
        return replace(alone, notes=(note,))
    second = {verdict.exercise: verdict for verdict in alone.verdicts}
    notes = tuple(
        f"{name} of {one.where} failed for want of {what} and was probed again, alone; that counts."
        for name, what in short.items()
        if name in second
    )
    if alone.problem or not notes:
        return one
    return replace(
        one,
        verdicts=tuple(
            second.get(verdict.exercise, verdict) if verdict.exercise in short else verdict
            for verdict in one.verdicts
        ),
        seen=one.seen | {name: seen for name, seen in alone.seen.items() if name in short},
        notes=notes,
    )
