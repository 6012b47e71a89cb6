"""Runs: what a training was and what it cost; kept as JSON lines in the learner's work folder."""

import json
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path

from trainlean.setup import TrainingSetup
from trainlean.workspace import COURSE, append_record, read_records

CATEGORIES = ("weights", "gradients", "optimizer state", "activations", "temporary")
COLLECTIVE_COUNTS = ("calls", "payload", "messages", "sent")  # of one kind of collective
ORIGINS = ("measured", "predicted", "published")
MEASUREMENTS = COURSE / "data" / "measurements"
PUBLISHED = MEASUREMENTS / "bert_large_v100.json"
# What the card says beside the tensors' bytes: the allocator's peaks, and the whole device as its driver counts it.
DEVICE_BYTES = ("allocator_peak", "allocator_reserved", "whole_device")
MiB = 2**20


@dataclass(frozen=True)
class Run:
    """What one training was (`settings`, and `setup` as far as it is one) and what it cost, in one whole training.

    `settings` are numbers and texts by name: those of a `TrainingSetup`, and whatever else is worth saying. `peak` holds
    bytes by category at the moment of the peak, `seconds` one float per timed repeat (empty: not timed), `bytes_sent` the
    payload that this rank handed to collectives, `collectives` the same by kind (see `trainlean.costs.links`),
    `device_bytes` what the card says of the run (those of DEVICE_BYTES that are known), `machine` what it ran on.
    A published run has one category, "whole device". ValueError: an origin that is none of ORIGINS.
    """

    name: str
    settings: dict = field(default_factory=dict)
    peak: dict = field(default_factory=dict)
    seconds: tuple = ()
    samples: int = 0
    flops: int = 0
    optimizer_steps: int = 0
    all_reduces: int = 0
    bytes_sent: int = 0
    collectives: dict = field(default_factory=dict)
    device_bytes: dict = field(default_factory=dict)
    machine: dict = field(default_factory=dict)
    origin: str = "measured"
    created: str = ""

    def __post_init__(self):
        if self.origin not in ORIGINS:
            raise ValueError(f"A run's origin is one of {', '.join(ORIGINS)}, not {self.origin!r}.")
        object.__setattr__(self, "seconds", tuple(self.seconds))
        object.__setattr__(
            self,
            "created",
            self.created or datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @cached_property
    def setup(self) -> TrainingSetup | None:
        """What the settings say of the training; None where they name no micro-batch."""
        return TrainingSetup.read(self.settings)

    @property
    def peak_bytes(self) -> int:
        """The peak of memory, in bytes."""
        return sum(self.peak.values())

    @property
    def median_seconds(self) -> float | None:
        """The median of the timed repeats, in seconds; None when the run was not timed."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples divided by the median time; None when the run was not timed or its samples are not known."""
        seconds = self.median_seconds
        return self.samples / seconds if seconds is not None and self.samples else None

    def to_dict(self) -> dict:
        """The run as a dictionary that JSON can hold."""
        return asdict(self) | {"seconds": list(self.seconds)}

    @classmethod
    def from_dict(cls, record: dict) -> "Run":
        """The run that `to_dict` wrote; a ValueError says what a record lacks or what it has too much.

        Records from before `device_bytes` have these among what the machine is.
        """
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise ValueError("A run is a dictionary with a name.")
        unknown = record.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(
                f"Run {record['name']!r} has entries that no run has: {', '.join(sorted(unknown))}."
            )
        names: tuple[str, ...] = ("settings", "peak", "collectives", "device_bytes", "machine")
        wrong = [name for name in names if not isinstance(record.get(name, {}), dict)]
        if not wrong:
            record = _with_device_bytes(record)
            names = ("peak", "seconds", "device_bytes")
            wrong = [name for name in names if not _numbers(record.get(name, []))]
            wrong += ["collectives"] * (
                not all(_is_count(count) for count in record.get("collectives", {}).values())
            )
        if wrong:
            raise ValueError(
                f"Run {record['name']!r} has {', '.join(wrong)} in a form that no run has."
            )
        return cls(**record)


def _with_device_bytes(record):
    machine = record.get("machine", {})
    results = {name: machine[name] for name in DEVICE_BYTES if name in machine}
    if not results:
        return record
    machine = {name: value for name, value in machine.items() if name not in results}
    return record | {"machine": machine, "device_bytes": results | record.get("device_bytes", {})}


def _is_count(values):
    return isinstance(values, dict) and values.keys() == set(COLLECTIVE_COUNTS) and _numbers(values)


def _numbers(values):
    values = values.values() if isinstance(values, dict) else values
    return values is not None and all(isinstance(value, (int, float)) for value in values)


def save_run(run: Run) -> None:
    """Add the run to the learner's records (`runs.jsonl` in the work folder). ValueError: settings that JSON cannot hold."""
    try:
        json.dumps(run.to_dict())
    except TypeError as error:
        raise ValueError(
            f"Run {run.name!r} cannot be saved: its settings must be numbers, texts, lists or None ({error})."
        ) from None
    append_record("runs", run.to_dict())


def load_runs(**settings) -> list[Run]:
    """The saved runs, oldest first; `load_runs(model="small-bert", micro_batch=4)` gives those with these settings."""
    runs = []
    for record in read_records("runs"):
        try:
            run = Run.from_dict(record)
        except ValueError:
            continue  # a damaged record must not take the good ones with it
        if all(run.settings.get(name) == value for name, value in settings.items()):
            runs.append(run)
    return runs


def summary(runs: Run | Iterable[Run]):
    """A table of runs, one row each: seconds, samples/second and MiB at the peak first, then the counts.

    MiB of the allocator, which kernels' scratch memory makes more than the tensors', stand beside them where a run knows.

    Returns a pandas DataFrame of numbers and texts. Times have one fixed form, `median s (fastest–slowest)`;
    the columns of communication are there when a run has communicated.
    """
    import pandas

    runs = [runs] if isinstance(runs, Run) else list(runs)
    columns = {
        "run": [run.name for run in runs],
        "time": [_time(run) for run in runs],
        "samples/s": [_rate(run) for run in runs],
        "peak MiB": [round(run.peak_bytes / MiB, 1) for run in runs],
        "optimizer steps": [_counted(run, run.optimizer_steps) for run in runs],
        "GFLOP": [_counted(run, round(run.flops / 1e9, 1)) for run in runs],
    }
    if any("allocator_peak" in run.device_bytes for run in runs):
        # with the scratch memory of kernels, where that is worth saying
        columns["allocator MiB"] = [
            round(run.device_bytes.get("allocator_peak", run.peak_bytes) / MiB, 1) for run in runs
        ]
    if any(run.all_reduces or run.bytes_sent for run in runs):
        columns["all-reduces"] = [run.all_reduces for run in runs]
        columns["MiB sent"] = [round(run.bytes_sent / MiB, 1) for run in runs]
    return pandas.DataFrame(columns)


def _time(run):
    if not run.seconds:
        return "not timed"
    return f"{run.median_seconds:8.3f} s ({min(run.seconds):8.3f}–{max(run.seconds):8.3f})"


def _counted(run, count):
    return "–" if run.origin == "published" else count


def _rate(run):
    return (
        "not timed"
        if run.samples_per_second is None
        else f"{run.samples_per_second:8.1f} samples/s"
    )


def format_bytes(count: float) -> str:
    """A number of bytes for people, in units of 1024: `12.3 MiB`."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if abs(count) < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def machine(device: str = "cpu") -> dict:
    """What the numbers were measured on: the device on which it ran (a card that was not asked is none), cores, threads and the versions that matter."""
    import torch

    if device == "cuda":
        device = f"cuda ({torch.cuda.get_device_name()})"
    versions = {name: metadata.version(name) for name in ("transformers", "accelerate")}
    return {
        "device": device,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # with its build, which the metadata leaves out
        **versions,
    }


def published_runs(path: str | Path = PUBLISHED) -> list[Run]:
    """The published BERT-large measurements (Tesla V100, January 2022), as the source states them.

    Their memory is that of the whole device (in MiB in the file, in bytes here), CUDA context and caches included, and not divided into categories.
    """
    table = json.loads(Path(path).read_text(encoding="utf-8"))
    return [
        Run(
            name=row["name"],
            settings={"model": table["model"]} | row["settings"],
            peak={"whole device": row["memory_mb"] * MiB},
            seconds=(row["seconds"],) if row.get("seconds") else (),
            samples=table.get("samples", 512),
            origin="published",
            created="2022-01-11",
        )
        for row in table["runs"]
    ]


def recorded_runs(folder: str | Path = MEASUREMENTS) -> list[Run]:
    """The runs that `trainlean measure --record` has written into the course's data, by file name; none is no error.

    Such a file has the entries source ("trainlean measure"), command, date, machine and runs (as `Run.to_dict` writes them).
    Learners without a GPU see these points beside their own. A file that cannot be read is a ValueError.
    """
    runs = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["source"] == "trainlean measure":
                runs += [Run.from_dict(run) for run in record["runs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path.name} holds no recorded measurements ({error}); write it again with `trainlean measure --record`."
            ) from None
    return runs


def record_runs(runs: list[Run], path: str | Path, command: str) -> None:
    """Write runs where `recorded_runs` finds them: a file in `data/measurements/` with command, date and machine; an OSError passes through."""
    date = datetime.now(UTC).date().isoformat()
    record = {
        "source": "trainlean measure",
        "command": command,
        "date": date,
        "machine": runs[0].machine if runs else machine(),
    }
    text = json.dumps(record | {"runs": [run.to_dict() for run in runs]}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")
