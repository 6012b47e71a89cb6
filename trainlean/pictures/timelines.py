"""Memory by category over the time of a training; what is compared stands side by side on one scale."""

from collections.abc import Mapping
from itertools import groupby
from textwrap import wrap

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from trainlean.costs.runs import CATEGORIES, MiB
from trainlean.pictures.memory import category_legend
from trainlean.pictures.style import (
    COLOURS,
    INK,
    OTHER_PHASE,
    PHASES,
    SOFT,
    Picture,
    course_style,
    mib,
)

# What a phase is called where its strip has no room for its name; an optimizer's step is a step.
SHORT = {
    "forward": ("forward", "fwd", "F"),
    "backward": ("backward", "bwd", "B"),
    "optimizer step": ("optimizer step", "step", "S"),
}


def plot_timeline(timeline) -> Picture:
    """Memory by category against the operation index, with forward, backward and step marked; below it the peak in words.

    `timeline` is a `Meter`, or its timeline: a list of (phase, bytes by category), one entry per operation or per
    group of operations. A dictionary of such by name puts them side by side, on one scale of memory.
    """
    named = timeline if isinstance(timeline, Mapping) and timeline else {"": timeline}
    timelines = {name: list(getattr(one, "timeline", one)) for name, one in named.items()}
    width = 7.8 if len(timelines) == 1 else 9.8
    with course_style():
        picture = Picture(width, 4.1, "; ".join(_words(*one) for one in timelines.items()))
        panels = list(picture.subplots(1, len(timelines), sharey=True, squeeze=False)[0])
        picture.subplots_adjust(
            left=0.78 / width, right=1 - 0.2 / width, bottom=0.28, top=0.76, wspace=0.06
        )
        picture.text(
            0.1 / width, 0.955, "Memory over time, by category", weight="bold", size=11, va="center"
        )
        for axes, (name, moments) in zip(panels, timelines.items(), strict=True):
            _panel(axes, name, moments)
        panels[0].set_ylabel("memory (MiB)")
        panels[0].yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panels[0].yaxis.set_major_locator(MaxNLocator(5))
        sizes = [sizes for moments in timelines.values() for _, sizes in moments]
        panels[0].set_ylim(
            0, 1.16 * max([sum(one.values()) for one in sizes], default=0) / MiB or 1
        )
        category_legend(picture, 0.89, [c for c in CATEGORIES if any(one.get(c) for one in sizes)])
    return picture


def _words(name: str, moments: list) -> str:
    phases = sum(1 for _ in groupby(phase for phase, _ in moments))
    of = f" of {name}" if name else ""
    peak = f"; {_peak(moments)}" if moments else ""
    return f"memory over time{of}: {len(moments)} moments in {phases} phases{peak}"


def _peak(moments: list) -> str:
    """Where the peak lies and what it consists of: `peak 59 MiB in backward: activations 40 MiB, weights 19 MiB`."""
    phase, sizes = max(moments, key=lambda moment: sum(moment[1].values()))
    largest = sorted(((size, name) for name, size in sizes.items() if size), reverse=True)
    parts = ", ".join(f"{name} {mib(size)}" for size, name in largest)
    return f"peak {mib(sum(sizes.values()))} in {phase}: {parts}"


def _panel(axes, name: str, moments: list):
    """One timeline, its name above and its peak in words below; the height of the axes is set for all together."""
    axes.set_xlabel(f"{len(moments)} moments, in the order of the operations", size=8.5)
    if name:
        axes.text(0, 1.115, name, transform=axes.transAxes, weight="bold", size=9.5, va="bottom")
    if not moments:
        axes.text(0.5, 0.5, "Nothing recorded.", transform=axes.transAxes, ha="center", color=SOFT)
        return
    layers = [[sizes.get(c, 0) / MiB for _, sizes in moments] for c in CATEGORIES]
    totals = [sum(column) for column in zip(*layers, strict=True)]
    axes.stackplot(
        range(len(moments) + 1),
        [layer + layer[-1:] for layer in layers],
        colors=list(COLOURS.values()),
        step="post",
        lw=0,
    )
    axes.set_xlim(0, len(moments))
    at = totals.index(max(totals))
    side = "right" if at > 0.7 * len(moments) else "left"
    axes.plot(at + 0.5, totals[at], "o", ms=4.5, color=INK, clip_on=False, zorder=5)
    axes.annotate(
        f"peak {mib(totals[at] * MiB)}",
        (at + 0.5, totals[at]),
        (-7 if side == "right" else 7, 5),
        textcoords="offset points",
        ha=side,
        weight="bold",
        size=9,
    )
    _phase_strip(axes, [(phase, len(list(part))) for phase, part in groupby(p for p, _ in moments)])
    inches = axes.bbox.width / axes.figure.dpi
    sentence = _peak(moments)
    axes.text(
        0,
        -0.26,
        "\n".join(wrap(f"{sentence[0].upper()}{sentence[1:]}.", int(15 * inches))),
        transform=axes.transAxes,
        va="top",
        size=8.5,
        linespacing=1.4,
    )


def _phase_strip(axes, phases: list[tuple[str, int]]):
    """A strip above the axes that names the phases, in a letter where there is no more room."""
    start, length = 0, sum(count for _, count in phases)
    across = axes.get_xaxis_transform()
    room = axes.bbox.width * 72 / axes.figure.dpi
    for name, count in phases:
        axes.add_patch(
            Rectangle(
                (start, 1.02),
                count,
                0.07,
                transform=across,
                clip_on=False,
                facecolor=PHASES.get(name, OTHER_PHASE),
                edgecolor="white",
                lw=1,
            )
        )
        if start:
            axes.axvline(start, color="white", lw=0.8, alpha=0.6)
        names = SHORT.get(name, (name, name[:1]))
        fitting = (text for text in names if len(text) * 4.6 + 4 < room * count / length)
        axes.text(
            start + count / 2,
            1.052,
            next(fitting, names[-1]),
            transform=across,
            ha="center",
            va="center",
            size=8,
            color="white" if name == "optimizer step" else INK,
        )
        start += count
