"""The rows measured here, each in a fresh process, so that nothing of one row is left in the next.

A row that a machine cannot run keeps its place and says why.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainlean.costs.runs import Run, save_run
from trainlean.model_list import MODELS
from trainlean.processes import server_context, start
from trainlean.table.rows import Row, at_largest
from trainlean.table.training import measure_as_planned, reason_against
from trainlean.workspace import CourseError, the_device

PRELOADED = [  # of a small BERT; another model is imported by its own row
    "torch",
    "transformers.models.bert.modeling_bert",
    "accelerate",
    "trainlean.costs.meter",
    "trainlean.table.training",
]


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
    context = server_context(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="trainlean-row-", ignore_cleanup_errors=True) as folder:
        said = Path(folder) / "said"
        order = (said, measure_as_planned, row, model, device, repeats)
        process = start(context, _answer, theirs, *order)
        theirs.close()
        try:
            if not ours.poll(limit):
                return None, f"took longer than {limit:.0f} s"
            return Run.from_dict(ours.recv()), ""
        except EOFError:  # it ended without a result
            process.join()
            return None, _last_words(said) or (
                f"ended with status {process.exitcode} and without a word"
            )
        finally:
            ours.close()
            _end(process)


def _answer(pipe, said: Path, measure: Callable[..., Run], *asked) -> None:
    """The process of one row: its run goes down the pipe; what is printed meanwhile, errors too, into the file."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, so that the compilers that a row starts end with it
    with open(said, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    pipe.send(measure(*asked).to_dict())


def _last_words(said: Path) -> str:
    lines = said.read_text(errors="replace").splitlines() if said.exists() else []
    lines = [line.strip() for line in lines if line.strip()]
    if any("out of memory" in line.lower() for line in lines):
        return "out of memory"
    return lines[-1][:200] if lines else ""


def _end(process):
    """The process and the compilers that it has started, which are of its group."""
    with suppress(ProcessLookupError, AttributeError):  # not a group yet; Windows has none
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
