"""A made-up class of 300 (or as many as are asked for): every outcome and every mistake must come out as it was put in.

python benchmarks/class_of_300.py [SIZE] [WORKERS] [--short]
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from classes import make_class

from trainlean.exercises.finding import all_exercises
from trainlean.grading.plan import Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import find_isolation
from trainlean.grading.submissions import find_submissions
from trainlean.workspace import COURSE

SHORT = "0_start/1_where_memory_goes"


def main(arguments=None) -> int:
    """Make the class, grade it, compare; returns how many outcomes differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", nargs="?", type=int, default=300)
    parser.add_argument("workers", nargs="?", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="three submissions of one lesson")
    options = parser.parse_args(arguments)
    size, workers = (3, 1) if options.short else (options.size, options.workers)
    lessons = [SHORT] if options.short else lessons_that_are_built()
    made = make_class(lessons, size)
    expected = {place: outcomes for place, _, outcomes in made}
    plan = Plan(
        {name: e for name, e in all_exercises().items() if e.notebook in lessons},
        2026,
        find_isolation(),
    )
    print(plan.isolation.sentence)
    start, seen, wrong = time.monotonic(), Counter(), 0
    with TemporaryDirectory() as folder:
        for place, data, _ in made:
            path = Path(folder, place)
            path.parent.mkdir()
            path.write_bytes(data)
        for graded in grade_all(find_submissions(Path(folder)), plan, workers=workers):
            seen.update(verdict.outcome for verdict in graded.verdicts)
            for sentence in not_as_expected(graded, expected[graded.where]):
                wrong += 1
                print(f"{graded.where}: {sentence}")
    seconds = time.monotonic() - start
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in seen.most_common())
    print(
        f"{seconds:.0f} s with {workers} workers, their start included: {60 * size / seconds:.0f} submissions per minute"
    )
    print(
        f"class_of_300: {size} submissions of {len(lessons)} lessons, {seen.total()} exercises ({outcomes}); "
        f"not as expected: {wrong}"
    )
    return wrong


def lessons_that_are_built() -> list[str]:
    lessons = dict.fromkeys(exercise.notebook for exercise in all_exercises().values())
    return [one for one in lessons if (COURSE / "solutions" / f"{one}.ipynb").exists()]


def not_as_expected(graded, outcomes: dict[str, tuple[str, str]]):
    """A sentence for each verdict on a notebook that is not what was put in."""
    for verdict in graded.verdicts:
        wanted = outcomes[verdict.exercise]
        if wanted != (verdict.outcome, verdict.mistake):
            yield f"{verdict.exercise} should be {wanted}, is {verdict.outcome}, {verdict.mistake}: {verdict.message}"
    if graded.problem or {verdict.exercise for verdict in graded.verdicts} != set(outcomes):
        yield graded.problem or "not all exercises were graded"


if __name__ == "__main__":
    sys.exit(bool(main()))
