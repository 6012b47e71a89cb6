"""A run of a class that is killed again and again, and gone on with by the same command, ends in the gradebook of a run that was left alone.

    python benchmarks/interrupted.py [--short] [--kills 20] [--workers 2]

Each run is killed (SIGKILL) at a random moment after at least one notebook more was judged, and leaves half a line in the log.
Every notebook must be in the log once, and the gradebook the same to the letter. `--short` kills once, with one worker.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.figure  # noqa: F401  once for all runs
from hostile_class import LESSON, ONE, TWO, Class, honest

from trainlean.grading import classroom
from trainlean.grading.log import last_run, log_path, read_log
from trainlean.grading.options import GradeOptions
from trainlean.grading.overlay import exercises_with

SEED = 11
AT_A_TIME = 2  # notebooks that are to be judged between two kills, on average; 1 in the short form
LIMIT_SECONDS = 600  # for one run
FORKS = multiprocessing.get_context(
    "fork"
)  # of this process, which has imported everything and computed nothing


def start(where: Path, output: Path, workers: int) -> multiprocessing.process.BaseProcess:
    """A run in a process of its own, whose errors go to a file beside the gradebook."""
    process = FORKS.Process(target=_run, args=(where, output, workers))
    process.start()
    return process


def _run(where: Path, output: Path, workers: int) -> None:
    with open(os.devnull, "w") as nowhere, open(errors_of(output), "w") as errors:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    os.setsid()
    two = {name: exercise for name, exercise in exercises_with().items() if name in (ONE, TWO)}
    classroom.exercises_with = lambda overlay=None: two
    options = GradeOptions(
        where, output, lessons=[LESSON], seed=SEED, workers=workers, trust_submissions=True
    )
    sys.exit(classroom.grade_class(options))


def errors_of(output: Path) -> Path:
    return output.with_suffix(".errors")


def judged(output: Path) -> int:
    return len(last_run(read_log(log_path(output)))[1])


def killed(where: Path, output: Path, workers: int, choose: random.Random, at_a_time: int) -> bool:
    """Start the run and kill it in the middle; whether it had not ended by itself."""
    before, process = judged(output), start(where, output, workers)
    wanted, until = before + choose.randint(1, 2 * at_a_time - 1), time.monotonic() + LIMIT_SECONDS
    while process.is_alive() and judged(output) < wanted and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(choose.random() * 0.3)
    running = process.is_alive()
    process.kill()
    process.join()
    if running:
        with log_path(output).open("a") as log:
            log.write(
                '{"event": "notebook", "cut o'
            )  # as a kill in the middle of a write leaves it
    return running


def ended(where: Path, output: Path, workers: int) -> list[str]:
    """Let a run come to its end; a sentence where it was none as it must be."""
    process = start(where, output, workers)
    process.join(LIMIT_SECONDS)
    process.kill()
    process.join()
    said = errors_of(output).read_text()[-500:]
    return [f"{output} was ended with {process.exitcode}: {said}"] * bool(process.exitcode)


def main(kills: int, workers: int, at_a_time: int) -> int:
    """Returns how much was not as it must be."""
    choose, found = random.Random(0), []
    exercises_with()  # read once for all runs
    with TemporaryDirectory() as folder:
        where, once, often = (Path(folder, name) for name in ("class", "once", "often"))
        count = (
            2 * at_a_time * kills + 2 * workers
        )  # some more are judged before the kill takes effect
        honest(Class(where), count)
        for output in (once, often):
            output.mkdir()
        found += ended(where, once / "grades.csv", workers)
        times = 0
        while times < kills and killed(where, often / "grades.csv", workers, choose, at_a_time):
            times += 1
        found += ended(where, often / "grades.csv", workers)
        texts = [path.read_text() for path in (once / "grades.csv", often / "grades.csv")]
        if texts[0] != texts[1]:
            found.append(f"the gradebooks differ:\n{texts[0]}\n{texts[1]}")
        if times < kills:
            found.append(f"the class was too small: it ended after {times} kills")
        lines = read_log(log_path(often / "grades.csv"))
        seen = Counter(line["where"] for line in lines if line["event"] == "notebook")
        if len(seen) != count or set(seen.values()) != {1}:
            found.append(f"{count} notebooks, in the log {seen}")
    print("\n".join(found))
    print(
        f"interrupted: killed {times} times over {count} notebooks, {workers} workers; not as it must be: {len(found)}"
    )
    return len(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="one kill, one worker")
    given = parser.parse_args()
    sys.exit(bool(main(*((1, 1, 1) if given.short else (given.kills, given.workers, AT_A_TIME)))))
