"""A made-up class of 300 (or as many as are asked for): every outcome and every mistake must come out as it was put in.

python benchmarks/class_of_300.py [SIZE] [WORKERS]
"""

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


def main(size: int = 300, workers: int = 2) -> int:
    """Make the class, grade it, compare; returns how many outcomes differ."""
    built = [
        lesson
        for lesson in dict.fromkeys(e.notebook for e in all_exercises().values())
        if (COURSE / "solutions" / f"{lesson}.ipynb").exists()
    ]
    made = make_class(built, size)
    expected = {place: outcomes for place, _, outcomes in made}
    plan = Plan(
        {name: e for name, e in all_exercises().items() if e.notebook in built},
        2026,
        find_isolation(),
    )
    print(plan.isolation.sentence)
    with TemporaryDirectory() as folder:
        for place, data, _ in made:
            path = Path(folder, place)
            path.parent.mkdir()
            path.write_bytes(data)
        start, seen, wrong = time.monotonic(), Counter(), []
        for graded in grade_all(find_submissions(Path(folder)), plan, workers=workers):
            for verdict in graded.verdicts:
                seen[verdict.outcome] += 1
                if expected[graded.where][verdict.exercise] != (verdict.outcome, verdict.mistake):
                    wrong.append(
                        f"{graded.where}: {verdict.exercise} should be {expected[graded.where][verdict.exercise]}, is {verdict.outcome}, {verdict.mistake}: {verdict.message}"
                    )
            if graded.problem or {verdict.exercise for verdict in graded.verdicts} != set(
                expected[graded.where]
            ):
                wrong.append(f"{graded.where}: {graded.problem or 'not all exercises were graded'}")
        seconds = time.monotonic() - start
    print(
        f"{size} submissions of {len(built)} lessons, {sum(seen.values())} exercises ({', '.join(f'{number} {outcome}' for outcome, number in seen.most_common())})"
    )
    print(
        f"{seconds:.0f} s with {workers} workers, their start included: {60 * size / seconds:.0f} submissions per minute; outcomes not as expected: {len(wrong)}"
    )
    print("\n".join(wrong))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:3]))))
