"""Machines that are not this one: a card that nobody asked for, other builds of torch, Python 3.13.0.

The exercises are put to their probes with a pretended card in `exercises_tests/`; all lessons in `benchmarks/as_if_a_card.py`.
"""

import ast
import inspect
import subprocess
import sys

import pytest
import torch
import torch._dynamo.guards
from pretended_card import KINDS, environment_with, pretend

from trainlean import doctor
from trainlean.costs.measuring import measure
from trainlean.costs.runs import machine
from trainlean.table import measured
from trainlean.workspace import COURSE, CourseError, the_device

ON_THE_CPU = {"Accelerator": "cpu", "TrainingArguments": "use_cpu"}
FILES = [
    path
    for folder in ("authoring", "exercises_tests", "trainlean")
    for path in sorted((COURSE / folder).rglob("*.py"))
    if path.name != "mistakes.py"
]


def is_no(node: ast.expr) -> bool:
    """Whether it is False, None or another constant that asks for the card; what is computed may say either."""
    return isinstance(node, ast.Constant) and not node.value


def unsettled(source: str) -> list[str]:
    """The calls in Python code, and the recipes for them, that would take a card where there is one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            wanted = ON_THE_CPU.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
            # What comes by ** was put together elsewhere: running it under a pretended card tells.
            said = [word.value for word in node.keywords if word.arg in (wanted, None)]
            if wanted and (not said or any(map(is_no, said))):
                found.append(ast.unparse(node))
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values)
            if any(getattr(k, "value", "") == "use_cpu" and is_no(value) for k, value in pairs):
                found.append(ast.unparse(node))
    return found


def test_every_accelerator_and_every_trainer_says_that_it_stays_on_the_cpu():
    assert {path.name: calls for path in FILES if (calls := unsettled(path.read_text()))} == {}
    assert unsettled("a = Accelerator()\nb = TrainingArguments('x', no_cuda=True)") != []
    for asks in ("Accelerator(cpu=False)", "TrainingArguments(use_cpu=None)", "{'use_cpu': False}"):
        assert unsettled(asks) == [asks]
    assert unsettled("a = Accelerator(cpu=True)\nb = TrainingArguments(f, **recipe)") == []


MOVES = """
import torch
from accelerate import Accelerator
assert torch.accelerator.is_available()
for move in (
    lambda: torch.zeros(1).to(KIND),
    lambda: torch.zeros(1, device=KIND),
    lambda: torch.nn.Linear(1, 1).to(torch.device(KIND)),
    lambda: Accelerator().prepare(torch.nn.Linear(1, 1)),
    lambda: torch.nn.Linear(1, 1).cuda() if KIND == "cuda" else torch.zeros(1).to(device=KIND),
):
    try:
        print("moved", move())
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_pretence_sees_what_moves(kind):
    """In a process of its own, as it is used for lessons: the pretence comes with the variables alone."""
    done = subprocess.run(
        [sys.executable, "-c", f"KIND = {kind!r}{MOVES}"],
        env=environment_with(kind),
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == 5 and not any("moved" in line for line in said), done
    assert said.count("MovedToTheCard") >= 3, done


@pytest.mark.parametrize("kind", KINDS)
def test_a_measurement_leaves_the_card_alone(monkeypatch, kind, work):
    pretend(kind, monkeypatch.setattr)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def train():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    run = measure(train, name="a", samples=2, repeats=1)
    assert run.machine["device"] == "cpu"


def test_rows_for_a_card_that_is_not_there_are_a_sentence(monkeypatch):
    monkeypatch.setenv("TRAINLEAN_DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CourseError, match="torch finds no such card"):
        measured.measure_rows([], "small")


def test_python_3_13_0_is_told_by_doctor_and_not_in_the_middle_of_a_lesson(monkeypatch):
    """torch warns of it whenever something is compiled; a cell of two lessons printed that."""
    said = "Guards may run slower on Python 3.13.0. Consider upgrading to Python 3.13.1+."
    assert said.partition(" Consider")[0] in inspect.getsource(torch._dynamo.guards)
    code = f"import warnings, trainlean; warnings.warn({said!r}, RuntimeWarning)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=COURSE).returncode == 0
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    assert doctor.python().state == "note" and "3.13.1" in doctor.python().advice


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.13.0+cpu", "ok"), ("2.13.0+cu130", "ok"), ("2.13.0+rocm7.1", "note")],
)
def test_doctor_says_what_is_known_of_a_build_of_torch(monkeypatch, version, state):
    monkeypatch.setattr(torch, "__version__", version)
    found = doctor.build()
    assert found.state == state and version.partition("+")[2] in found.found


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_that_nobody_asked_for_stays_idle(monkeypatch, kind):
    pretend(kind, monkeypatch.setattr)
    monkeypatch.delenv("TRAINLEAN_DEVICE", raising=False)
    found = doctor.device()
    assert found.state == "ok" and found.found.startswith("cpu: ") and "idle" in found.found
    assert the_device() == machine()["device"] == "cpu"
    monkeypatch.setenv("TRAINLEAN_DEVICE", "cuda")
    assert the_device() == "cuda"
    assert doctor.device().state == ("ok" if kind == "cuda" else "broken")
    monkeypatch.setenv("TRAINLEAN_DEVICE", "tpu")
    with pytest.raises(CourseError, match="cpu or cuda"):
        the_device()
