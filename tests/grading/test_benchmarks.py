"""The benchmarks of grading run, in their short forms, and end in a line with their figure."""

import re
import subprocess
import sys

import class_at_scale
import class_of_300
import grading_speed
import hostile_class

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


def test_grading_speed(capsys):
    """In this process, which has its imports."""
    short = grading_speed.options(["--short"])
    grading_speed.main(short.kind, short.few, short.many, short.workers)
    line = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(
        r"grading_speed: ([\d.]+) submissions per minute, nbgrader was not run",
        line,
    )
    assert found and float(found[1]) > 0, line


def test_hostile_class(capsys):
    """A submission of each kind beside three honest ones: nothing earned, nothing moved, nobody lost. In this process, which has its imports."""
    assert hostile_class.main(*hostile_class.SHORT, keep=None) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "hostile_class: 10 hostile and broken submissions of 10 kinds beside 3 honest ones; not as it must be: 0"
    )


def test_class_of_300(capsys):
    """A lesson's solutions, stubs and known mistakes, each judged as itself. In this process, which has its imports."""
    assert class_of_300.main(["--short"]) == 0
    assert re.fullmatch(
        r"class_of_300: 3 submissions of 1 lessons, 9 exercises \(.*\); not as expected: 0",
        capsys.readouterr().out.splitlines()[-1],
    )


def test_class_at_scale(tmp_path, monkeypatch, capsys):
    """The table, the picture and the last line; the classes themselves are graded at night."""
    monkeypatch.setattr(
        class_at_scale,
        "graded",
        lambda size, *_: class_at_scale.Graded(size, size / 2, 400 << 20, 9, 9, True),
    )
    assert class_at_scale.main([3, 9], 1, tmp_path / "class.png") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "class_at_scale: 9 submissions, 0.500 s each with 1 workers, 0.0 KiB of the grader's memory each; not as it must be: 0"
    )
    assert (tmp_path / "class.png").stat().st_size > 1000


def test_interrupted():
    """Killed half-way, the same command grades the rest, and only that, to the same gradebook."""
    line = last_line("interrupted", "--short")
    assert line == ("interrupted: killed 1 times over 4 notebooks, 1 workers; not as it must be: 0")
