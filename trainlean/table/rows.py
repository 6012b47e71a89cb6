"""The rows of the published table of BERT-large: what each trains, what was published of it, and its prediction without a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainlean.costs.runs import MiB, Run, published_runs

CONTEXT = 1343 * MiB  # the V100's CUDA context, which its published figures contain
GPU_BUDGET = 16160 * MiB  # what a V100 of 16 GB has


@dataclass(frozen=True)
class Row:
    """One row: what is trained and how; `published` is its name in the published table, if it was there."""

    key: str
    micro_batch: int = 4
    accumulation_steps: int = 1
    checkpointing: bool | str = False
    precision: str = "fp32"
    optimizer: str = "adamw"
    attention: str = "eager"
    loop: str = "PyTorch"
    compiled: bool = False
    published: str = ""

    def training(self) -> dict:
        """The settings as `trainlean.costs.predict.predict_run` takes them."""
        names = (
            "micro_batch",
            "accumulation_steps",
            "checkpointing",
            "precision",
            "optimizer",
            "attention",
            "compiled",
        )
        return {name: getattr(self, name) for name in names}


_ALL = {"micro_batch": 1, "accumulation_steps": 4, "checkpointing": True, "precision": "fp16"}
ROWS = (
    Row("vanilla", published="batch 4"),
    Row("accumulation", 1, 4, published="1x4"),
    Row("checkpointing", 1, 4, True, published="1x4 checkpointed"),
    Row("fp16", precision="fp16", published="batch 4, fp16"),
    Row("all", **_ALL, published="1x4 checkpointed, fp16"),
    Row("adafactor", optimizer="adafactor", published="batch 4, Adafactor"),
    Row(
        "all-adafactor",
        **_ALL,
        optimizer="adafactor",
        published="1x4 checkpointed, fp16, Adafactor",
    ),
    Row("adam8bit", optimizer="adam8bit", published="batch 4, 8-bit Adam"),
    Row(
        "all-adam8bit", **_ALL, optimizer="adam8bit", published="1x4 checkpointed, fp16, 8-bit Adam"
    ),
    Row(
        "accelerate",
        **_ALL,
        optimizer="adam8bit",
        loop="Accelerate",
        published="1x4 checkpointed, fp16, 8-bit Adam, Accelerate",
    ),
    Row("bf16", precision="bf16"),
    Row("all-bf16", **_ALL | {"precision": "bf16"}),
    Row(
        "all-bf16-accelerate",
        **_ALL | {"precision": "bf16"},
        optimizer="adafactor",
        loop="Accelerate",
    ),
    Row("sdpa", attention="sdpa"),
    Row("selective", 1, 4, "selective"),
    Row("compile", compiled=True),
    Row("largest", 0),  # the largest micro-batch that fits; found by prediction
)
CURVE = tuple(
    Row(f"{size}x{64 // size}", size, 64 // size) for size in (1, 2, 4, 8, 16, 32, 64)
)  # one effective batch


@dataclass(frozen=True)
class ModelPlan:
    """What a model's rows train on: its name, samples of how many tokens, the budget of the largest batch."""

    model: str  # its name in the published file
    samples: int  # of one epoch
    tokens: int  # of a sample
    budget: int  # bytes
    limit: float  # seconds for one row
    repeats: int = 3


PLANS = {
    "bert-large": ModelPlan("bert-large-uncased", 512, 512, GPU_BUDGET, 1800),
    "small": ModelPlan("small BERT", 32, 128, 200 * MiB, 90),
}


def config_of(model: str, **changes):
    """The transformers configuration of "bert-large", with its dropout of 0.1, or of "small", without."""
    from trainlean.models import bert_large_config, small_bert_config

    return bert_large_config(**changes) if model == "bert-large" else small_bert_config(**changes)


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


def predict_row(row: Row, model: str = "bert-large", device: str | None = None) -> Run:
    """The row's prediction; on a GPU `machine` holds what the allocator hands out and reserves (see `predict_run`).

    Without `device` a row of the original is predicted for the "gpu of 2022", and one that it lacks for a "gpu" of today.
    """
    from trainlean.costs.predict import predict_run

    device = device or ("gpu of 2022" if row.published else "gpu")
    plan, config = PLANS[model], config_of(model)
    if row.micro_batch == 0:
        row = replace(row, micro_batch=largest(model, device))
    run = predict_run(
        config, name=row.key, sequence_length=plan.tokens, device=device, **row.training()
    )
    return replace(run, settings=run.settings | {"model": plan.model, "loop": row.loop})


def largest(model: str, device: str) -> int:
    """The largest plain micro-batch that is predicted to fit into the plan's budget, CUDA context included."""
    from trainlean.costs.predict import predict_largest_batch

    plan = PLANS[model]
    budget = plan.budget - (0 if device == "cpu" else CONTEXT)
    return predict_largest_batch(
        config_of(model), budget, sequence_length=plan.tokens, device=device
    )
