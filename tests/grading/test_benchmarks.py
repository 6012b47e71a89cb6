"""The benchmarks of grading run, in their short forms, and end in a line with their figure."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import class_at_scale
import class_of_300
import grading_speed
import hostile_class
import pytest
import yaml

from trainlean.grading.sandbox import BUBBLEWRAP, NAMESPACES, NONE
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


def test_a_hostile_class_has_at_least_250_of_ten_kinds(monkeypatch):
    """Counted without the bytes of their bombs."""
    real = hostile_class.zipped

    def small(files, **more):
        return real({name: data[:999] for name, data in islice(files.items(), 9)}, **more)

    monkeypatch.setattr(hostile_class, "zipped", small)
    assert len(hostile_class.KINDS) == 10
    assert sum(1 for kind in hostile_class.KINDS for _ in kind()) >= 250


@pytest.mark.parametrize(
    "points, more, found",
    [
        ({}, (), 0),
        ({"h odd 000": "3"}, (), 1),
        ({"f honest 000": "0"}, (), 1),
        ({"f honest 000": None}, (), 2),  # no row, so that there are too few
        ({}, ("h odd 000",), 1),
    ],
)
def test_a_hostile_class_sees_what_is_not_as_it_must_be(monkeypatch, capsys, points, more, found):
    """A point earned, an honest row that differs, a learner without a row or with two."""

    def grade(where, output, workers):
        seen = {path.name: "0" if "h odd" in path.name else "3" for path in where.iterdir()}
        seen |= points if any("h odd" in name for name in seen) else {}
        lines = [(name, total) for name, total in seen.items() if total] + [(n, "0") for n in more]
        return [{"learner": name, "total": total} for name, total in lines]

    monkeypatch.setattr(hostile_class, "KINDS", (hostile_class.oddities,))
    monkeypatch.setattr(hostile_class, "grade", grade)
    assert hostile_class.main(1, 2, 1, keep=None) == found
    assert capsys.readouterr().out.endswith(f"not as it must be: {found}\n")


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


@pytest.mark.parametrize(
    "more",
    [
        {"seconds": 3000.0},  # with the square of the number
        {"memory": 2**30},
        {"log": 10**9},
        {"page": 2 * 2**20},
        {"complete": False},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_class_at_scale_must_be_linear_flat_and_openable(tmp_path, monkeypatch, more):
    def graded(size, *_):
        one = class_at_scale.Graded(size, size / 10, 400 << 20, 15_000 * size, 30_000, True)
        return replace(one, **more) if size == 3000 else one

    monkeypatch.setattr(class_at_scale, "graded", graded)
    picture = tmp_path / "class.png"
    assert class_at_scale.main([30, 300, 3000], 2, picture) == 1
    more = {}
    assert class_at_scale.main([30, 300, 3000], 2, picture) == 0


def test_at_night_classes_are_attacked_and_interrupted_as_a_user_and_as_root():
    """Twenty kills under each isolation, on a cluster, too; each attack."""
    night = yaml.safe_load((COURSE / ".github" / "workflows" / "night.yml").read_text())["jobs"]
    job = night["classes"]
    assert job["strategy"]["matrix"]["who"] == ["", "sudo"]
    start = "${{ matrix.who }} .venv/bin/python benchmarks/"
    runs = [step["run"].removeprefix(start) for step in job["steps"] if "run" in step]
    kinds = [f"isolation {kind}" for kind in (BUBBLEWRAP, NAMESPACES, NONE)] + ["cluster"]
    wanted = {"hostile_class.py", *(f"interrupted.py --{kind}" for kind in kinds)}
    assert wanted <= set(runs)


def test_interrupted():
    """Killed half-way, the same command grades the rest, and only that, to the same gradebook."""
    line = last_line("interrupted", "--short")
    assert line == ("interrupted: killed 1 times over 4 notebooks, 1 workers; not as it must be: 0")
