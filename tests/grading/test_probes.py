"""What a worker imports before an answer is asked, and that its start is not paid twice."""

import threading

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from trainlean.exercises.finding import find_exercise
from trainlean.grading import workers
from trainlean.grading.plan import Answers, Plan
from trainlean.grading.probes import ON_DEMAND, imports_of
from trainlean.grading.reading import packed_notebook, unpack_notebook
from trainlean.grading.sandbox import UNPROTECTED
from trainlean.notebooks.statements import Handout

SENT = {
    "about": {"package": "exercises_tests.a"},
    "modules": {
        "exercises_tests.a.probes": "import math\nfrom exercises_tests.probing.toys import flat\nfrom trainlean import Meter\ndef f():\n    from transformers import Trainer",
        "exercises_tests.probing.toys": "import torch",
        "exercises_tests.probing.unused": "import something.heavy",
    },
}


def test_what_a_probe_and_its_shared_files_import_is_found():
    found = imports_of(SENT)
    assert {"math", "torch", "trainlean.costs.meter", "transformers.trainer"} <= set(found)
    assert not any("something" in name or "exercises_tests" in name for name in found)


def test_what_an_answer_imports_is_named_to_the_worker():
    """Names from a learner's text, of which a worker knows some; a fork need not import them again for each submission."""
    exercise = find_exercise("train_accumulated")
    cells = [
        "from trainlean import plot_memory\nimport sys as other",
        "def train_accumulated(*_):\n    plot_memory(1)",
    ]
    notebook = new_notebook(cells=[new_code_cell(text) for text in cells])
    data = nbformat.writes(notebook).encode()
    packed = packed_notebook(data, "a.ipynb", [exercise], {exercise.notebook: Handout()})
    [(known, _)] = unpack_notebook(packed)[1]
    assert "trainlean.pictures.memory" in [ON_DEMAND.get(name) for name in known["names"]]


def test_a_second_round_is_collected_by_a_worker_of_the_first(monkeypatch):
    made, served = [], []

    class Worker:
        def __init__(self, plan, settings):
            made.append(self)
            self.over = False
            self.threads = set()

        def collect(self, data, where):
            served.append((self, where))
            self.threads.add(threading.current_thread())
            return Answers(where)

        def close(self):
            self.over = True

    monkeypatch.setattr(workers, "WorkerProcess", Worker)
    with workers.local_workers(Plan({}, 7, UNPROTECTED), 3) as collect:
        first = list(collect((number, b"", f"{number}") for number in range(20)))
        assert sorted(number for number, _, _ in first) == list(range(20))
        served.clear()
        again = list(collect(iter([(1, b"", "a"), (2, b"", "b")]), at_once=1))
        assert [number for number, _, _ in again] == [1, 2]
        assert {worker for worker, _ in served} == {made[0]} and not made[0].over
        # The thread that started a worker must live: the kernel ends a worker with it.
        assert len(made[0].threads) == 1 and next(iter(made[0].threads)).is_alive()
    assert len(made) == 3 and all(worker.over for worker in made)
