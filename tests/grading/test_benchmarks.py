"""The benchmarks of grading run, in their short forms, and end in a line with their figure."""

import re
import subprocess
import sys

from trainlean.workspace import COURSE

LIMIT_SECONDS = 240  # on a busy machine


def last_line(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, COURSE / "benchmarks" / f"{name}.py", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_grading_speed():
    line = last_line("grading_speed", "--short")
    found = re.fullmatch(
        r"grading_speed: ([\d.]+) submissions per minute, nbgrader was not run",
        line,
    )
    assert found and float(found[1]) > 0, line


def test_hostile_class():
    """A submission of each kind beside three honest ones: nothing earned, nothing moved, nobody lost."""
    line = last_line("hostile_class", "--short")
    assert line == (
        "hostile_class: 10 hostile and broken submissions of 10 kinds beside 3 honest ones; not as it must be: 0"
    )


def test_interrupted():
    """Killed half-way, the same command grades the rest, and only that, to the same gradebook."""
    line = last_line("interrupted", "--short")
    assert line == ("interrupted: killed 1 times over 6 notebooks, 1 workers; not as it must be: 0")
