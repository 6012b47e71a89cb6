"""Measures whole trainings: each once under the `Meter`, then its seconds with nothing attached."""

import gc
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from trainlean.costs.meter import Meter
from trainlean.costs.runs import Run, machine, save_run
from trainlean.setup import TrainingSetup


def measure(
    train,
    *,
    name: str,
    setup: TrainingSetup | None = None,
    repeats: int = 3,
    samples: int | None = None,
    save: bool = True,
    progress: bool = True,
    **settings,
) -> Run:
    """Measure `train`, a function without arguments that does a whole training from scratch; returns the `Run`.

    It is called once under the `Meter`, which also warms up, and then `repeats` times with nothing attached for the
    seconds: counting memory cannot distort the time. `setup`, or `settings` by name (micro_batch=4, accumulation_steps=4,
    ...), say what was run, and `settings` anything else; `samples` replaces the counted ones; `save=False` leaves the run out of the learner's records, to which
    only rank 0 adds. Where the allocator hands out more than the tensors that are counted, a warning says so, and the run keeps its peak
    (`device_bytes["allocator_peak"]`). A ValueError says what is wrong with `train`. No progress bar where nobody watches or where
    TRAINLEAN_QUIET is set; no more repeats than TRAINLEAN_REPEATS says, where that is set: at 0 the seconds under the `Meter`
    stand for them, for tests that compare no seconds.
    """
    _check_callable(train)
    asked, repeats = repeats, allowed_repeats(repeats)
    seconds = []
    with progress_bar(1 + repeats, name, progress and somebody_watches()) as bar:
        with Meter() as meter:
            start = time.perf_counter()
            train()
            metered = time.perf_counter() - start
        _check_seen(meter, samples)
        bar.update()
        for _ in range(repeats):
            seconds.append(_time(train))
            bar.update()
    run = Run(
        name=name,
        settings=(setup.settings() if setup else {}) | settings,
        peak=meter.peak,
        seconds=tuple(seconds) if repeats or not asked else (metered,),
        samples=meter.samples if samples is None else samples,
        flops=meter.flops,
        optimizer_steps=meter.optimizer_steps,
        all_reduces=meter.all_reduces,
        bytes_sent=meter.bytes_sent,
        collectives=meter.collectives,
        device_bytes=_device_bytes(meter),
        machine=machine(next((b.device for b in meter.blocks if b.device != "cpu"), "cpu")),
    )
    if save and not (torch.distributed.is_initialized() and torch.distributed.get_rank()):
        save_run(run)
    return run


def progress_bar(total: int | None, name: str, shown: bool, **form):
    """A progress bar that leaves nothing behind.

    In a notebook it has no text: VS Code saves a bar's output, and shows its text when the notebook is opened again.
    """
    from tqdm.auto import tqdm
    from tqdm.notebook import tqdm_notebook

    if not (shown and issubclass(tqdm, tqdm_notebook)):
        return tqdm(total=total, desc=name, leave=False, disable=not shown, **form)
    from IPython.display import display

    bar = tqdm(total=total, desc=name, leave=False, display=False, **form)
    display(bar.container._repr_mimebundle_() | {"text/plain": ""}, raw=True)
    return bar


def measure_in_turn(
    trainings: Sequence[tuple[Callable[[], object], dict]], repeats: int = 3, save: bool = True
) -> list[Run]:
    """Measure trainings that are to be compared: memory and FLOPs of each first, then the seconds of all of them in turn.

    `trainings` are pairs: a function that trains, and what `measure` takes beside it (name=..., micro_batch=..., ...), as
    a dictionary. Every one is timed once, then every one again, `repeats` times; no more often than TRAINLEAN_REPEATS
    says, where that is set. `save=False` leaves the runs out of the learner's records, to which only rank 0 adds.
    Returns the runs in their order. ValueError: no trainings at all, and whatever `measure` raises.
    """
    if not trainings:
        raise ValueError("measure_in_turn needs at least one pair of a function and its settings.")
    asked, repeats = repeats, allowed_repeats(repeats)
    here = (
        0 if repeats else asked
    )  # where nothing may be repeated, the seconds under the meter stand for it
    runs = [
        measure(train, **{**settings, "repeats": here, "save": False})
        for train, settings in trainings
    ]
    if repeats:
        rounds = [[_time(train) for train, _ in trainings] for _ in range(repeats)]
        runs = [
            replace(run, seconds=seconds)
            for run, seconds in zip(runs, zip(*rounds, strict=True), strict=True)
        ]
    if save and not (torch.distributed.is_initialized() and torch.distributed.get_rank()):
        for run in runs:
            save_run(run)
    return runs


def allowed_repeats(repeats: int) -> int:
    """So many timed repeats, or as many as TRAINLEAN_REPEATS says where that is fewer."""
    return min(repeats, int(os.environ.get("TRAINLEAN_REPEATS", repeats)))


def _device_bytes(meter):
    """What the allocator says, where that is more than the run's peak or a card's."""
    peak = meter.allocator_peak
    return {"allocator_peak": peak} if peak and (meter.note or torch.cuda.is_initialized()) else {}


def _time(train):
    """Seconds of a training; where torch.compile was at work meanwhile, of the next one.

    What it made under the `Meter` is for operations that are watched.
    """
    before = _compilations()
    seconds = _clocked(train)
    return seconds if _compilations() == before else _clocked(train)


def _compilations():
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler.counters["frames"]["total"] if compiler else 0


def _clocked(train):
    gc.collect()
    _synchronize()
    start = time.perf_counter()
    train()
    _synchronize()
    return time.perf_counter() - start


def _synchronize():
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def somebody_watches():
    """Whether somebody sees a progress bar: at a terminal or in a notebook, neither being built nor tested."""
    unwatched = {"TRAINLEAN_QUIET", "PYTEST_VERSION"} & os.environ.keys()
    return not unwatched and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _check_callable(train):
    if not callable(train):
        kind = type(train).__name__
        raise ValueError(
            f"measure needs a function, not {kind}: write measure(train, ...), not measure(train(), ...)."
        )
    try:
        inspect.signature(train).bind()
    except TypeError:
        raise ValueError(
            "measure calls train() without arguments: give it a function that needs none, such as lambda: train(4)."
        ) from None


def _check_seen(meter, samples):
    if not meter.optimizer_steps:
        raise ValueError(
            "measure saw no optimizer step: train() must train from scratch and call optimizer.step()."
        )
    if not meter.samples and samples is None:
        raise ValueError(
            "measure saw no model being trained: train() must call a torch.nn.Module, "
            "or measure(..., samples=...) must say how many samples it trains on."
        )
