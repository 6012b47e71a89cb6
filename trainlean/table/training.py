"""One row, measured in this process."""

import gc
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from shutil import which
from typing import Any

from trainlean.costs.runs import Run, machine
from trainlean.model_list import MODELS, Model
from trainlean.models import model_config
from trainlean.table.rows import Row


def reason_against(row: Row, device: str) -> str:
    """Why this machine cannot run the row; an empty string when it can."""
    if row.setup.precision == "fp16" and device != "cuda":
        return "fp16 is run on a GPU only, a CPU is slow in it; the rows with bf16 show half precision here"
    if row.setup.precision == "bf16" and device == "cuda":
        import torch

        if not torch.cuda.is_bf16_supported():
            return "this GPU has no bf16"
    if row.setup.optimizer == "adam8bit" and find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    if row.setup.optimizer == "adam8bit" and device != "cuda":
        return "8-bit Adam is measured on a GPU only"
    if (
        row.setup.compiled
        and device == "cpu"
        and not any(which(name) for name in (os.environ.get("CXX") or "g++", "clang++", "cl"))
    ):
        return "torch.compile needs a C++ compiler on a CPU, and none is installed"
    if row.setup.compiled and device == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton on a GPU, and it is not installed"
    return ""


def optimizer_of(row: Row, parameters):
    """The row's optimizer, the one that is really run. ImportError: it is bitsandbytes', which is not installed."""
    from trainlean.costs.training import OPTIMIZERS

    if row.setup.optimizer == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.Adam8bit(parameters, lr=1e-4)
    return OPTIMIZERS[row.setup.optimizer](parameters)


class Training:
    """A row's model, optimizer and data on a device; `steps(n)` takes n optimizer steps, `epoch()` all of them.

    The data: `plan.samples` random samples of `plan.tokens` tokens, as many as make whole steps.
    """

    def __init__(self, row: Row, config, plan: Model, device: str):
        import torch
        from transformers import AutoModelForSequenceClassification

        from trainlean.costs.training import AUTOCAST, enable_checkpointing

        self.setup, self.device = row.setup, device
        self.dtype = AUTOCAST[row.setup.precision]
        torch.manual_seed(0)
        config._attn_implementation = row.setup.attention
        config.use_cache = False
        config.problem_type = "single_label_classification"  # else the first loss writes it there, and a compiled model is compiled again
        with torch.device(device):
            self.model = AutoModelForSequenceClassification.from_config(config).train()
        enable_checkpointing(self.model, row.setup.checkpointing)
        self.optimizer = optimizer_of(row, self.model.parameters())
        window = row.setup.effective_batch
        self.windows = max(1, plan.samples // window)
        self.samples = self.windows * window
        # Random tokens, as the original had; its labels were all 0, these are drawn.
        self.ids = torch.randint(config.vocab_size, (window, plan.tokens), device=device)
        self.labels = torch.randint(2, (window,), device=device)
        self.scaler = torch.amp.GradScaler(device, enabled=row.setup.precision == "fp16")
        self.forward = torch.compile(self.model) if row.setup.compiled else self.model
        self.accelerator: Any = None  # accelerate's Accelerator in its loop
        if row.loop == "Accelerate":
            from accelerate import Accelerator

            self.accelerator = Accelerator(
                mixed_precision={"fp32": "no"}.get(row.setup.precision, row.setup.precision),
                gradient_accumulation_steps=row.setup.accumulation_steps,
                cpu=device == "cpu",
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

        size = self.setup.micro_batch
        for start in range(0, len(self.labels), size):
            batch = {
                "input_ids": self.ids[start : start + size],
                "labels": self.labels[start : start + size],
            }
            if self.setup.attention == "eager":
                # The model of 2022 always added a mask, in fp32; today's leaves one out that hides nothing. So one token is hidden.
                batch["attention_mask"] = torch.ones_like(batch["input_ids"])
                batch["attention_mask"][0, -1] = 0
            yield batch

    def _step(self):
        import torch

        for batch in self._micro_batches():
            with torch.autocast(
                self.device, self.dtype or torch.bfloat16, enabled=self.dtype is not None
            ):
                loss = self.forward(**batch).loss / self.setup.accumulation_steps
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


def measure_row(
    row: Row, config, plan: Model, device: str, progress: Callable[[], None] = lambda: None
) -> Run:
    """Measure one row in this process: first its memory, which warms up too, then the seconds of each epoch.

    `progress` is called after each of these. Errors of torch pass through, such as that of a card that is full.
    """
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
    settings = replace(row.setup, model=plan.model, sequence_length=plan.tokens).settings()
    return Run(
        name=row.key,
        settings=settings | {"loop": row.loop},
        peak=peak,
        seconds=tuple(seconds),
        samples=training.samples,
        flops=flops * training.windows,
        optimizer_steps=training.windows,
        device_bytes=_device_bytes() if device == "cuda" else {},
        machine=machine(device) | (_card() if device == "cuda" else {}),
    )


def _memory(training):
    """Peak by category and FLOPs of an optimizer step whose state is in place."""
    from trainlean.costs.meter import Meter

    training.steps(1)  # makes the state, compiles, warms up
    if training.setup.compiled:
        return peak_by_allocator(training), 0
    with Meter(training.model, training.optimizer) as meter:
        training.steps(1)
    if training.device == "cuda":
        import torch

        training.steps(1)
        # From here on nothing but the training is counted; what is held in reserve is what this row made of it.
        torch.cuda.reset_peak_memory_stats()
        training.steps(1)
    return meter.peak, meter.flops


def peak_by_allocator(training):
    """Bytes at the peak of a step as the allocator counts them, activations undivided: of a compiled step no meter sees more."""
    import torch

    weights = sum(p.nbytes for p in training.model.parameters()) + sum(
        b.nbytes for b in training.model.buffers()
    )
    state = sum(
        t.nbytes
        for s in training.optimizer.state.values()
        for t in s.values()
        if torch.is_tensor(t)
    )
    if training.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        training.steps(1)
        more = torch.cuda.max_memory_allocated() - weights - state
    else:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler:
            training.steps(1)
        level = more = 0
        events = [
            event
            for event in profiler.profiler.kineto_results.events()
            if event.name() == "[memory]"
        ]
        for event in sorted(events, key=lambda event: event.start_ns()):
            level += event.nbytes()
            more = max(more, level)
    return {"weights": weights, "optimizer state": state, "not divided": more}


def _device_bytes():
    """What the card says of this process: the allocator's peaks, and the whole device as its driver counts it."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "allocator_peak": torch.cuda.max_memory_allocated(),
        "allocator_reserved": torch.cuda.max_memory_reserved(),
        "whole_device": total - free,
    }


def _card():
    """What the card is: its memory in bytes, and the versions of CUDA and the driver."""
    import torch

    _, total = torch.cuda.mem_get_info()
    return {"device_memory": total, "cuda": torch.version.cuda, "driver": _driver()}


def _driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            .stdout.splitlines()[0]
            .strip()
        )
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def measure_as_planned(row: Row, model: str, device: str, repeats: int | None) -> Run:
    """Measure one row of a model of MODELS in this process; `repeats` timed epochs, or the plan's, but no more than TRAINLEAN_REPEATS says, and one at least."""
    from trainlean.costs.measuring import allowed_repeats

    plan = MODELS[model]
    plan = replace(plan, repeats=max(1, allowed_repeats(repeats or plan.repeats)))
    return measure_row(row, model_config(model), plan, device)
