"""How long moving a control of the explorer and stepping the player take: median against the limit of 150 ms.

python benchmarks/explorer_redraw.py [--short]
"""

import argparse
import statistics
import time
from dataclasses import replace

from trainlean.costs.links import traffic
from trainlean.costs.runs import CATEGORIES, Run
from trainlean.pictures.explorer import explorer
from trainlean.pictures.explorer_state import FIXED_MEMORY
from trainlean.pictures.player import player
from trainlean.recordings.loops import record

LIMIT = 0.150


def run(micro_batch: int, accumulation_steps: int, checkpointing: str) -> Run:
    """A made-up run with a plausible shape: memory grows with the micro-batch, throughput levels off."""
    kept, pace = (1.0, 1.0) if checkpointing == "off" else (0.3, 0.75)
    peak = (8, 8, 16, 6 * micro_batch * kept, 2 + 0.2 * micro_batch)
    speed = 360 * pace * (1 - 0.5 / micro_batch) - accumulation_steps
    samples = micro_batch * accumulation_steps
    settings = {
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "checkpointing": checkpointing,
    }
    sizes = {category: int(size * 2**20) for category, size in zip(CATEGORIES, peak, strict=True)}
    return Run(f"{settings}", settings, sizes, (samples / speed,), samples)


def communicating(micro_batch: int, local_steps: int | None) -> Run:
    """The same on two devices: DDP, or Local SGD with an average after every `local_steps` of 32 steps."""
    base = run(micro_batch, 16 // micro_batch, "off")
    sends = 32 // (local_steps or 1)
    messages, sent = traffic("all-reduce", sends * 5_000_000, 2)
    count = {
        "calls": sends,
        "payload": sends * 5_000_000,
        "messages": sends * messages,
        "sent": sent,
    }
    settings = base.settings | {"devices": 2, "local_steps": local_steps}
    return replace(
        base,
        name=f"{settings}",
        settings=settings,
        optimizer_steps=32,
        samples=32 * 16,
        seconds=(32 * base.seconds[0],),
        collectives={"all-reduce": count},
    )


def loop(batches, k):
    weight = 2.0
    gradient = 0.0
    for i, x in enumerate(batches):
        gradient += x / k
        if (i + 1) % k == 0:
            weight -= 0.1 * gradient
            gradient = 0.0
    return weight


def seconds(moves, short: bool) -> list[float]:
    """The seconds that each move takes, from the control's new value to the new PNG; of two moves in the short form."""
    taken = []
    for move in moves[:2] if short else moves:
        start = time.perf_counter()
        move()
        taken.append(time.perf_counter() - start)
    return taken


def report(name: str, taken: list[float]) -> float:
    """Print a control's times; the median's share of the limit."""
    median = statistics.median(taken)
    share = median / LIMIT
    print(
        f"{name:28} median {median * 1e3:6.1f} ms, slowest {max(taken) * 1e3:6.1f} ms, {share:5.2f} of the limit"
    )
    return share


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description="How long moving a control of the explorer takes.")
    parser.add_argument("--short", action="store_true", help="two moves of each control")
    short = parser.parse_args(arguments).short
    grid = [
        run(m, a, c)
        for m in (1, 2, 4, 8, 16, 32)
        for a in (1, 2, 4, 8, 16)
        for c in ("off", "every layer")
    ]
    widget = explorer(grid, budget=150 * 2**20)

    def turn(control, values):
        return [lambda value=value: setattr(control, "value", value) for value in values]

    batches = [1, 2, 4, 8, 16, 32] * 5
    print(
        f"{len(grid)} runs, limit {LIMIT * 1e3:.0f} ms from a control's new value to the new picture"
    )
    shares = []

    def move(name, moves):
        shares.append(report(name, seconds(moves, short)))

    move("micro-batch, fixed batch", turn(widget.controls["micro_batch"], batches))
    widget.mode.value = FIXED_MEMORY
    move("micro-batch, fixed memory", turn(widget.controls["micro_batch"], batches))
    move("budget", turn(widget.budget, range(20, 50)))
    talking = [communicating(m, h) for m in (1, 2, 4, 8, 16) for h in (None, 1, 2, 4, 8, 16, 32)]
    network = explorer([*grid, *talking], budget=150 * 2**20)
    network.choose(network.shown_runs()[-1])
    move("local steps", turn(network.controls["local_steps"], ["DDP", 1, 2, 4, 8, 16, 32] * 4))
    move(
        "latency of the link",
        turn(network.network.latency, [10 ** (i / 10) for i in range(-20, 10)]),
    )
    move("devices", turn(network.network.devices, [2, 8, 64, 512, 4096] * 4))
    watch = {
        "weight": lambda v: v["weight"],
        "gradient": lambda v: v["gradient"],
        "micro-batch": lambda v: v["i"],
    }
    replay = player(record(loop, [1.0, 2.0, 0.5, 1.5] * 2, 4, watch=watch), step=1)
    move("step of the player", [lambda: replay.buttons["forward"].click()] * 30)
    print(f"the slowest control takes {max(shares):.2f} of the limit of {LIMIT * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
