"""Grading 30, 300 and 3,000 submissions: seconds, the grader's own memory, and the sizes of what it writes.

    python benchmarks/class_at_scale.py [SIZE ...] [--workers 2] [--cluster] [--picture FILE.png] [--short]

Each class is graded by a process of its own: honest answers, a known mistake and stubs to one exercise, so that 3,000 take minutes.
Memory is that of the grading process alone, without its workers: the most that it held. Time must be linear and memory flat.
`--cluster` grades on so many engines of this machine. `--short` grades 3, with one worker.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from hostile_class import LESSON, ONE, STUB, hostile, notebook

from trainlean.grading.log import log_path, read_log
from trainlean.workspace import COURSE, work_folder

SIZES = (30, 300, 3000)
LOOK_SECONDS = 0.2  # between two looks at the memory
MORE_MEMORY = 0.02  # MiB for each submission more that still count as flat: its row and its verdict
MORE_TIME = (
    1.3  # times the seconds for each submission in the class before that still count as linear
)
MiB = 2**20
LARGEST_PAGE = MiB  # bytes that a browser opens at once
LOG_EACH = 64 * 1024  # bytes
RUN = f"""
import sys
sys.path.insert(0, {str(COURSE)!r})
from trainlean.grading import classroom
from trainlean.grading.options import GradeOptions
from trainlean.grading.overlay import exercises_with
one = {{{ONE!r}: exercises_with()[{ONE!r}]}}
classroom.exercises_with = lambda overlay=None: one
options = GradeOptions(sys.argv[1], sys.argv[2], lessons=[{LESSON!r}], seed=11, workers=int(sys.argv[3]), cluster=sys.argv[4] or None, trust_submissions=True)
sys.exit(classroom.grade_class(options))
"""
NOT_DIVIDED = hostile.RIGHTLY.replace(" / accumulation_steps)", ")")
ANSWERS = [notebook(hostile.SIGNATURE + hostile.RIGHTLY), notebook(STUB)]
ANSWERS += [notebook(hostile.SIGNATURE + NOT_DIVIDED)]


@dataclass(frozen=True)
class Graded:
    """One class: how many, how long, how much."""

    size: int
    seconds: float  # from the first judged notebook to the end
    memory: int  # bytes
    log: int  # bytes
    page: int  # bytes of the largest feedback page
    complete: bool


def graded(size: int, workers: int, folder: Path, on_cluster: bool = False) -> Graded:
    where, output = folder / f"class {size}", folder / f"out {size}" / "grades.csv"
    for number in range(size):
        place = where / f"learner {number:05}"
        place.mkdir(parents=True)
        (place / "1_pytorch.ipynb").write_bytes(ANSWERS[number % len(ANSWERS)])
    output.parent.mkdir()
    start = time.monotonic()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, where, output, str(workers), "default" * on_cluster],
        env=os.environ | {"IPYTHONDIR": str(folder)},  # a cluster of its own
        text=True,
        **quiet,
    )
    most, first = 0, None
    while process.poll() is None:
        try:
            most = max(most, psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            break
        if first is None and log_path(output).exists() and log_path(output).stat().st_size > 1000:
            first = time.monotonic()
        time.sleep(LOOK_SECONDS)
    said = process.communicate()[1]
    if process.returncode:
        print(f"{size}: ended with {process.returncode}: {said[-500:]}")
    pages = list((output.parent / "grades_feedback").glob("*.html"))
    rows = sum(line["event"] == "notebook" for line in read_log(log_path(output)))
    lines = output.read_text().count("\n") if output.exists() else 0
    return Graded(
        size,
        time.monotonic() - (first or start),
        most,
        log_path(output).stat().st_size,
        max((page.stat().st_size for page in pages), default=0),
        (rows, len(pages), lines) == (size, size, size + 1),
    )


def draw(found: list[Graded], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [one.size for one in found]
    left.plot(sizes, [one.seconds for one in found], "o-", color="#374151")
    left.set(xlabel="submissions", ylabel="seconds", title="time")
    right.plot(sizes, [one.memory / MiB for one in found], "o-", color="#374151")
    right.set(xlabel="submissions", ylabel="MiB", title="the grader's own memory", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main(sizes: list[int], workers: int, picture: Path, on_cluster: bool = False) -> int:
    """Returns how much was not as it must be."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = []
    print(f"{'submissions':>11} {'seconds':>8} {'each':>7} {'memory':>9} {'log':>9} {'page':>8}")
    with TemporaryDirectory() as folder:
        for size in sizes:
            one = graded(size, workers, Path(folder), on_cluster)
            found.append(one)
            print(
                f"{one.size:>11,} {one.seconds:>8.1f} {one.seconds / one.size:>7.3f} {one.memory / MiB:>5.0f} MiB"
                f" {one.log / MiB:>5.1f} MiB {one.page / 1024:>4.1f} KiB{'' if one.complete else '  not all are there'}",
                flush=True,
            )
    draw(found, picture)
    first, last = found[0], found[-1]
    more = (last.memory - first.memory) / MiB / max(1, last.size - first.size)
    wrong = sum(not one.complete for one in found) + (more > MORE_MEMORY and last.size >= SIZES[-1])
    wrong += sum(one.page > LARGEST_PAGE or one.log > LOG_EACH * one.size for one in found)
    wrong += sum(
        later.seconds / later.size > MORE_TIME * one.seconds / one.size
        for one, later in pairwise(found)
    )
    print(f"The picture is {picture}")
    print(
        f"class_at_scale: {last.size} submissions, {last.seconds / last.size:.3f} s each with {workers} {'engines' if on_cluster else 'workers'},"
        f" {1024 * more:.1f} KiB of the grader's memory each; not as it must be: {wrong}"
    )
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", type=Path, default=work_folder() / "class_at_scale.png")
    parser.add_argument("--cluster", action="store_true", help="on engines of this machine")
    parser.add_argument("--short", action="store_true", help="3 submissions, one worker")
    given = parser.parse_args()
    wanted = ([3], 1) if given.short else (given.sizes or list(SIZES), given.workers)
    sys.exit(bool(main(*wanted, given.picture, given.cluster)))
