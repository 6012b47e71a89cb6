"""What `trainlean plan` does and prints."""

import json as json_module
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trainlean.costs.runs import format_bytes
from trainlean.plan.quantities import bytes_words, read_bytes, read_link
from trainlean.plan.reading import read_model
from trainlean.plan.script import KINDS, write_script
from trainlean.plan.search import ATTENTIONS, CHECKPOINTINGS, Plan, plan_training, words_of
from trainlean.plan.speed import CardSpeed, MeasuredSpeed, Speed
from trainlean.setup import OPTIMIZERS, PRECISIONS, TrainingSetup, checkpointing_words
from trainlean.workspace import CourseError

SHOWN = 12  # rows


def _in_sentences(function):
    """What cannot be is a CourseError."""

    @wraps(function)
    def call(*args, **named):
        try:
            return function(*args, **named)
        except ValueError as error:
            raise CourseError(str(error)) from None

    return call


@_in_sentences
def make_plan(
    model: str,
    *,
    memory: str,
    batch: int,
    sequence_length: int | None = None,
    devices: int = 1,
    link: str | None = None,
    task: str | None = None,
    lora: int | None = None,
    optimizers: Sequence[str] | None = None,
    precisions: Sequence[str] | None = None,
    attentions: Sequence[str] | None = None,
    checkpointings: Sequence[str] | None = None,
    local_steps: Sequence[int] | None = None,
    padded: bool = False,
    card: str | None = None,
    device: str | None = None,
    write: tuple[str, Path] | None = None,
    json: bool = False,
) -> Plan:
    """Search, print, write the script. CourseError: what cannot be, in a sentence."""
    optimizers = _known("optimizer", optimizers or ["adamw"], OPTIMIZERS)
    precisions = _known("precision", precisions or ["fp32"], PRECISIONS)
    attentions = _known("attention", attentions, ATTENTIONS) if attentions else None
    ways = [
        TrainingSetup(1, checkpointing=way).checkpointing
        for way in checkpointings or CHECKPOINTINGS
    ]
    for name, value in (
        ("batch", batch),
        ("devices", devices),
        ("sequence-length", sequence_length),
        ("lora", lora),
    ):
        if value is not None and value < 1:
            raise CourseError(f"--{name} is a whole number from 1 on, not {value}.")
    if device not in (None, "cpu", "gpu"):
        raise CourseError(f"--device is cpu or gpu, not {device!r}.")
    if card and device == "cpu":
        raise CourseError("A card is no CPU: leave out --card or --device cpu.")
    if write and write[0] not in KINDS:
        raise CourseError(f"--write takes one of {', '.join(KINDS)} and a file, not {write[0]!r}.")
    if write and write[1].exists():
        raise CourseError(f"{write[1]} is there already: name another file, or remove it.")
    device = device or ("gpu" if card else "cpu")
    budget = read_bytes(memory)
    between = read_link(link) if link else None
    speed: Speed | None = None
    if card:
        speed = CardSpeed(card)
        speed.check(precisions)
    console = Console(stderr=True)
    # What a model prints is no part of the plan, nor of its JSON.
    with redirect_stdout(sys.stderr), console.status("reading the model") as status:
        began = time.perf_counter()
        subject = read_model(model, task)
        if device == "cpu":
            speed = MeasuredSpeed(subject)

        def progress(words):
            status.update(f"looking at: {words} ({time.perf_counter() - began:.0f} s)")

        def first(choice):
            if not json:
                console.print(
                    f"Fits, after {time.perf_counter() - began:.0f} s: {words_of(choice.setup)}, {format_bytes(choice.needed)}. Looking for a better one ...",
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip

        try:
            found = plan_training(
                subject, budget, batch, sequence_length=sequence_length, devices=devices, link=between, device=device,
                optimizers=optimizers, precisions=precisions, attentions=attentions,
                checkpointings=ways, local_steps=local_steps or [8], lora=lora,
                padded=padded, speed=speed, progress=progress, first=first,
            )  # fmt: skip
        except ValueError as error:
            words, of_python, _ = str(error).partition(": give batch=...")
            if of_python:  # what `predict_run` takes, and the command line does not
                words += ": give the module as file.py:function, which returns model, sample batch and loss."
            if task is None and subject.identity:
                words += (
                    f" It was taken as {_kind(subject)}; --task says another, such as causal-lm."
                )
            raise CourseError(words) from None
    if write:
        where = model if ".py:" in model else str(Path(model).resolve())
        if ".py:" in model:
            path, _, function = model.rpartition(":")
            where = f"{Path(path).resolve()}:{function}"
        write_script(found, write[0], write[1], where, task)
    if json:
        print(json_module.dumps(found.to_dict(), indent=1))
    else:
        show(found, memory)
        if write:
            _say(f"{write[1]} trains with the first row: python {write[1]}")
    return found


def _kind(subject):
    """The class of a configuration's model."""
    return subject.identity.split()[0] if subject.identity else subject.name


def _known(name, values, known):
    for value in values:
        if value not in known:
            raise CourseError(f"--{name} is one of {', '.join(known)}, not {value!r}.")
    return list(dict.fromkeys(values))


def _say(text):
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def show(found: Plan, memory: str = "") -> None:
    """Print a plan: what was asked, the front as a table, and the sentences."""
    setup = found.rows[0].setup
    length = f", {setup.sequence_length} tokens each" if setup.sequence_length else ""
    devices = f" on {setup.devices} devices" if setup.devices > 1 else ""
    kind = _kind(found.subject)
    name = kind if kind == found.subject.name else f"{found.subject.name} ({kind})"
    _say(f"{name}: {found.batch} samples to an optimizer step{length}{devices}.")
    what = (
        "what CUDA's allocator holds in reserve, predicted and not measured; a card's context comes on top (some hundred MB), "
        "which is about what a card sold with so many GB has beyond them"
        if found.device == "gpu"
        else "the bytes of all tensors in training on this CPU (for a card: --device gpu or --card NAME)"
    )
    _say(
        f"The budget of {memory or 'memory'} is {bytes_words(found.budget)}; against it counts {what}."
    )
    _say(
        f"{found.fitting} of {found.looked_at} settings fit; none of these is beaten in memory, speed and bytes sent by another:"
    )
    console = Console()
    console.width = max(
        console.width, 170
    )  # a narrow terminal breaks the lines, but loses no figure
    console.print(_table(found))
    if len(found.rows) > SHOWN:
        _say(f"{len(found.rows) - SHOWN} more rows are in --json.")
    for text in (found.why, found.speed, *found.notes):
        if text:
            _say(text)
    _say(
        f"Found in {found.seconds:.0f} s, the first row that fits after {found.first_after:.0f} s."
    )


def _table(found):
    rows = found.rows[:SHOWN]
    setups = [row.setup for row in rows]
    varied = [
        name
        for name in ("attention", "optimizer", "precision")
        if len({getattr(one.setup, name) for one in found.all_rows}) > 1
    ]
    several = setups[0].devices > 1
    columns = ["micro-\nbatch", "accumulation\nsteps", "checkpointing", *varied]
    ranged = rows[0].interval is not None
    columns += ["averages"] * several + ["peak\n(interval)" if ranged else "peak"]
    columns += ["of the\nbudget", "GFLOP\na step"]
    columns += ["sent\na step"] * several
    columns += ["seconds a step\n(range)", "samples/s"] if rows[0].seconds else []
    table = Table(box=None, pad_edge=False)
    for column in columns:
        left = column in ("checkpointing", "averages", *varied)
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for row, setup in zip(rows, setups):
        cells = [
            str(setup.micro_batch),
            str(setup.accumulation_steps),
            checkpointing_words(setup.checkpointing),
        ]
        cells += [str(getattr(setup, name)) for name in varied]
        if several:
            cells.append(
                f"weights, every {setup.local_steps} steps" if setup.local_steps else "gradients"
            )
        between = "–".join(format_bytes(end) for end in row.interval or ())
        cells += [
            format_bytes(row.needed) + (f" ({between})" if between else ""),
            f"{row.needed / found.budget:.0%}",
            _short(row.run.flops / 1e9),
        ]
        cells += [format_bytes(row.sent)] * several
        if row.seconds:
            of = row.seconds
            cells.append(f"{_short(of.expected)} ({_short(of.best)}–{_short(of.worst)})")
            cells.append(_short(setup.effective_batch / of.expected))
        table.add_row(*cells)
    return table


def _short(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
