"""What communication costs on a network that is not there: counted calls and bytes, turned into time by a model.

The settings of a run that communicates: `devices` (the world_size), `local_steps` (H: optimizer steps between two averages
of the parameters; None for DDP, which averages gradients in every step). `micro_batch` and `accumulation_steps` are those
of one device. What was sent is in `Run.collectives`, by kind: {"calls", "payload", "messages", "sent"}, of one rank in one
whole training; `payload` is what was handed over, `messages` and `sent` what the algorithm below makes of it.

Sources: a message's time is the alpha-beta model (alpha: latency, beta: seconds per byte) of Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", International Journal of High Performance Computing
Applications 19(1), 2005, which has the binomial trees as well; its gamma, the time to add numbers up, is left out. The ring
is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of Parallel and
Distributed Computing 69(2), 2009. DDP's buckets and their overlap: Li and others, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", Proceedings of the VLDB Endowment 13(12), 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from trainlean.costs.runs import COLLECTIVE_COUNTS, MiB

FIRST_BUCKET, BUCKET = (
    1 * MiB,
    25 * MiB,
)  # torch's DDP: the first bucket is small, so that the first all-reduce starts early
BACKWARD = (
    2 / 3
)  # of a micro-batch's computation: the backward pass does about twice the work of the forward pass

ASSUMPTIONS = """\
- A message takes the link's latency plus its bytes divided by the link's bandwidth; every rank sends and receives at the same time.
- An all-reduce among N ranks is a ring: 2(N-1) messages one after the other, each an N-th of the payload, so that every rank \
sends 2(N-1)/N of the payload.
- gloo, which averages on processors, asks the receiver before each half of the ring: two more latencies per all-reduce (`Link(..., gloo=True)`; seen over a throttled link between two processes, assumed for more).
- All links are alike, nobody else uses them, nothing is lost, and all ranks arrive at the same moment.
- DDP sends its buckets while the backward pass still runs, and the backward pass is two thirds of a micro-batch's computation; \
a bucket is sent when its share of the backward pass is done and the bucket before it is through. Computing and sending do not slow each other.
- Local SGD averages after the optimizer's step, when nothing else can be done: all of its communication is waited for.
- Computing takes the same time on every rank, whatever the number of ranks."""


@dataclass(frozen=True)
class Link:
    """A network connection between neighbours in the ring: `latency` in seconds per message, `bandwidth` in bytes/second.

    `gloo`: whether gloo sends, as it does between processors. A sender then waits for the receiver's permission, one more latency
    in each half of an all-reduce and in each message of a barrier, and two of DDP's buckets are under way at once, so that their
    latencies pass together (both measured with two ranks: benchmarks/link_model.py). Without it calls follow each other.
    ValueError: a latency below 0, or no bandwidth.
    """

    latency: float
    bandwidth: float
    name: str = ""
    gloo: bool = False

    def __post_init__(self):
        if not self.latency >= 0 or not self.bandwidth > 0:
            raise ValueError(
                "A link needs a latency of 0 seconds or more and a bandwidth above 0 bytes/s, "
                f"not {self.latency!r} and {self.bandwidth!r}."
            )

    def __str__(self):
        return self.name or f"{_latency(self.latency)}, {_bandwidth(self.bandwidth)}"


# Round figures for the order of magnitude, of no particular product: measure your own link before you rely on one.
LINKS = (
    Link(5e-6, 200e9, "within a server (NVLink)"),
    Link(20e-6, 3e9, "data centre (25 Gbit/s Ethernet)"),
    Link(200e-6, 125e6, "office (1 Gbit/s Ethernet)"),
    Link(10e-3, 5e6, "home (40 Mbit/s upload)"),
    Link(75e-3, 12.5e6, "between continents (100 Mbit/s)"),
)


def _latency(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _bandwidth(rate: float) -> str:
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate:.3g} B/s"


# Counting: what one call makes of its payload


def traffic(kind: str, payload: float, world_size: int) -> tuple[int, float]:
    """Messages and bytes that one rank sends in one call: the busiest rank's, where they are not alike.

    all-reduce: a ring, 2(N-1) messages of an N-th each; reduce-scatter: half of that; all-gather: a ring, N-1 messages of the
    whole payload; all-to-all: N-1 messages of an N-th; send: one message; barrier: log2 N messages without bytes; every other
    kind (broadcast, reduce, gather, scatter): a binary tree, log2 N messages of the whole payload. One rank alone sends nothing.
    Bytes are a float: an N-th of a payload need not be whole. ValueError: fewer than 1 rank.
    """
    if world_size < 1:
        raise ValueError(f"A collective has 1 rank or more, not {world_size!r}.")
    others = world_size - 1
    deep = ceil(log2(world_size))
    if kind == "all-reduce":
        return 2 * others, 2 * others / world_size * payload
    if kind == "reduce-scatter":
        return others, others / world_size * payload
    if kind in ("all-gather", "all-to-all"):
        return others, others * payload / (world_size if kind == "all-to-all" else 1)
    if kind == "barrier":
        return deep, 0.0
    if kind == "send":
        return min(1, others), float(payload if others else 0)
    return deep, float(deep * payload)


def communication_table(runs, *, by_kind: bool = True):
    """What one rank sent in a whole training, as a DataFrame of exact counts: one row per run and kind of collective.

    `runs`: runs, or {name: meter or run}. Columns: run, collective, optimizer steps, calls, messages, payload bytes, bytes sent
    (by `traffic`), and those per optimizer step. `by_kind=False` adds the kinds up: one row per run, runs without communication included.
    """
    import pandas

    named = runs.items() if isinstance(runs, dict) else [(run.name, run) for run in runs]
    rows = []
    for name, run in named:
        kinds = run.collectives if by_kind else {"all": total(run.collectives)}
        for kind, count in kinds.items():
            rows.append(
                {
                    "run": name,
                    "collective": kind,
                    "optimizer steps": run.optimizer_steps,
                    "calls": count["calls"],
                    "messages": count["messages"],
                    "payload bytes": count["payload"],
                    "bytes sent": round(count["sent"]),
                    "bytes per step": round(count["sent"] / run.optimizer_steps)
                    if run.optimizer_steps
                    else "–",
                }
            )
    columns = [
        "run",
        "collective",
        "optimizer steps",
        "calls",
        "messages",
        "payload bytes",
        "bytes sent",
        "bytes per step",
    ]
    table = pandas.DataFrame(rows, columns=columns)
    return table if by_kind else table.drop(columns="collective")


def total(collectives: dict) -> dict:
    """The counts (`COLLECTIVE_COUNTS`) of all kinds of `Run.collectives`, added up."""
    return {name: sum(count[name] for count in collectives.values()) for name in COLLECTIVE_COUNTS}


# The model: from counts to seconds


def all_reduce_seconds(payload: float, world_size: int, link: Link) -> float:
    """Seconds of one ring all-reduce of `payload` bytes among N = `world_size` ranks (Patarasuk and Yuan 2009).

    2(N-1) latencies, and 2(N-1)/N of the payload through the link. ValueError: fewer than 1 rank.
    """
    return _seconds("all-reduce", 1, payload, world_size, link)


def communication_seconds(collectives: dict, link: Link, world_size: int) -> float:
    """Seconds that counted collectives (`Run.collectives`: calls and payload bytes) take one after the other.

    Among `world_size` ranks, which may be others than were counted. ValueError: fewer than 1 rank.
    """
    return sum(
        _seconds(kind, count["calls"], count["payload"], world_size, link)
        for kind, count in collectives.items()
    )


def _seconds(kind: str, calls: int, payload: float, world_size: int, link: Link) -> float:
    # The bytes are linear in the payload: of all calls together.
    messages, sent = traffic(kind, payload, world_size)
    if link.gloo and world_size > 1:
        messages += {"all-reduce": 2, "barrier": messages}.get(kind, 1)
    return calls * messages * link.latency + sent / link.bandwidth


def buckets_of(payload: float) -> list[float]:
    """DDP's buckets for gradients of `payload` bytes, in the order of sending; parameters are not cut, so the real ones differ a little.

    Bytes each: FIRST_BUCKET, then BUCKET, torch's defaults (Li and others 2020).
    """
    sizes = [min(payload, FIRST_BUCKET)]
    while payload - sum(sizes) > 0.5:
        sizes.append(min(payload - sum(sizes), BUCKET))
    return sizes


def ddp_step_seconds(
    compute: float, payload: float, world_size: int, link: Link, *,
    accumulation_steps: int = 1, buckets: Sequence[float] | None = None, overlap: bool = True,
) -> float:  # fmt: skip
    """Seconds of one optimizer step under DDP: `compute` seconds of computation, gradients of `payload` bytes averaged in buckets.

    With `overlap` a bucket is sent while the last micro-batch's backward pass still works on the later ones. `buckets`: their
    bytes in the order of sending; without them torch's default sizes. ValueError: fewer than 1 rank.
    """
    sizes = buckets_of(payload) if buckets is None else list(buckets)
    backward = BACKWARD * compute / accumulation_steps if overlap else 0.0
    whole, filled, done = sum(sizes) or 1, 0.0, 0.0
    at_once = 2 if link.gloo else 1
    for first in range(0, len(sizes), at_once):
        together, ready = sizes[first : first + at_once], []
        for size in together:
            filled += size
            ready.append(compute - backward * (1 - filled / whole))
        # They share the link and end together; the last cannot end before it is ready and sent.
        shared = max(done, ready[0]) + all_reduce_seconds(sum(together), world_size, link)
        done = max(shared, ready[-1] + all_reduce_seconds(together[-1], world_size, link))
    return max(compute, done)


def local_sgd_step_seconds(
    compute: float,
    payload: float,
    world_size: int,
    link: Link,
    local_steps: int,
    *,
    tensors: int = 1,
) -> float:
    """Seconds of one optimizer step of Local SGD: `compute` seconds, and the average after every `local_steps` (H) spread over them.

    `payload`: bytes of the parameters that are averaged. ValueError: fewer than 1 rank, local step or tensor.
    `tensors`: calls per average; 1 for one flat buffer, the number of parameters where each is averaged by itself.
    """
    if local_steps < 1 or tensors < 1:
        raise ValueError(
            f"local_steps and tensors are whole numbers from 1 on, not {local_steps!r} and {tensors!r}."
        )
    average = tensors * all_reduce_seconds(payload / tensors, world_size, link)
    return compute + average / local_steps


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, modelled: `compute`, and what `communication` adds to it."""

    compute: float
    communication: float

    @property
    def seconds(self) -> float:
        """The whole step, in seconds."""
        return self.compute + self.communication


def step_time(
    run, link: Link, *, world_size: int | None = None, compute: float | None = None
) -> StepTime:
    """The time of one optimizer step of a counted run on `link`, among `world_size` (default: as many as the run had).

    `compute`: seconds of computation per optimizer step; without it the run's own median time, which contains the
    communication that it had. A run with `local_steps` waits for all of its communication; DDP overlaps with the backward pass.
    ValueError without `compute` for a run that has no time or no optimizer steps.
    """
    if compute is None:
        if not run.seconds or not run.optimizer_steps:
            raise ValueError(
                f"Run {run.name!r} was not timed: measure it, or say compute=... in seconds per optimizer step."
            )
        compute = run.median_seconds / run.optimizer_steps
    world_size = world_size or run.settings.get("devices") or 1
    steps = max(1, run.optimizer_steps)
    communication = communication_seconds(run.collectives, link, world_size) / steps
    if run.settings.get("local_steps") is None and (count := run.collectives.get("all-reduce")):
        per_step = [count["payload"] / count["calls"]] * max(1, round(count["calls"] / steps))
        seconds = ddp_step_seconds(
            compute,
            0,
            world_size,
            link,
            buckets=per_step,
            accumulation_steps=run.settings.get("accumulation_steps", 1),
        )
        hidden = sum(all_reduce_seconds(size, world_size, link) for size in per_step) - (
            seconds - compute
        )
        communication = max(0.0, communication - hidden)
    return StepTime(compute, communication)
