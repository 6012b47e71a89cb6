"""What `trainlean measure` does and prints: the published table's rows, measured on this machine."""

import re
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainlean.costs.runs import MiB, record_runs
from trainlean.model_list import MODELS
from trainlean.table.measured import measure_rows
from trainlean.table.rows import CONTEXT, find_rows, predict_row
from trainlean.table.shown import measured_table, plot_table
from trainlean.workspace import CourseError, the_device, work_folder


def measure_table(
    model=None, keys=None, *, repeats=None, picture=None, record=None, width=None
) -> None:
    """Measure, print, save the runs and the picture; a CourseError says what cannot be."""
    device = the_device()
    model = model or ("bert-large" if device == "cuda" else "small")
    if model not in MODELS:
        raise CourseError(f"The model is one of {', '.join(MODELS)}, not {model!r}.")
    if model == "bert-large" and device == "cpu":
        raise CourseError(
            "BERT-large needs a GPU, which TRAINLEAN_DEVICE=cuda asks for; `trainlean measure --model small` measures the small model here."
        )
    try:
        rows = find_rows(keys)
    except ValueError as error:
        raise CourseError(str(error)) from None
    if record and not Path(record).parent.is_dir():
        raise CourseError(
            f"There is no folder {Path(record).parent}; --record writes a file such as data/measurements/NAME.json."
        )
    outcomes = _with_progress(rows, model, device, repeats)
    runs = {outcome.row.key: outcome.run for outcome in outcomes if outcome.run}
    where = "gpu" if device == "cuda" else "cpu"
    predicted = {o.row.key: predict_row(o.row, model, where) for o in outcomes if o.run}
    _print(measured_table(outcomes, predicted), Console(width=width))
    _explain(device)
    if "vanilla" in runs:
        path = Path(picture) if picture else work_folder() / "table.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(plot_table(runs).png())
        print(f"The picture is {path}")
    if record and runs:
        record_runs(list(runs.values()), record, shlex.join(["trainlean", *sys.argv[1:]]))
        print(f"The runs are in {record}")


def _with_progress(rows, model, device, repeats):
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} rows"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task("measuring", total=len(rows))
        number = iter(range(len(rows)))
        return measure_rows(
            rows,
            model,
            device=device,
            repeats=repeats,
            started=lambda row: bars.update(task, completed=next(number), description=row.key),
        )


def _print(frame, console):
    """One line for each row; what could not be measured says why under the table."""
    shown = Table(box=None, pad_edge=False)
    reasons = [
        (line["row"], line["time"])
        for line in frame.to_dict("records")
        if not line.get("samples/s")
    ]
    for column in frame.columns:  # headings in two lines, so that the figures stay in one
        heading = column.replace("/", "/\n", 1).replace(" ", "\n", 1)
        shown.add_column(heading, justify="left" if column == "row" else "right", no_wrap=True)
    for line in frame.to_dict("records"):
        measured = bool(line.get("samples/s"))
        shown.add_row(
            *(
                "not run" if name == "time" and not measured else _compact(value)
                for name, value in line.items()
            )
        )
    console.width = max(
        console.width, 120
    )  # a narrow terminal breaks the lines, but loses no figure
    console.print(shown)
    for row, reason in reasons:
        console.print(f"{row}: {reason}.", markup=False, highlight=False, soft_wrap=True)


def _compact(value) -> str:
    """A value of the table without the blanks and units that keep saved tables in one form."""
    return re.sub(r"(?<=\(|–) +", "", str(value).strip()).removesuffix(" samples/s")


def _explain(device):
    memory = (
        "the most that the card's allocator handed out"
        if device == "cuda"
        else "the bytes of all tensors at the fullest moment"
    )
    print(
        f"Memory is {memory}. time/vanilla compares the time for one sample; published memory is without the context of {CONTEXT // MiB:,} MiB."
    )
