"""Submissions per minute: this grader with its isolation on, `nbgrader autograde` and `otter run`, on the same submissions.

    python benchmarks/grading_speed.py [cut|whole] [--few 4] [--many 60] [--workers 2] [--short]

`--few` submissions are for nbgrader and otter, `--many` for this grader; 0 leaves those two out; `--short` is this grader alone
on two submissions, in seconds.

`cut`: notebooks of 1_accumulation/1_pytorch cut down to their exercises, so that all grade the same work; `whole`: the
lessons as they are, of which nbgrader and otter run every cell and this grader only what the exercises need. Half of the
submissions are solutions, half are lessons as handed out. The time of each tool is that of its whole run, starts included;
this grader's is also printed without the start of its workers, which a class pays once. nbgrader and otter are left out
where they are not installed. otter runs `check(...)` cells as the notebook has them, without tests of its own.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import psutil
from classes import cut_to_exercises

from trainlean.exercises.finding import all_exercises
from trainlean.grading.plan import Plan
from trainlean.grading.run import grade_all
from trainlean.grading.sandbox import find_isolation
from trainlean.grading.submissions import find_submissions
from trainlean.grading.workers import WorkerProcess
from trainlean.notebooks.notebook import read_notebook
from trainlean.workspace import COURSE

UNIT, NAME = "1_accumulation", "1_pytorch"
BIN = Path(sys.executable).parent


def notebooks(kind: str, count: int) -> dict[str, str]:
    """{learner: notebook}: solutions and lessons in turns, without outputs."""
    made = {}
    for number in range(count):
        notebook = read_notebook(
            COURSE / ("solutions", "lessons")[number % 2] / UNIT / f"{NAME}.ipynb"
        )
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        made[f"learner{number:03}"] = nbformat.writes(
            cut_to_exercises(notebook) if kind == "cut" else notebook
        )
    return made


def write(folder: Path, made: dict[str, str], inside: str = "") -> Path:
    for learner, text in made.items():
        path = folder / learner / inside / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return folder


def this_grader(made: dict[str, str], folder: Path, workers: int) -> tuple[float, float, int]:
    """Seconds of the whole run, seconds after the first worker was up, and bytes of memory of a worker."""
    plan = Plan(
        {name: e for name, e in all_exercises().items() if e.notebook == f"{UNIT}/{NAME}"},
        7,
        find_isolation(),
    )
    worker = WorkerProcess(plan)
    start = time.monotonic()
    worker.start()
    up = time.monotonic() - start
    started = psutil.Process(worker.process.pid)  # and what holds its namespaces
    memory = max(one.memory_info().rss for one in [started, *started.children(recursive=True)])
    worker.stop()
    start = time.monotonic()
    points = [
        sum(verdict.points for verdict in graded.verdicts)
        for graded in grade_all(find_submissions(write(folder, made)), plan, workers=workers)
    ]
    seconds = time.monotonic() - start
    assert sorted(set(points)) == (
        [0, sum(e.points for e in plan.exercises.values())] if len(made) > 1 else points
    ), points
    return seconds, max(seconds - up, 1e-9), memory


def nbgrader(made: dict[str, str], folder: Path) -> float | None:
    """Seconds of `nbgrader autograde` over all submissions."""
    if not (BIN / "nbgrader").exists():
        return None
    source = folder / "source" / UNIT
    source.mkdir(parents=True)
    (source / f"{NAME}.ipynb").write_text(next(iter(made.values())), encoding="utf-8")
    write(folder / "submitted", made, UNIT)
    (folder / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'x'\nc.ClearSolutions.enforce_metadata = False\n"
    )
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "TRAINLEAN_WORK": str(folder / "work"),
        "OMP_NUM_THREADS": "1",
    }
    quiet = {
        "cwd": folder,
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    subprocess.run([BIN / "nbgrader", "generate_assignment", UNIT, "--create"], check=True, **quiet)
    start = time.monotonic()
    subprocess.run(
        [BIN / "nbgrader", "autograde", UNIT, "--create", "--ExecutePreprocessor.timeout=300"],
        check=False,
        **quiet,
    )
    seconds = time.monotonic() - start
    graded = len(list((folder / "autograded").rglob("*.ipynb")))
    assert graded == len(made), f"nbgrader graded {graded} of {len(made)}"
    return seconds


# otter refuses an autograder without tests; the check cells of the notebook are what is graded.
ONE_TEST = {
    "name": "one",
    "points": 1,
    "suites": [
        {
            "cases": [{"code": ">>> 1 + 1\n2"}],
            "scored": True,
            "setup": "",
            "teardown": "",
            "type": "doctest",
        }
    ],
}


def otter(made: dict[str, str], folder: Path) -> float | None:
    """Seconds of `otter run`, once for each submission, with an autograder of one small test."""
    if not (BIN / "otter").exists():
        return None
    write(folder, made)
    (folder / "tests").mkdir()
    (folder / "tests" / "one.py").write_text(f"OK_FORMAT = True\ntest = {ONE_TEST!r}\n")
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "TRAINLEAN_WORK": str(folder / "work"),
        "OMP_NUM_THREADS": "1",
    }
    quiet = {
        "cwd": folder,
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    subprocess.run(
        [
            BIN / "otter",
            "generate",
            "-t",
            "tests",
            "-o",
            "autograder.zip",
            "--no-environment",
            "--no-requirements",
        ],
        check=True,
        **quiet,
    )
    for learner in made:
        (folder / f"{learner}_out").mkdir()
    start = time.monotonic()
    for learner in made:
        subprocess.run(
            [
                BIN / "otter",
                "run",
                "-a",
                "autograder.zip",
                "-o",
                f"{learner}_out",
                f"{learner}/{NAME}.ipynb",
            ],
            check=True,
            **quiet,
        )
    return time.monotonic() - start


def main(kind: str, few: int, many: int, workers: int) -> None:
    """Print submissions per minute of every tool that is here; the last line is this grader's figure."""
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; notebooks {kind}; {few} for nbgrader and otter, {many} for this grader with {workers} workers"
    )
    rates = {}
    with TemporaryDirectory() as folder:
        seconds, graded, memory = this_grader(notebooks(kind, many), Path(folder, "ours"), workers)
        rates["this grader, isolated"] = 60 * many / graded
        rates["  with the start of its workers"] = 60 * many / seconds
        others = (("nbgrader autograde", nbgrader), ("otter run", otter)) if few else ()
        for name, run in others:
            (place := Path(folder, name)).mkdir()
            if (seconds := run(notebooks(kind, few), place)) is not None:
                rates[name] = 60 * few / seconds
            else:
                print(f"{name}: not installed")
    for name, rate in rates.items():
        print(f"{name:32} {rate:8.1f} submissions/minute")
    print(f"memory of a worker before its forks: {memory / 2**20:.0f} MiB")
    ours, theirs = rates["this grader, isolated"], rates.get("nbgrader autograde")
    against = f"{ours / theirs:.1f} times nbgrader" if theirs else "nbgrader was not run"
    print(f"grading_speed: {ours:.1f} submissions per minute, {against}")


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=("cut", "whole"), default="cut")
    for name, default in {"few": 4, "many": 60, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--short", action="store_true", help="seconds, for a test that it runs")
    given = parser.parse_args(arguments)
    return argparse.Namespace(kind=given.kind, few=0, many=2, workers=1) if given.short else given


if __name__ == "__main__":
    given = options()
    main(given.kind, given.few, given.many, given.workers)
