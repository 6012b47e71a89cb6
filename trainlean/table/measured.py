"""The rows measured here, each in a fresh process, so that nothing of one row is left in the next.

A row that a machine cannot run keeps its place and says why.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from trainlean.costs.runs import Run, save_run
from trainlean.model_list import MODELS
from trainlean.table.rows import Row, at_largest
from trainlean.table.training import RESULT, reason_against
from trainlean.workspace import CourseError, the_device


@dataclass(frozen=True)
class Outcome:
    """What came of a row: a run, or the reason why there is none."""

    row: Row
    run: Run | None = None
    reason: str = ""


def measure_rows(
    rows: Iterable[Row],
    model: str,
    *,
    device: str | None = None,
    repeats: int | None = None,
    limit: float | None = None,
    save: bool = True,
    started: Callable[[Row], None] = lambda row: None,
) -> list[Outcome]:
    """Measure each row in a fresh process; a row that cannot run, fails, or takes longer than `limit` seconds (the plan's) has its reason.

    `model` is a name of MODELS, `device` the one that TRAINLEAN_DEVICE says unless it is named, `repeats` the number of timed epochs (the plan's). `started` is called before each row.
    KeyError: no such model. CourseError: the device is cuda, and torch finds no such card.
    """
    device = device or the_device()
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise CourseError(
                "The rows are to be measured on cuda, and torch finds no such card; `trainlean doctor` says which torch this is."
            )
    outcomes = []
    for row in rows:
        started(row)
        reason, run = reason_against(row, device), None
        if not reason and row.largest:
            try:
                row = at_largest(row, model, "cpu" if device == "cpu" else "gpu")
            except ValueError as error:
                reason = str(error)
        if not reason:
            run, reason = _in_fresh_process(
                row, model, device, repeats, limit or MODELS[model].limit
            )
        if run and save:
            save_run(run)
        outcomes.append(Outcome(row, run, reason))
    return outcomes


def _in_fresh_process(row, model, device, repeats, limit):
    """The row's run, or None and one sentence about what went wrong."""
    order = json.dumps({"row": asdict(row), "model": model, "device": device, "repeats": repeats})
    command = [sys.executable, "-m", "trainlean.table.training", order]
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    # A group of its own, so that the compilers that a row starts end with it.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | quiet,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=limit)
    except BaseException as error:
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            return None, f"took longer than {limit:.0f} s"
        raise
    for line in printed.splitlines():
        if line.startswith(RESULT):
            return Run.from_dict(json.loads(line.removeprefix(RESULT))), ""
    said = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("out of memory" in line.lower() for line in said):
        return None, "out of memory"
    return None, said[-1][
        :200
    ] if said else f"ended with status {process.returncode} and without a word"


def _end(process):
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
