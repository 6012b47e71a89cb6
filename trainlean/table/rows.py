"""The rows of the published table of BERT-large: what each trains, what was published of it, and its prediction without a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainlean.costs.runs import MiB, Run, published_runs
from trainlean.model_list import MODELS
from trainlean.models import model_config
from trainlean.setup import TrainingSetup

CONTEXT = 1343 * MiB  # the V100's CUDA context, which its published figures contain


@dataclass(frozen=True)
class Row:
    """One row: how it is trained, with which loop; `published` is its name in the published table, if it was there.

    `largest`: instead of the setup's micro-batch it takes the largest plain one that is predicted to fit (`at_largest`).
    """

    key: str
    setup: TrainingSetup = TrainingSetup(4)
    loop: str = "PyTorch"
    published: str = ""
    largest: bool = False

    # What lessons read of a row.
    micro_batch = property(lambda self: self.setup.micro_batch)
    checkpointing = property(lambda self: self.setup.checkpointing)
    precision = property(lambda self: self.setup.precision)


def _with(**settings) -> TrainingSetup:
    return TrainingSetup(4, **settings)


_ALL = TrainingSetup(1, 4, checkpointing=True, precision="fp16")
_ALL_ADAM8BIT = replace(_ALL, optimizer="adam8bit")
_ALL_BF16 = replace(_ALL, precision="bf16")
ROWS = (
    Row("vanilla", published="batch 4"),
    Row("accumulation", TrainingSetup(1, 4), published="1x4"),
    Row("checkpointing", TrainingSetup(1, 4, checkpointing=True), published="1x4 checkpointed"),
    Row("fp16", _with(precision="fp16"), published="batch 4, fp16"),
    Row("all", _ALL, published="1x4 checkpointed, fp16"),
    Row("adafactor", _with(optimizer="adafactor"), published="batch 4, Adafactor"),
    Row(
        "all-adafactor",
        replace(_ALL, optimizer="adafactor"),
        published="1x4 checkpointed, fp16, Adafactor",
    ),
    Row("adam8bit", _with(optimizer="adam8bit"), published="batch 4, 8-bit Adam"),
    Row("all-adam8bit", _ALL_ADAM8BIT, published="1x4 checkpointed, fp16, 8-bit Adam"),
    Row(
        "accelerate",
        _ALL_ADAM8BIT,
        loop="Accelerate",
        published="1x4 checkpointed, fp16, 8-bit Adam, Accelerate",
    ),
    Row("bf16", _with(precision="bf16")),
    Row("all-bf16", _ALL_BF16),
    Row("all-bf16-accelerate", replace(_ALL_BF16, optimizer="adafactor"), loop="Accelerate"),
    Row("sdpa", _with(attention="sdpa")),
    Row("selective", TrainingSetup(1, 4, checkpointing="selective")),
    Row("compile", _with(compiled=True)),
    Row("largest", TrainingSetup(1), largest=True),
)
CURVE = tuple(  # one effective batch
    Row(f"{size}x{64 // size}", TrainingSetup(size, 64 // size))
    for size in (1, 2, 4, 8, 16, 32, 64)
)


def find_rows(keys: Iterable[str] | None = None, rows: tuple[Row, ...] = ROWS) -> list[Row]:
    """The rows with these keys, in the table's order; all without keys. A ValueError names a key that no row has."""
    keys = list(keys or [])
    known = [row.key for row in (*rows, *CURVE)]
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"There is no row {unknown[0]!r}; the rows are {', '.join(known)}.")
    return [row for row in (*rows, *CURVE) if row.key in keys] if keys else list(rows)


def published(row: Row) -> Run | None:
    """The published run of a row, None for a row that the original lacks."""
    return next((run for run in published_runs() if run.name == row.published), None)


def setup_of(row: Row, model: str) -> TrainingSetup:
    """The row's setup with the model's name in the table and its tokens. KeyError: no such model."""
    plan = MODELS[model]
    return replace(row.setup, model=plan.model, sequence_length=plan.tokens)


def predict_row(row: Row, model: str = "bert-large", device: str | None = None) -> Run:
    """The row's prediction; on a GPU `device_bytes` holds what the allocator hands out and reserves (see `predict_run`).

    Without `device` a row of the original is predicted for the "gpu of 2022", and one that it lacks for a "gpu" of today.
    ValueError: what `predict_run` and `at_largest` refuse.
    """
    from trainlean.costs.predict import predict_run

    device = device or ("gpu of 2022" if row.published else "gpu")
    if row.largest:
        row = at_largest(row, model, device)
    run = predict_run(model_config(model), setup_of(row, model), name=row.key, device=device)
    return replace(run, settings=run.settings | {"loop": row.loop})


def at_largest(row: Row, model: str, device: str) -> Row:
    """The row with the largest micro-batch that is predicted to fit into the model's budget, CUDA context included.

    ValueError when not even one sample fits.
    """
    from trainlean.costs.predict import predict_largest_batch

    budget = MODELS[model].budget - (0 if device == "cpu" else CONTEXT)
    setup = setup_of(row, model)
    size = predict_largest_batch(model_config(model), budget, setup, device=device)
    if not size:
        raise ValueError("not even one sample fits into the budget")
    return replace(row, setup=replace(row.setup, micro_batch=size), largest=False)
