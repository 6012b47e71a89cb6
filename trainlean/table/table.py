"""The published table of BERT-large, repeatable: its rows, measured here and predicted without a GPU.

Each row is measured in a fresh process, so that nothing of one row is left in the next. A row that a machine cannot run
keeps its place and says why. `trainlean measure` is the command; `python -m trainlean.table.table` is the process of one row.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from shutil import which

from trainlean.costs.runs import MiB, Run, machine, published_runs, save_run

CONTEXT = 1343 * MiB  # the V100's CUDA context, which its published figures contain
GPU_BUDGET = 16160 * MiB  # what a V100 of 16 GB has
RESULT = "trainlean result: "


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
        names = ("micro_batch", "accumulation_steps", "checkpointing", "precision", "optimizer", "attention")
        return {name: getattr(self, name) for name in names}


_ALL = {"micro_batch": 1, "accumulation_steps": 4, "checkpointing": True, "precision": "fp16"}
ROWS = (
    Row("vanilla", published="batch 4"),
    Row("accumulation", 1, 4, published="1x4"),
    Row("checkpointing", 1, 4, True, published="1x4 checkpointed"),
    Row("fp16", precision="fp16", published="batch 4, fp16"),
    Row("all", **_ALL, published="1x4 checkpointed, fp16"),
    Row("adafactor", optimizer="adafactor", published="batch 4, Adafactor"),
    Row("all-adafactor", **_ALL, optimizer="adafactor", published="1x4 checkpointed, fp16, Adafactor"),
    Row("adam8bit", optimizer="adam8bit", published="batch 4, 8-bit Adam"),
    Row("all-adam8bit", **_ALL, optimizer="adam8bit", published="1x4 checkpointed, fp16, 8-bit Adam"),
    Row("accelerate", **_ALL, optimizer="adam8bit", loop="Accelerate", published="1x4 checkpointed, fp16, 8-bit Adam, Accelerate"),
    Row("bf16", precision="bf16"),
    Row("all-bf16", **_ALL | {"precision": "bf16"}),
    Row("all-bf16-accelerate", **_ALL | {"precision": "bf16"}, optimizer="adafactor", loop="Accelerate"),
    Row("sdpa", attention="sdpa"),
    Row("selective", 1, 4, "selective"),
    Row("compile", compiled=True),
    Row("largest", 0),  # the largest micro-batch that fits; found by prediction
)
CURVE = tuple(Row(f"{size}x{64 // size}", size, 64 // size) for size in (1, 2, 4, 8, 16, 32, 64))  # one effective batch


@dataclass(frozen=True)
class Plan:
    """What a model's rows train on: its name, samples of how many tokens, the budget of the largest batch."""

    model: str
    samples: int
    tokens: int
    budget: int
    limit: float  # seconds for one row
    repeats: int = 3


PLANS = {"bert-large": Plan("bert-large-uncased", 512, 512, GPU_BUDGET, 1800), "small": Plan("small BERT", 32, 128, 200 * MiB, 90)}


def config_of(model: str, **changes):
    """The transformers configuration of "bert-large" or "small", with dropout as BERT has it."""
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


# Predicted


def predict_row(row: Row, model: str = "bert-large", device: str = "gpu of 2022") -> Run:
    """The row's prediction; on a GPU `machine` holds what the allocator hands out and reserves (see `predict_run`)."""
    from trainlean.costs.predict import predict_run

    plan, config = PLANS[model], config_of(model)
    if row.micro_batch == 0:
        row = replace(row, micro_batch=largest(model, device))
    run = predict_run(config, name=row.key, sequence_length=plan.tokens, device=device, **row.training())
    return replace(run, settings=run.settings | {"model": plan.model, "loop": row.loop})


def largest(model: str, device: str) -> int:
    """The largest plain micro-batch that is predicted to fit into the plan's budget, CUDA context included."""
    from trainlean.costs.predict import predict_largest_batch

    plan = PLANS[model]
    budget = plan.budget - (0 if device == "cpu" else CONTEXT)
    return predict_largest_batch(config_of(model), budget, sequence_length=plan.tokens, device=device)


# Measured, in a process of its own


def reason_against(row: Row, device: str) -> str:
    """Why this machine cannot run the row; an empty string when it can."""
    if row.precision == "fp16" and device != "cuda":
        return "fp16 is run on a GPU only, a CPU is slow in it; the rows with bf16 show half precision here"
    if row.precision == "bf16" and device == "cuda":
        import torch

        if not torch.cuda.is_bf16_supported():
            return "this GPU has no bf16"
    if row.optimizer == "adam8bit" and find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    if row.optimizer == "adam8bit" and device != "cuda":
        return "8-bit Adam is measured on a GPU only"
    if row.compiled and device == "cpu" and not any(which(name) for name in (os.environ.get("CXX") or "g++", "clang++", "cl")):
        return "torch.compile needs a C++ compiler on a CPU, and none is installed"
    if row.compiled and device == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton on a GPU, and it is not installed"
    return ""


def optimizer_of(row: Row, parameters):
    """The row's optimizer, the one that is really run."""
    from trainlean.costs.predict import OPTIMIZERS

    if row.optimizer == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.Adam8bit(parameters, lr=1e-4)
    return OPTIMIZERS[row.optimizer](parameters)


class Training:
    """A row's model, optimizer and data on a device; `steps(n)` takes n optimizer steps, `epoch()` all of them."""

    def __init__(self, row: Row, config, plan: Plan, device: str):
        import torch
        from transformers import BertForSequenceClassification

        from trainlean.costs.predict import PRECISIONS, enable_checkpointing

        self.row, self.device = row, device
        self.dtype = PRECISIONS[row.precision]
        torch.manual_seed(0)
        config._attn_implementation = row.attention
        config.use_cache = False
        with torch.device(device):
            self.model = BertForSequenceClassification(config).train()
        enable_checkpointing(self.model, row.checkpointing)
        self.optimizer = optimizer_of(row, self.model.parameters())
        window = row.micro_batch * row.accumulation_steps
        self.windows = max(1, plan.samples // window)
        self.samples = self.windows * window
        # Random tokens, as the original had; its labels were all 0, these are drawn.
        self.ids = torch.randint(config.vocab_size, (window, plan.tokens), device=device)
        self.labels = torch.randint(2, (window,), device=device)
        self.scaler = torch.amp.GradScaler(device, enabled=row.precision == "fp16")
        self.forward = torch.compile(self.model) if row.compiled else self.model
        self.accelerator = None
        if row.loop == "Accelerate":
            from accelerate import Accelerator

            self.accelerator = Accelerator(
                mixed_precision={"fp32": "no"}.get(row.precision, row.precision), gradient_accumulation_steps=row.accumulation_steps, cpu=device == "cpu"
            )
            self.forward, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def epoch(self) -> None:
        """Train on all samples once."""
        self.steps(self.windows)

    def steps(self, count: int) -> None:
        """Take `count` optimizer steps and wait for their end."""
        import torch

        for _ in range(count):
            (self._step_of_accelerate if self.accelerator else self._step)()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _micro_batches(self):
        import torch

        size = self.row.micro_batch
        for start in range(0, len(self.labels), size):
            batch = {"input_ids": self.ids[start : start + size], "labels": self.labels[start : start + size]}
            # As in 2022, when the model made itself a mask; the fused attention drops one that hides nothing.
            yield batch | ({"attention_mask": torch.ones_like(batch["input_ids"])} if self.row.attention == "eager" else {})

    def _step(self):
        import torch

        for batch in self._micro_batches():
            with torch.autocast(self.device, self.dtype or torch.bfloat16, enabled=self.dtype is not None):
                loss = self.forward(**batch).loss / self.row.accumulation_steps
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _step_of_accelerate(self):
        for batch in self._micro_batches():
            with self.accelerator.accumulate(self.forward):
                self.accelerator.backward(self.forward(**batch).loss)
                self.optimizer.step()
                self.optimizer.zero_grad()


def measure_row(row: Row, config, plan: Plan, device: str, progress: Callable[[], None] = lambda: None) -> Run:
    """Measure one row in this process: first its memory, which warms up too, then the seconds of each epoch."""
    training = Training(row, config, plan, device)
    peak, flops = _memory(training)
    progress()
    seconds = []
    for _ in range(plan.repeats):
        gc.collect()
        start = time.perf_counter()
        training.epoch()
        seconds.append(time.perf_counter() - start)
        progress()
    from trainlean.costs.predict import checkpointing_label

    settings = row.training() | {"checkpointing": checkpointing_label(row.checkpointing), "model": plan.model, "sequence_length": plan.tokens}
    return Run(
        name=row.key,
        settings=settings | {"loop": row.loop, "compiled": row.compiled},
        peak=peak,
        seconds=tuple(seconds),
        samples=training.samples,
        flops=flops * training.windows,
        optimizer_steps=training.windows,
        machine=machine() | (_gpu_memory() if device == "cuda" else {}),
    )


def _memory(training):
    """Peak by category and FLOPs of an optimizer step whose state is in place."""
    from trainlean.costs.meter import Meter

    training.steps(1)  # makes the state, compiles, warms up
    if training.row.compiled:
        return _profiled(training), 0
    with Meter(training.model, training.optimizer) as meter:
        training.steps(1)
    if training.device == "cuda":
        import torch

        training.steps(1)
        # From here on nothing but the training is counted; what is held in reserve is what this row made of it.
        torch.cuda.reset_peak_memory_stats()
        training.steps(1)
    return meter.peak, meter.flops


def _profiled(training):
    """The peak of a compiled step, which no meter of operations sees: what the allocator's events say, undivided."""
    import torch

    weights = sum(p.nbytes for p in training.model.parameters()) + sum(b.nbytes for b in training.model.buffers())
    state = sum(t.nbytes for s in training.optimizer.state.values() for t in s.values() if torch.is_tensor(t))
    if training.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        training.steps(1)
        more = torch.cuda.max_memory_allocated() - weights - state
    else:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            training.steps(1)
        level = more = 0
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        for event in sorted(events, key=lambda event: event.start_ns()):
            level += event.nbytes()
            more = max(more, level)
    return {"weights": weights, "optimizer state": state, "not divided": more}


def _gpu_memory():
    """What the card says: the allocator's peaks, the whole device as its driver counts it, and the driver's version."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "allocator_peak": torch.cuda.max_memory_allocated(),
        "allocator_reserved": torch.cuda.max_memory_reserved(),
        "whole_device": total - free,
        "device_memory": total,
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def the_device() -> str:
    """"cuda" where torch finds a GPU of that kind, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


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
    """Measure each row in a fresh process; a row that cannot run, fails, or takes longer than `limit` seconds (the plan's) has its reason."""
    device = device or the_device()
    outcomes = []
    for row in rows:
        started(row)
        reason, run = reason_against(row, device), None
        if not reason:
            if row.micro_batch == 0:
                row = replace(row, micro_batch=largest(model, "cpu" if device == "cpu" else "gpu"))
            if row.micro_batch == 0:
                reason = "not even one sample fits into the budget"
        if not reason:
            run, reason = _in_fresh_process(row, model, device, repeats, limit or PLANS[model].limit)
        if run and save:
            save_run(run)
        outcomes.append(Outcome(row, run, reason))
    return outcomes


def _in_fresh_process(row, model, device, repeats, limit):
    """The row's run, or None and one sentence about what went wrong."""
    order = json.dumps({"row": asdict(row), "model": model, "device": device, "repeats": repeats})
    command = [sys.executable, "-m", "trainlean.table.table", order]
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    # A group of its own, so that the compilers that a row starts end with it.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | quiet, start_new_session=True)
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
    return None, said[-1][:200] if said else f"ended with status {process.returncode} and without a word"


def _end(process):
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()


def main(order: str) -> None:
    """Measure the row of this order (JSON) and print its run on a line of its own."""
    order = json.loads(order)
    plan = PLANS[order["model"]]
    if order["repeats"]:
        plan = replace(plan, repeats=order["repeats"])
    run = measure_row(Row(**order["row"]), config_of(order["model"]), plan, order["device"])
    print("\n" + RESULT + json.dumps(run.to_dict()), flush=True)


# Shown


def memory_of(run: Run) -> int:
    """The memory to compare in a table: what the card's allocator handed out at most, else the bytes of the tensors."""
    return run.machine.get("allocator_peak", run.peak_bytes)


def table(outcomes: Iterable[Outcome], predicted: dict[str, Run] | None = None):
    """Time, samples/second and memory of each row, with ratios to vanilla beside the published ratios (a DataFrame).

    Published ratios of memory are taken without the CUDA context. `predicted` maps a row's key to its prediction, whose
    distance from the measured memory is then the last column.
    """
    import pandas

    from trainlean.costs.runs import summary

    outcomes, predicted = list(outcomes), predicted or {}
    vanilla = next((outcome.run for outcome in outcomes if outcome.row.key == "vanilla" and outcome.run), None)
    known = published(ROWS[0])
    lines = []
    for outcome in outcomes:
        run, told = outcome.run, published(outcome.row)
        line = {"row": _title(outcome.row)}
        if run is None:
            line["time"] = outcome.reason
        else:
            [seen] = summary(run).to_dict("records")
            line |= {"time": seen["time"], "samples/s": seen["samples/s"], "peak MiB": f"{memory_of(run) / MiB:,.1f}"}
            for name in ("allocator_reserved", "whole_device"):
                if name in run.machine:
                    line[f"{name.replace('_', ' ')} MiB"] = f"{run.machine[name] / MiB:,.0f}"
            if vanilla:
                pace = vanilla.samples_per_second / run.samples_per_second
                line |= {"time/vanilla": f"{pace:.2f}", "memory/vanilla": f"{memory_of(run) / memory_of(vanilla):.2f}"}
        if told:
            line["published time"] = f"{told.median_seconds / known.median_seconds:.2f}" if told.seconds else "–"
            line["published memory"] = f"{(told.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT):.2f}"
        if run and outcome.row.key in predicted:
            line["prediction off by"] = _percent(memory_of(predicted[outcome.row.key]) / memory_of(run) - 1)
        lines.append(line)
    return pandas.DataFrame(lines).fillna("")


def _percent(error):
    return f"{error:+.1%}".replace("-0.0%", "+0.0%")


def _title(row):
    return row.key if row.micro_batch in (0, 4) else f"{row.key} ({row.micro_batch}x{row.accumulation_steps})"


def prediction_table(rows: Iterable[Row] = ROWS, predictions: Iterable[Run] | None = None):
    """BERT-large's rows predicted beside the published ones (a DataFrame): MiB, with the error against the V100 without its context."""
    import pandas

    rows = list(rows)
    lines = []
    for row, run in zip(rows, predictions or map(predict_row, rows), strict=True):
        told = published(row)
        reserved = run.machine["allocator_reserved"]
        line = {"row": _title(replace(row, micro_batch=run.settings["micro_batch"])), "tensors": round(run.peak_bytes / MiB), "allocator": round(reserved / MiB)}
        line |= {"+ context": round((reserved + CONTEXT) / MiB), "published": "–", "error": "–"}
        if told:
            line |= {"published": f"{told.peak_bytes / MiB:.0f}", "error": _percent(reserved / (told.peak_bytes - CONTEXT) - 1)}
        lines.append(line)
    return pandas.DataFrame(lines)


def plot_table(runs: dict[str, Run]):
    """Memory and time of the rows as ratios to vanilla: bars for these runs (by key), squares for the published ones."""
    from trainlean.pictures.figures import INK, LINES, Picture, course_style

    keys = [row.key for row in ROWS if row.key in runs]
    rows, vanilla, known = {row.key: row for row in ROWS}, runs["vanilla"], published(ROWS[0])
    with course_style():
        picture = Picture(8.4, 1.05 + 0.3 * len(keys), f"ratios to vanilla: {len(keys)} rows beside the published ones")
        height = picture.get_figheight()
        left, right = picture.subplots(1, 2, sharey=True)
        picture.subplots_adjust(left=0.19, right=0.98, bottom=0.5 / height, top=1 - 0.4 / height, wspace=0.08)
        panels = (
            (left, "memory / vanilla", LINES[1], lambda run: memory_of(run) / memory_of(vanilla), lambda told: (told.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT)),
            (right, "time / vanilla", LINES[3], _pace(vanilla), _pace(known)),
        )
        for axes, title, colour, ours, theirs in panels:
            for place, key in enumerate(keys):
                if (ratio := ours(runs[key])) is not None:
                    axes.barh(place, ratio, height=0.62, color=colour)
                told = published(rows[key])
                if told and theirs(told) is not None:
                    axes.plot(theirs(told), place, "s", ms=6, mfc="white", mec=INK, clip_on=False)
            axes.axvline(1, color=INK, lw=0.8, ls=":")
            axes.set_title(title)
            axes.set_xlim(left=0)
        left.set_yticks(range(len(keys)), keys)
        left.set_ylim(len(keys) - 0.4, -0.6)
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, labelcolor=INK)
        picture.text(0.19, 0.1 / height, "bar: measured here    square: published (V100, 2022; without the CUDA context)", size=8.5)
    return picture


def _pace(vanilla):
    """A function: how many times as long as `vanilla` a run takes for each sample; None when either is not timed."""
    return lambda run: vanilla.samples_per_second / run.samples_per_second if vanilla.samples_per_second and run.samples_per_second else None


if __name__ == "__main__":
    main(sys.argv[1])
