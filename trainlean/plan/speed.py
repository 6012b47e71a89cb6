"""How long an optimizer step takes: from one short training on this machine, or from what a card's data sheet says.

Both come with their range. Memory and FLOPs of a plan are exact, its seconds are not: they order the rows.
"""

import copy
import gc
import math
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
REPEATS = 8  # of the settings that look quickest
LIKELY = 4  # so many of them are measured again and again, in turn
SHORT_STEP = 2e10  # FLOPs of a micro-batch that says what a way of training takes: half a second on two cores
PRODUCTS = (1.0, 0.6, 0.3)  # shares of the speed of matrix products, where nothing better is known
LARGEST_STEP = 1e11  # FLOPs of a micro-batch that is still measured: some seconds on two cores


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
# Shares of the peak: at best, as expected, at worst. Published trainings in half precision reached 21 to 46 % (GPT-3, Gopher,
# Megatron-Turing NLG, PaLM: Chowdhery and others, "PaLM", arXiv:2204.02311, table 3), plain loops as in this course on an H100 17 to
# 39 % with sdpa, and 53 to 66 % in float32, whose units matrix products keep busy (data/measured_h100.json; eager attention in bf16
# is below: 4 to 16 %, since it waits for memory).
SHARES = {"fp32": (0.7, 0.5, 0.25), "fp16": (0.5, 0.35, 0.15), "bf16": (0.5, 0.35, 0.15)}


def _range(precision):
    best, _, worst = SHARES[precision]
    return f"{best:.0%} and {worst:.0%}"


class CardSpeed(Speed):
    """Seconds from a card's peak FLOP/s and the bandwidth of its memory.

    Every micro-batch reads the weights twice and adds to the gradients; the step reads and writes weights and state once.
    ValueError: a card that CARDS does not have.
    """

    def __init__(self, name: str):
        if name.lower().replace(" ", "") not in CARDS:
            raise ValueError(f"The card is one of {', '.join(CARDS)}, not {name!r}.")
        self.card = CARDS[name.lower().replace(" ", "")]
        self.words = (
            f"Seconds are between {_range('bf16')} of the {self.card.name}'s peak FLOP/s ({_range('fp32')} in fp32), and what its memory's "
            f"bandwidth adds ({self.card.source}); they are no measurement."
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
            row.run.flops / (share * rate) + moved / self.card.bandwidth
            for share in SHARES[setup.precision]
        )
        return Seconds(best, expected, worst)


class MeasuredSpeed(Speed):
    """Seconds on this machine, from optimizer steps that are trained a few times, as far as MEASURING reaches.

    First each way of training is measured at a few micro-batches; seconds a sample of those between are on the line in the
    logarithm of the size, and another way's are told by FLOPs. Then those that look quickest are measured again, in turn, so
    that what the machine does beside falls on all of them alike. A model that is too large for this machine is not made:
    then the speed of its matrix products stands for it.
    """

    def __init__(self, subject: Subject):
        self.subject = subject
        self.times: dict[tuple, list[float]] = {}  # seconds of a step by way and micro-batch
        self.known: dict[tuple, tuple[float, float]] = {}  # of those rows: samples, FLOPs
        self.rate = 0.0  # FLOP/s of matrix products, where the model was too large

    def prepare(self, rows) -> None:
        """Measure rows, each way of training first and then the quickest, as far as the time reaches."""
        free = psutil.virtual_memory().available
        able = [r for r in rows if r.needed < free / 2 and _flops_of_one(r) < LARGEST_STEP]
        trainings = _Trainings(self.subject, free / 2)
        for row in _telling(able):
            if self.times and trainings.spent > 2 / 3 * MEASURING:
                break
            before = trainings.spent
            self._measure(row, trainings)
            if REPEATS > 1 and trainings.spent - before < MEASURING / 10:
                self._measure(row, trainings)  # the first one was also a warm-up
        while self.times and trainings.spent < MEASURING:
            likely = sorted(able, key=lambda row: self.seconds(row).expected)[:LIKELY]
            again = [row for row in likely if len(self.times.get(_key(row), [])) <= REPEATS]
            if not [row for row in again if self._measure(row, trainings)]:
                break
        threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
        if self.times:
            self.words = (
                f"Seconds: {len(self.times)} of {len(rows)} settings were trained for a moment on this machine ({threads}), with the range of "
                "the repeats; the others are told from their nearest neighbours, with a wider range. What other programs took of the machine is not counted."
            )
        else:
            self.rate = _rate_of_products()
            self.words = (
                f"Seconds: the model is too large to be tried here, so they are from this machine's matrix products ({self.rate / 1e9:,.0f} GFLOP/s, "
                f"{threads}), of which a training is taken to get {PRODUCTS[-1]:.0%} to {PRODUCTS[0]:.0%}; that is a guess."
            )

    def _measure(self, row, trainings):
        """Whether one more step of this row could be timed."""
        try:
            seconds = trainings.step(row.setup)
        except (RuntimeError, ValueError):  # what another device computes, this one may not
            return False
        self.times.setdefault(_key(row), []).append(seconds)
        self.known[_key(row)] = row.setup.effective_batch, row.run.flops
        return True

    def seconds(self, row) -> Seconds:
        """Of one optimizer step on one device. Only after `prepare`."""
        if not self.times:
            return Seconds(*(row.run.flops / (share * self.rate) for share in PRODUCTS))
        if times := self._timed(_key(row)):
            once = self._spread() if len(times) == 1 else 1.0
            return Seconds(min(times) / once, statistics.median(times), max(times) * once)
        whole = row.setup.effective_batch * self._of_a_sample(row)
        return Seconds(0.6 * whole, whole, 1.6 * whole)

    def _timed(self, key):
        """Seconds of each step that was timed, without the first where there are others: it was a warm-up, too."""
        times = self.times.get(key, [])
        return times[1:] or times

    def _spread(self):
        """How far repeats lie from their median, at most, by those that have some: what a single one may be off by."""
        repeated = [times for key in self.times if len(times := self._timed(key)) > 1]
        return max(
            (max(max(t) / statistics.median(t), statistics.median(t) / min(t)) for t in repeated),
            default=1.6,
        )

    def _of_a_sample(self, row):
        """Seconds, from the neighbours in size of the same way, or by FLOPs from the nearest of another."""
        way, size = _key(row)
        same = sorted(one for one in self.times if one[0] == way)
        below = [key for key in same if key[1] < size]
        above = [key for key in same if key[1] > size]
        if below and above:
            (low, first), (high, last) = (
                (math.log(key[1]), self._sample(key)) for key in (below[-1], above[0])
            )
            return first + (last - first) * (math.log(size) - low) / (high - low)
        nearest = min(same or self.times, key=lambda key: abs(math.log(key[1] / size)))
        samples, flops = self.known[nearest]
        return self._sample(nearest) * row.run.flops / row.setup.effective_batch * samples / flops

    def _sample(self, key):
        return statistics.median(self._timed(key)) / self.known[key][0]


def _flops_of_one(row):
    return row.run.flops / row.setup.accumulation_steps


def _key(row):
    setup = row.setup
    way = replace(setup, micro_batch=1, accumulation_steps=1, devices=1, local_steps=None, model="")
    return str(way), setup.micro_batch


def _telling(rows):
    """The rows to be measured first: of each way its largest micro-batch, its smallest, then those in the middle.

    Of large models the cheapest alone: what they take grows with their FLOPs.
    """
    ways: dict[str, list] = {}
    for row in sorted(rows, key=lambda row: row.setup.micro_batch):
        ways.setdefault(_key(row)[0], []).append(row)
    turns = []
    for ordered in ways.values():
        short = [row for row in ordered if _flops_of_one(row) < SHORT_STEP] or ordered[:1]
        middle = short[1:-1]
        middle = middle[len(middle) // 2 :] + middle[: len(middle) // 2]
        turns.append([short[-1], *short[: len(short) > 1], *middle])
    return [row for turn in zip_longest(*turns) for row in turn if row]


class _Trainings:
    """Models that are trained here, one for each way; `spent` are the seconds that all of it took."""

    def __init__(self, subject, room):
        self.subject, self.room = subject, room
        self.models: dict = {}  # by way: model, optimizer, bytes
        self.spent = 0.0

    def step(self, setup) -> float:
        """Seconds of an optimizer step, of whose micro-batches at most two are computed."""
        whole = _Clock()
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.default_generator.manual_seed(0)
                model, optimizer = self._of(setup)
                batch = self.subject.batch(setup)
                return self._timed(model, optimizer, batch, setup)
        finally:
            self.spent += whole.seconds()

    def _timed(self, model, optimizer, batch, setup):
        dtype = AUTOCAST[setup.precision]
        gc.collect(0)  # what is left of the last one; not within the step
        clock, times = _Clock(), []
        for _ in range(min(2, setup.accumulation_steps)):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = self.subject.loss(model, batch)
            loss.backward()
            del loss
            times.append(clock.seconds())
        optimizer.step()
        optimizer.zero_grad()
        seconds = clock.seconds()
        return seconds + (setup.accumulation_steps - len(times)) * (times[-1] - times[0])

    def _of(self, setup):
        way = replace(
            setup, micro_batch=1, accumulation_steps=1, devices=1, local_steps=None, model=""
        )
        if way not in self.models:
            model = copy.deepcopy(self.subject.make(setup)).train()
            enable_checkpointing(model, setup.checkpointing)
            model = add_adapters(model, setup.lora)
            size = 4 * sum(weight.nbytes for weight in model.parameters())
            while self.models and size * (len(self.models) + 1) > self.room:
                self.models.pop(next(iter(self.models)))
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            self.models[way] = model, OPTIMIZERS[setup.optimizer](trained)
        return self.models[way]


class _Clock:
    """Seconds since it was made: of the wall's clock or of the processor's, whichever are fewer.

    A thread that had to wait for other programs is not slower for it; several threads take more of the processor than
    passes on the wall.
    """

    def __init__(self):
        self.began = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        wall, processor = self.began
        return min(time.perf_counter() - wall, time.process_time() - processor)


def _timed(work):
    clock = _Clock()
    work()
    return clock.seconds()


def _rate_of_products():
    """FLOP/s of a product of matrices such as a large layer makes."""
    a, b = torch.rand(512, 2048), torch.rand(2048, 2048)
    a @ b
    return 2 * 512 * 2048 * 2048 / min(_timed(lambda: a @ b) for _ in range(5))
