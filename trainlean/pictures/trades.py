"""Memory against FLOPs, speed and communication: what a technique gives and what it takes."""

from collections.abc import Sequence
from typing import Any

from trainlean.costs.runs import MiB, Run
from trainlean.pictures.style import (
    ALARM,
    COLOURS,
    FAINT,
    INK,
    LINES,
    PLAIN,
    SOFT,
    Picture,
    course_style,
)


def plot_segments(
    chains: dict[str, dict[int, tuple[int, int]]],
    *,
    layers: int,
    boundary: int,
    kept: dict[str, int],
    work: dict[str, int],
) -> Picture:
    """Activations and FLOPs of a checkpointed chain by its number of segments, beside the formula.

    `chains`: kind of layer to {segments: (bytes, FLOPs)}, measured. The formula, in bytes: work + (k - 1) x boundary
    + layers / k x kept, for k segments; `kept`, the bytes of one plain layer, and `work` are given for each kind. A dotted
    line is its least, at the square root that Chen, Xu, Zhang and Guestrin found (2016, arXiv:1604.06174).
    """
    with course_style():
        picture = Picture(9, 5, f"activations and FLOPs by segments: {', '.join(chains)}")
        picture.set_layout_engine("constrained")
        axes = picture.subplots(2, len(chains), sharex=True, height_ratios=(1.7, 1), squeeze=False)
        fine = [k / 10 for k in range(10, 10 * layers + 1)]
        for (kind, measured), (top, bottom) in zip(chains.items(), axes.T):
            formula = [work[kind] + (k - 1) * boundary + layers / k * kept[kind] for k in fine]
            top.plot(fine, [size / 1024 for size in formula], color=INK, lw=1, label="formula")
            sizes = [size / 1024 for size, _ in measured.values()]
            top.plot(list(measured), sizes, "o", color=COLOURS["activations"], label="measured")
            top.axvline((layers * kept[kind] / boundary) ** 0.5, color=INK, lw=0.8, ls=":")
            top.set(
                title=f"{kind}: a plain layer keeps {kept[kind] // boundary} x boundary",
                ylabel="activations (KiB)",
                ylim=(0, None),
            )
            top.legend(frameon=False)
            flops = [flops / 1e6 for _, flops in measured.values()]
            bottom.plot(list(measured), flops, "o-", color=INK, lw=1)
            bottom.set(xlabel="segments", ylabel="MFLOP", ylim=(0, 1.2 * flops[-1]))
            bottom.set_xticks(list(measured))
    return picture


def plot_budgets(curve: dict[float, tuple[int, int]]) -> Picture:
    """What a compiler keeps by its memory budget: `curve` maps the budget, 0 to 1, to (bytes kept, FLOPs of backward)."""
    with course_style():
        picture = Picture(6, 3.4, f"kept and recomputed by budget: {', '.join(map(str, curve))}")
        picture.set_layout_engine("constrained")
        axes = picture.subplots()
        sizes = [size / MiB for size, _ in curve.values()]
        flops = [flops / 1e6 for _, flops in curve.values()]
        axes.plot(sizes, flops, "o-", color=INK, lw=1)
        for i, (budget, place) in enumerate(zip(curve, zip(sizes, flops))):
            below = i > 0 and flops[i] == flops[i - 1]  # beside its neighbour's, not on the line
            axes.annotate(f"{budget}", place, (5, -13 if below else 5), textcoords="offset points")
        axes.set(
            xlabel="kept between forward and backward (MiB)",
            ylabel="backward (MFLOP)",
            title="What the compiler keeps, by budget",
            ylim=(0, 1.2 * max(flops)),
        )
    return picture


def plot_checkpointed_layers(
    front: Sequence[Run], published: dict[str, tuple[Run, Run]], context: float
) -> Picture:
    """Predicted peaks against FLOPs, and published peaks beside them.

    `front` are predicted runs, named every_n_layers=...; `context` is what the driver takes, in MiB. `published` maps a
    label to (predicted run, published run): the dot is at the FLOPs of the one and the peak of the other.
    """
    with course_style():
        picture = Picture(
            7.4, 3.8, f"memory against computation: {', '.join(run.name for run in front)}"
        )
        axes = picture.subplots()
        x = [run.flops / 1e12 for run in front]
        y = [run.peak_bytes / MiB + context for run in front]
        axes.plot(x, y, "o-", color=PLAIN, markerfacecolor="white", label="predicted")
        for run, place in zip(front, zip(x, y)):
            name = run.name.replace("every_n_layers", "n")
            axes.annotate(name, place, xytext=(-5, -13), textcoords="offset points", ha="right")
        for marker, (label, (ours, theirs)) in zip("Ds", published.items()):
            place = ours.flops / 1e12, theirs.peak_bytes / MiB
            axes.plot(*place, marker, color=ALARM, label=f"published: {label}")
        axes.set(
            xlabel="TFLOP for one optimizer step (4 sequences)",
            ylabel="predicted peak + context (MiB)",
            ylim=(6000, 9200),
            xlim=(3.9, 5.6),
        )
        _title(axes, "BERT-large, 1 x 4: memory against computation", 12)
        axes.legend(frameon=False)
        picture.tight_layout()
    return picture


def plot_race(races: dict[str, Sequence[Run]], labels: Sequence[str]) -> Picture:
    """Samples per second of a few runs as bars, a panel for each race; lines go from the slowest to the fastest repeat.

    `races`: title to measured runs, of which `labels` are the names, in order. The title compares the last run with the
    first, unless their lines overlap.
    """
    with course_style():
        picture = Picture(9.4, 2.8, f"samples per second: {', '.join(races)}")
        panels = picture.subplots(1, len(races), squeeze=False)[0]
        for panel, (title, runs) in zip(panels, races.items()):
            speeds = [run.samples_per_second or 0.0 for run in runs]
            lows = [run.samples / max(run.seconds) for run in runs]
            highs = [run.samples / min(run.seconds) for run in runs]
            errors = [
                [speed - low for speed, low in zip(speeds, lows)],
                [high - speed for speed, high in zip(speeds, highs)],
            ]
            colours = [PLAIN, FAINT, LINES[2]][: len(runs)]
            panel.barh(range(len(runs)), speeds, color=colours, xerr=errors, capsize=3)
            overlap = lows[-1] <= highs[0] and lows[0] <= highs[-1]
            faster = f"{speeds[-1] / speeds[0]:.2f} x as fast\nat the same memory"
            panel.set_yticks(range(len(runs)), labels)
            panel.invert_yaxis()
            panel.tick_params(axis="y", labelcolor=INK)
            panel.set_xlabel("samples/second")
            _title(panel, f"{title}: {'too noisy to tell' if overlap else faster}")
        picture.tight_layout()
    return picture


def plot_techniques(runs: Sequence[Run]) -> Picture:
    """Memory (MiB) against communication (MiB a step), with arrows from each run to the next; a dot's size is its FLOPs beside the first's.

    Each run has counted its collectives and optimizer steps.
    """
    sent = [run.collectives["all-reduce"]["payload"] / run.optimizer_steps / MiB for run in runs]
    memory = [run.peak_bytes / MiB for run in runs]
    colours = [PLAIN, LINES[2], LINES[5], LINES[0]]
    places = [("left", (14, -4)), ("right", (-14, -6)), ("left", (14, -10)), ("left", (-4, -38))]
    arrow = {"arrowstyle": "->", "color": SOFT, "shrinkA": 9, "shrinkB": 9, "linewidth": 1.4}
    with course_style():
        picture = Picture(
            8.6, 4.6, f"memory, communication, computation: {', '.join(run.name for run in runs)}"
        )
        axes = picture.subplots()
        points = list(zip(sent, memory))
        for here, there in zip(points, points[1:]):
            axes.annotate("", xy=there, xytext=here, arrowprops=arrow)
        for i, (run, point) in enumerate(zip(runs, points)):
            colour, (side, offset) = colours[i % 4], places[i % 4]
            more = run.flops / runs[0].flops
            axes.scatter(*point, s=160 * more, color=colour, zorder=3)
            words: dict[str, Any] = {"ha": side, "fontsize": 9.5, "color": colour}
            text = f"{run.name}\n{more:.2f} x the FLOPs"
            axes.annotate(text, point, xytext=offset, textcoords="offset points", **words)
        axes.set(
            xlabel="communication: MiB handed over by a rank for each optimizer step",
            ylabel="memory: peak of a rank (MiB)",
            xlim=(0, 1.45 * max(sent)),
            ylim=(0, 1.15 * max(memory)),
        )
        heading = "Down: memory. Left: communication. The size of a dot: computation."
        axes.set_title(heading, loc="left", fontsize=10.5, weight="normal", pad=6)
        picture.tight_layout()
    return picture


def plot_micro_batches(
    measured: Sequence[Run], needed: dict[str, Sequence[float]], card: float
) -> Picture:
    """Speed measured and memory predicted for one batch, cut into smaller and larger micro-batches.

    `measured` are runs of growing micro-batches; `needed` maps "plain" and "checkpointed" to bytes, one for each of these
    micro-batches; `card` is the memory of a card in bytes.
    """
    micro_batches = [run.settings["micro_batch"] for run in measured]
    with course_style():
        picture = Picture(9.4, 3.2, f"speed and memory by micro-batch: {', '.join(needed)}")
        left, right = picture.subplots(1, 2)
        left.plot(micro_batches, [run.samples_per_second for run in measured], "o-", color=PLAIN)
        left.set(ylabel="samples/second", ylim=(0, None))
        _title(left, "small BERT, speed measured here", 12)
        styles = ((PLAIN, (-8, 4), "right"), (LINES[2], (0, -17), "center"))
        for (name, sizes), (colour, offset, side) in zip(needed.items(), styles):
            gib = [size / 2**30 for size in sizes]
            right.plot(micro_batches, gib, "D-", mfc="white", color=colour)
            place, words = (micro_batches[2], gib[2]), {"color": colour, "ha": side}
            right.annotate(name, place, xytext=offset, textcoords="offset points", **words)
        right.axhline(card / 2**30, color=ALARM, ls="--", lw=1)
        place, words = (micro_batches[0], card / 2**30), {"color": ALARM}
        right.annotate("card of 16 GB", place, xytext=(0, 4), textcoords="offset points", **words)
        right.set(yscale="log", ylim=(5, 160), ylabel="GiB with context")
        right.set_yticks((8, 16, 32, 64, 128), (8, 16, 32, 64, 128))
        _title(right, "BERT-large, memory predicted", 12)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xticks(micro_batches, [run.name for run in measured])
            axes.minorticks_off()
            axes.set_xlabel("micro-batch x accumulation steps")
        picture.tight_layout()
    return picture


def _title(panel, text, size=10):
    panel.set_title(text, loc="center", fontsize=size, weight="normal", pad=6)
