"""The pins agree with each other and with what is installed; set-up says in one sentence why it cannot go on."""

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trainlean.workspace import COURSE

PROJECT = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = PROJECT["dependencies"] + EXTRAS["test"]
EVERYTHING = DIRECT + EXTRAS["nbgrader"]  # what `make test` installs


def pins(lines: list[str]) -> dict[str, str]:
    """{name: version}, with a failure for anything that is not exactly one `==`."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        [specifier] = requirement.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, f"{line} is no pin"
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{line} is there twice"
        found[name] = specifier.version
    return found


def lock() -> dict[str, str]:
    lines = (COURSE / "requirements.lock").read_text().splitlines()
    return pins([line for line in lines if line and not line.startswith("#")])


def environment() -> list[str]:
    """The pip part of environment.yml."""
    content = yaml.safe_load((COURSE / "environment.yml").read_text())
    [part] = [part for part in content["dependencies"] if isinstance(part, dict)]
    return part["pip"]


def test_every_direct_dependency_is_pinned_and_the_lock_agrees():
    locked = lock()
    direct = pins(EVERYTHING + EXTRAS["dev"])
    assert {name: locked.get(name) for name in direct} == direct


def test_conda_users_get_the_same_versions():
    assert pins([line for line in environment() if not line.startswith("--")]) == pins(DIRECT)
    assert [line for line in environment() if line.startswith("--")] == [
        "--constraint requirements.lock",
        "--editable .",
    ]
    python = next(
        line
        for line in yaml.safe_load((COURSE / "environment.yml").read_text())["dependencies"]
        if str(line).startswith("python")
    )
    assert (
        re.fullmatch(r"python=3\.1[123]", python) and PROJECT["requires-python"] == ">=3.11,<3.14"
    )


def test_the_lock_holds_everything_that_is_installed_for_the_course():
    locked, todo, seen = lock(), [Requirement(line) for line in EVERYTHING], set()
    wrong = []
    while todo:
        requirement = todo.pop()
        key = canonicalize_name(requirement.name), tuple(sorted(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        version = metadata.version(requirement.name).split("+")[
            0
        ]  # torch's build for CPUs is 2.13.0+cpu
        if locked.get(key[0]) != version:
            wrong.append(f"{key[0]} {version} is installed, the lock has {locked.get(key[0])}")
        for line in metadata.requires(requirement.name) or []:
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}
            ):
                todo.append(needed)
    # what torch brings for GPUs is pinned by torch itself
    assert [line for line in wrong if not re.match(r"(nvidia|cuda)-", line)] == []


def test_ci_calls_make_test():
    script = COURSE / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text() and "make test" in script.read_text()


def test_pre_commit_runs_the_tools_of_make_lint():
    hooks = yaml.safe_load((COURSE / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (COURSE / "Makefile").read_text(), re.MULTILINE)[
        1
    ]
    lint = re.findall(r"\$\(BIN\)/(ruff \w+|mypy)", recipe)
    assert [re.match(r"ruff \w+|mypy", hook["entry"])[0] for hook in hooks] == lint
    assert len(lint) == 3 and all(hook["language"] == "system" for hook in hooks)


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((COURSE / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_workflows_call_what_is_there():
    """What only runs elsewhere: the scripts and make targets that it names."""
    files = [
        *(COURSE / ".github" / "workflows").glob("*.yml"),
        COURSE / ".devcontainer" / "devcontainer.json",
    ]
    text = "\n".join(file.read_text() for file in files)
    scripts = set(re.findall(r"\.ci[/\\][\w.]+", text))
    assert scripts and all((COURSE / script.replace("\\", "/")).exists() for script in scripts)
    targets = set(re.findall(r"make (\w+)", text))
    assert targets and targets <= set(
        re.findall(r"^(\w+):", (COURSE / "Makefile").read_text(), re.MULTILINE)
    )


def test_at_night_all_tests_run_with_pypi_s_build_of_torch():
    content = yaml.safe_load((COURSE / ".github" / "workflows" / "night.yml").read_text())
    job = content["jobs"]["builds"]
    assert job["strategy"]["matrix"]["python"] == ["3.12", "3.13"]
    python = next(step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert python["python-version"] == "${{ matrix.python }}"
    assert job["steps"][-1]["run"] == ".ci/run"
    assert "env" not in content and "INDEX_URL" not in str(job)  # that of CPUs comes by it


@pytest.fixture
def learner():
    """`.ci/learner.py`, which the workflow of that name runs."""
    spec = spec_from_file_location("learner", COURSE / ".ci" / "learner.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_learner_s_path_is_gone_on_three_systems(learner):
    content = yaml.safe_load((COURSE / ".github" / "workflows" / "learner.yml").read_text())
    job = content["jobs"]["learner"]
    systems = {"ubuntu-latest", "macos-latest", "windows-latest"}
    assert set(job["strategy"]["matrix"]["os"]) == systems and "matrix.os" in job["runs-on"]
    everywhere = [step["run"] for step in job["steps"] if "runner.os" in step.get("if", "")]
    assert len(everywhere) == 2 and all(
        "trainlean doctor" in run and re.search(r"\.ci[/\\]learner\.py", run) for run in everywhere
    )
    *_, main = ast.parse(Path(learner.__file__).read_text()).body
    assert ast.unparse(main.test) == "__name__ == '__main__'"
    calls = {ast.unparse(one) for one in ast.walk(main) if isinstance(one, ast.Call)}
    assert {"lab_answers()", "check_judges()", "lesson_is_built()"} <= calls


@pytest.mark.parametrize(
    ("lesson", "solution", "says"),
    [
        ("not attempted", "right", None),
        ("not attempted", "wrong", "solutions/.* should be right, but is {'wrong'}"),
        ("right", "right", "lessons/.* should be not attempted"),
        (None, "right", "trainlean check lessons/.* said: no exercises"),
    ],
)
def test_a_learner_s_check_is_compared(learner, monkeypatch, lesson, solution, says):
    def run(command, **_):
        outcome = lesson if command[-1].startswith("lessons/") else solution
        said = json.dumps([{"outcome": outcome}]) if outcome else "no exercises"
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(learner.subprocess, "run", run)
    if says is None:
        learner.check_judges()
    else:
        with pytest.raises(SystemExit, match=says):
            learner.check_judges()


@pytest.mark.skipif(not shutil.which("make") or os.name == "nt", reason="no make here")
@pytest.mark.parametrize(
    "python, says",
    [
        (
            'case "$*" in *--version*) echo Python 3.9.1;; *) exit 1;; esac',
            r"needs Python 3.11, 3.12 or 3.13, and .*/python is Python 3.9.1; install one",
        ),
        (None, r"needs Python 3.11, 3.12 or 3.13, and .*/python is not there; install one"),
        ('case "$*" in *ensurepip*) exit 1;; esac', r"lacks its venv module; install it \(Debian"),
    ],
)
def test_make_says_what_is_wrong_with_the_python(tmp_path, python, says):
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(COURSE / name, tmp_path)
    fake = tmp_path / "python"
    if python:
        fake.write_text(f"#!/bin/sh\n{python}\n")
        fake.chmod(0o755)
    done = subprocess.run(
        ["make", "lab", f"PYTHON={fake}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0 and not (tmp_path / ".venv").exists()
    sentence, *rest = done.stderr.splitlines()
    assert re.search(says, sentence)
    assert all(line.startswith("make") for line in rest)  # make's own last line, no traceback
