"""How long an optimizer step takes: from one short training on this machine, or from what a card's data sheet says.

Both come with their range. Memory and FLOPs of a plan are exact, its seconds are not: they order the rows.
"""

import copy
import gc
import statistics
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import psutil
import torch

from trainlean.costs.subject import Subject
from trainlean.costs.training import AUTOCAST, OPTIMIZERS, add_adapters, enable_checkpointing

MEASURING = 12.0  # seconds for all measurements of a plan
REPEATS = 3
PRODUCTS = (1.0, 0.6, 0.3)  # shares of the speed of matrix products, where nothing better is known
LARGEST_STEP = 2e11  # FLOPs of a micro-batch that is still measured: some seconds on two cores


@dataclass(frozen=True)
class Seconds:
    """Seconds of an optimizer step: at best, as expected, at worst."""

    best: float
    expected: float
    worst: float

    def map(self, change: Callable[[float], float]) -> "Seconds":
        """What `change` makes of each of the three."""
        return Seconds(change(self.best), change(self.expected), change(self.worst))

    def to_dict(self) -> dict:
        """The three by name."""
        return {"best": self.best, "expected": self.expected, "worst": self.worst}


class Speed(ABC):
    """What a plan asks: the seconds of a row, and in `words` where they are from."""

    words = ""

    @abstractmethod
    def prepare(self, rows) -> None:
        """Measure what is to be measured, before the first row is asked for."""

    @abstractmethod
    def seconds(self, row) -> Seconds | None:
        """The seconds of one optimizer step of this row on one device; None: not known."""


@dataclass(frozen=True)
class Card:
    """A card as its maker's data sheet has it: FLOP/s by precision (dense), bytes/s of its memory, and where that is written.

    No entry for a precision: the card has no units for it.
    """

    name: str
    flops: dict[str, float]
    bandwidth: float
    source: str


SHEET = "NVIDIA's data sheet of the {}"
CARDS = {
    "t4": Card("T4", {"fp32": 8.1e12, "fp16": 65e12}, 320e9, SHEET.format("T4")),
    "v100": Card("V100 SXM2", {"fp32": 15.7e12, "fp16": 125e12}, 900e9, SHEET.format("V100")),
    "a100": Card(
        "A100 SXM4 40GB",
        {"fp32": 19.5e12, "fp16": 312e12, "bf16": 312e12},
        1555e9,
        SHEET.format("A100"),
    ),
    "l4": Card("L4", {"fp32": 30.3e12, "fp16": 121e12, "bf16": 121e12}, 300e9, SHEET.format("L4")),
    "h100": Card(
        "H100 SXM5", {"fp32": 67e12, "fp16": 989e12, "bf16": 989e12}, 3350e9, SHEET.format("H100")
    ),
    "rtx4090": Card(
        "GeForce RTX 4090",
        {"fp32": 82.6e12, "fp16": 165e12, "bf16": 165e12},
        1008e9,
        "NVIDIA's white paper of the Ada architecture",
    ),
}
# Shares of the peak that published trainings reached: 21 to 46 % (GPT-3, Gopher, Megatron-Turing NLG, PaLM: Chowdhery and
# others, "PaLM", arXiv:2204.02311, table 3), each tuned for months. A loop as in this course is seldom above them.
SHARES = (0.5, 0.35, 0.2)


class CardSpeed(Speed):
    """Seconds from a card's peak FLOP/s and the bandwidth of its memory.

    Every micro-batch reads the weights twice and adds to the gradients; the step reads and writes weights and state once.
    """

    def __init__(self, name: str):
        if name.lower().replace(" ", "") not in CARDS:
            raise ValueError(f"The card is one of {', '.join(CARDS)}, not {name!r}.")
        self.card = CARDS[name.lower().replace(" ", "")]
        self.words = (
            f"Seconds are between {SHARES[0]:.0%} and {SHARES[-1]:.0%} of the {self.card.name}'s peak FLOP/s, and what its memory's "
            f"bandwidth adds ({self.card.source}); nothing was measured on one."
        )

    def prepare(self, rows) -> None:
        """Nothing: all is on the data sheet."""

    def check(self, precisions) -> None:
        """ValueError: a precision that the card has no units for."""
        for precision in precisions:
            if precision not in self.card.flops:
                raise ValueError(
                    f"The {self.card.name} has no units for {precision}: take one of {', '.join(self.card.flops)}."
                )

    def seconds(self, row) -> Seconds:
        """Of one optimizer step."""
        setup, peak = row.setup, row.run.peak
        trained = max(peak["gradients"], peak["optimizer state"] / 2)
        moved = setup.accumulation_steps * (2 * peak["weights"] + 2 * trained)
        moved += 2 * (peak["weights"] + peak["optimizer state"])
        rate = self.card.flops[setup.precision]
        best, expected, worst = (
            row.run.flops / (share * rate) + moved / self.card.bandwidth for share in SHARES
        )
        return Seconds(best, expected, worst)


@dataclass(frozen=True)
class Measured:
    """A micro-batch that was trained here: seconds of each repeat, those of the optimizer's step, and its FLOPs."""

    times: list[float]
    step: float
    flops: float


class MeasuredSpeed(Speed):
    """Seconds on this machine: a micro-batch of the row itself, trained a few times, or what is known from another one.

    A model that is too large for this machine is not made: then the speed of its matrix products stands for it.
    """

    def __init__(self, subject: Subject):
        self.subject = subject
        self.measured: dict[tuple, Measured] = {}  # by way of training and micro-batch
        self.rate = 0.0  # FLOP/s of matrix products, where the model was too large

    def prepare(self, rows) -> None:
        """Measure rows, of each way of training its largest micro-batch first, as far as the time reaches."""
        end = time.perf_counter() + MEASURING
        free = psutil.virtual_memory().available
        small = [r for r in rows if r.needed < free / 2 and _flops_of_one(r) < LARGEST_STEP]
        ways: dict = {}
        for row in sorted(small, key=lambda row: -row.setup.micro_batch):
            ways.setdefault(_way(row.setup), []).append(row)
        for row in (row for turn in zip_longest(*ways.values()) for row in turn if row):
            if self.measured and time.perf_counter() > end:
                break
            try:
                times, step = _measure(self.subject, row.setup)
            except (RuntimeError, ValueError):  # what another device computes, this one may not
                continue
            key = _way(row.setup), row.setup.micro_batch
            self.measured[key] = Measured(times, step, _flops_of_one(row))
        threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
        if self.measured:
            self.words = (
                f"Seconds: {len(self.measured)} of {len(rows)} settings were trained for a moment on this machine ({threads}), with the range of "
                "the repeats; the others are told from their nearest neighbour by FLOPs, with a wider range."
            )
        else:
            self.rate = _rate_of_products()
            self.words = (
                f"Seconds: the model is too large to be tried here, so they are from this machine's matrix products ({self.rate / 1e9:,.0f} GFLOP/s, "
                f"{threads}), of which a training is taken to get {PRODUCTS[-1]:.0%} to {PRODUCTS[0]:.0%}; that is a guess."
            )

    def seconds(self, row) -> Seconds | None:
        """Of one optimizer step."""
        setup = row.setup
        if not self.measured:
            return Seconds(*(row.run.flops / (share * self.rate) for share in PRODUCTS))
        way, size = _way(setup), setup.micro_batch
        if found := self.measured.get((way, size)):
            each = min(found.times), statistics.median(found.times), max(found.times)
            return Seconds(*(setup.accumulation_steps * one + found.step for one in each))
        _, nearest = min(
            self.measured.items(),
            key=lambda item: (item[0][0] != way, abs(item[0][1] - size)),
        )
        # FLOPs of a smaller micro-batch take no less time each.
        whole = statistics.median(nearest.times) * row.run.flops / nearest.flops + nearest.step
        return Seconds(0.6 * whole, whole, 1.6 * whole)


def _flops_of_one(row):
    return row.run.flops / row.setup.accumulation_steps


def _way(setup):
    return replace(
        setup, micro_batch=1, accumulation_steps=1, devices=1, local_steps=None, model=""
    )


def _measure(subject, setup):
    """Seconds of each repeat of a micro-batch, and of an optimizer step, of a model that is really there."""
    gc.collect()  # not between the repeats, where it would take longer than they do
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        module = copy.deepcopy(subject.make(setup)).train()
        enable_checkpointing(module, setup.checkpointing)
        module = add_adapters(module, setup.lora)
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        optimizer = OPTIMIZERS[setup.optimizer](trained)
        batch = subject.batch(setup)
        dtype = AUTOCAST[setup.precision]

        def micro_batch():
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = subject.loss(module, batch)
            loss.backward()

        _timed(micro_batch)
        times = [_timed(micro_batch) for _ in range(REPEATS)]
        optimizer.step()  # the first one makes the state
        return times, _timed(optimizer.step)


def _timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _rate_of_products():
    """FLOP/s of a product of matrices such as a large layer makes."""
    a, b = torch.rand(512, 2048), torch.rand(2048, 2048)
    a @ b
    return 2 * 512 * 2048 * 2048 / min(_timed(lambda: a @ b) for _ in range(5))
