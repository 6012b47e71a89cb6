"""Pictures of several ranks: what each does over time, and how replicas drift apart and return."""

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from trainlean.pictures.labels import spread
from trainlean.pictures.style import (
    BAND,
    DOING,
    HATCH,
    INK,
    LINES,
    SOFT,
    Picture,
    course_style,
    rank_colour,
)
from trainlean.recordings.ranks import RankRecord, phases

MOST_LINES = 60  # between the ranks; more of them would be a curtain


def plot_ranks(records, *, title: str = "What each rank does over time") -> Picture:
    """A bar per rank over time, in seconds: computing, waiting for another rank, averaging; a tick under it for every optimizer step.

    `records`: the `RankRecord`s of one run, or {name: records} for several runs under each other on one time scale.
    Lines join the ranks where the last of them came to an all-reduce outside a backward pass.
    """
    runs = records if isinstance(records, dict) else {"": records}
    ranks = sum(len(run) for run in runs.values())
    steps = max((len(one.steps) for run in runs.values() for one in run), default=0)
    averages = " and ".join(
        str(max((len(one.averages) for one in run), default=0)) for run in runs.values()
    )
    words = f"ranks over time: {ranks} bars, {steps} optimizer steps, {averages or 0} averages of parameters"
    heads = sum(0.34 for name in runs if name)
    height = 1.55 + 0.5 * max(1, ranks) + heads + 0.16 * max(0, len(runs) - 1)
    with course_style():
        picture = Picture(8.6, height, words)
        axes = picture.add_axes((0.75 / 8.6, 0.52 / height, 1 - 1.85 / 8.6, 1 - 1.27 / height))
        picture.text(0.1 / 8.6, 1 - 0.2 / height, title, weight="bold", size=11, va="center")
        _legend(picture, height)
        y, ticks, longest = 0.0, [], 1e-9
        for name, run in runs.items():
            if name:
                y += 0.68
                axes.text(0, y - 0.18, name, weight="bold", size=9.5, va="bottom")
            top = y
            for record, line in zip(run, phases(list(run))):
                longest = max(longest, line[-1][2] if line else 0)
                _draw_rank(axes, y, record, line, run)
                ticks.append((y + 0.3, f"rank {record.rank}"))
                y += 1.0
            _join_ranks(axes, run, top, y)
            y += 0.32
        axes.set_xlim(0, longest)
        axes.set_ylim(max(y - 0.32, 0.9), -0.08)
        axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(8))
        axes.set_xlabel("seconds")
        if not ranks:
            axes.text(
                0.5, 0.5, "Nothing recorded.", transform=axes.transAxes, ha="center", color=SOFT
            )
    return picture


def _legend(picture, height):
    handles: list[Artist] = [
        Patch(
            facecolor=colour,
            edgecolor=HATCH if what == "waiting" else colour,
            label=what,
            hatch="////" * (what == "waiting"),
            lw=0.8,
        )
        for what, colour in DOING.items()
    ]
    handles.append(Line2D([], [], color=SOFT, marker="|", ls="", ms=7, label="optimizer step"))
    picture.legend(
        handles=handles, ncols=4, frameon=False, borderpad=0, borderaxespad=0, loc="center left",
        bbox_to_anchor=(0.1 / 8.6, 1 - 0.47 / height), handlelength=1.3, handleheight=0.9, handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip


def _draw_rank(axes, y, record, line, run):
    spent = dict.fromkeys(DOING, 0.0)
    for what, start, end in line:
        spent[what] += end - start
        style: dict[str, Any] = {"facecolor": DOING[what], "edgecolor": "none", "lw": 0}
        if what == "waiting":
            style |= {"hatch": "/////", "edgecolor": HATCH, "lw": 0.5}
        axes.add_patch(Rectangle((start, y), end - start, 0.6, zorder=2, **style))
    zero = min(one.start for one in run)
    axes.vlines([at - zero for at in record.steps], y + 0.64, y + 0.76, color=SOFT, lw=0.9)
    whole = sum(spent.values()) or 1.0
    shares = [f"{what} {100 * seconds / whole:.0f} %" for what, seconds in spent.items()]
    axes.text(
        1.015,
        y + 0.3,
        "\n".join(shares),
        transform=axes.get_yaxis_transform(),
        va="center",
        size=7.5,
        color=SOFT,
        linespacing=1.15,
    )


def _join_ranks(axes, run, top, bottom):
    """A line through all ranks where the last of them has come to an all-reduce outside a backward pass."""
    zero = min((one.start for one in run), default=0.0)
    alone = [
        [one for one in record.collectives if one["kind"] == "all-reduce" and not one["backward"]]
        for record in run
    ]
    calls = list(zip(*alone))
    times = [max(one["issued"] for one in same) - zero for same in calls]
    if len(run) > 1 and len(times) <= MOST_LINES:
        axes.vlines(times, top - 0.05, bottom - 0.35, color=DOING["averaging"], lw=0.8, zorder=3)


def plot_drift(
    records, *, what: str = "one weight", title: str = "Replicas drift apart and return"
) -> Picture:
    """How a watched value moves on every rank: apart between averages, together at each; below it the distance of the replicas.

    `records`: the `RankRecord`s of one run that was recorded with `watch`, or for every rank a list of (optimizer step, value) in
    which an average shows as a second value of the same step; or a dictionary of several runs by title, which then stand side
    by side on one scale. Bars across mark the steps after which an average was taken. ValueError: a rank without values.
    """
    runs = {
        name: _Drift(run)
        for name, run in (records if isinstance(records, dict) else {title: records}).items()
    }
    words = "; ".join(
        f"drift of {what}{f', {name}' if len(runs) > 1 else ''}: {run.words}"
        for name, run in runs.items()
    )
    width = 8.0 if len(runs) == 1 else 5.6 * len(runs)
    with course_style():
        picture = Picture(width, 4.5, words)
        grid: Any = picture.subplots(
            2,
            len(runs),
            sharex="col",
            sharey="row",
            squeeze=False,
            gridspec_kw={"height_ratios": (2.6, 1), "hspace": 0.13, "wspace": 0.22},
        )
        picture.subplots_adjust(left=0.92 / width, right=1 - 0.92 / width, bottom=0.11, top=0.87)
        highest = max(max(value for _, value in run.apart) for run in runs.values())
        grid[1, 0].set_ylim(
            0, 1.15 * highest if highest > 1e-12 else 1
        )  # 1: replicas that are equal
        for (upper, lower), (name, run) in zip(grid.T, runs.items()):
            _draw_drift(upper, lower, run)
            left = upper.get_position().x0 - 0.82 / width
            picture.text(left, 0.955, name, weight="bold", size=11, va="center")
        for upper, run in zip(grid[0], runs.values()):  # once the scale is known
            _name_paths(upper, run.paths)
        grid[0, 0].set_ylabel(what)
        grid[1, 0].set_ylabel("distance")
    return picture


class _Drift:
    """One run: the (step, value) pairs of every rank, the steps with an average, and (step, distance) pairs."""

    def __init__(self, records):
        self.paths = [list(getattr(one, "values", one)) for one in records]
        if not self.paths or not all(self.paths):
            raise ValueError(
                "plot_drift needs values: record with RankRecorder(watch=lambda: ...), or give (step, value) pairs."
            )
        self.averages = sorted(
            {
                step
                for one in records
                for step in (one.averages if isinstance(one, RankRecord) else _doubled(one))
            }
        )
        self.apart = [
            (pair[0][0], max(value for _, value in pair) - min(value for _, value in pair))
            for pair in _aligned(self.paths)
        ]
        self.last = self.paths[0][-1][0]
        self.words = (
            f"{len(self.paths)} ranks, {self.last} optimizer steps, {len(self.averages)} averages"
        )


def _draw_drift(upper, lower, run):
    for axes in (upper, lower):
        across = axes.get_xaxis_transform()
        axes.vlines(run.averages, 0, 1, transform=across, color=BAND, lw=7, zorder=0)
    _draw_paths(upper, run.paths)
    lower.fill_between(*zip(*run.apart), color=LINES[0], alpha=0.18, lw=0)
    lower.plot(*zip(*run.apart), color=LINES[0], lw=1.4)
    lower.set(xlabel="optimizer step", xlim=(0, 1.01 * max(run.last, 1)))
    for axes in (upper, lower):
        axes.yaxis.set_major_locator(MaxNLocator(5 if axes is upper else 3))
    lower.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    if run.averages:
        upper.text(
            run.averages[0],
            1.015,
            "average" if len(run.averages) == 1 else "averages",
            transform=upper.get_xaxis_transform(),
            ha="center",
            va="bottom",
            size=8.5,
            color=SOFT,
        )


def _draw_paths(axes, paths):
    """One line per rank, its fall to the average dotted, and a dot where the replicas meet."""
    for i, path in enumerate(paths):
        colour = rank_colour(i)
        run = [path[0]]
        for before, after in zip(path, path[1:]):
            if after[0] == before[0]:  # the same step again: an average
                axes.plot(*zip(*run), color=colour, lw=1.8, zorder=3)
                axes.plot(*zip(before, after), color=colour, lw=1.2, ls=(0, (1, 1.5)), zorder=3)
                axes.plot(*after, "o", color=INK, ms=4.5, zorder=4)
                run = []
            run.append(after)
        axes.plot(*zip(*run), color=colour, lw=1.8, zorder=3)


def _name_paths(axes, paths):
    low, high = axes.get_ylim()
    ends = sorted((_before_the_last(path), i) for i, path in enumerate(paths))
    for (_, i), at in zip(ends, spread([end for end, _ in ends], 0.07 * (high - low), low, high)):
        axes.text(
            1.02,
            at,
            f"rank {i}",
            transform=axes.get_yaxis_transform(),
            color=rank_colour(i),
            va="center",
            size=9,
            weight="bold",
        )


def _before_the_last(path):
    """Where the line of a rank ends before it falls to a last average, which is the place for its name."""
    return path[-2][1] if len(path) > 1 and path[-2][0] == path[-1][0] else path[-1][1]


def _doubled(path: Sequence) -> set:
    return {after[0] for before, after in zip(path, path[1:]) if before[0] == after[0]}


def _aligned(paths) -> list:
    """Values of the ranks at the same moments: before and after an average where any rank has noted one."""
    steps = sorted({step for path in paths for step, _ in path})
    moments = []
    for step in steps:
        here = [[(step, value) for at, value in path if at == step] for path in paths]
        if all(here):
            moments += [
                [values[min(i, len(values) - 1)] for values in here]
                for i in range(max(map(len, here)))
            ]
    return moments


class StepTimesPlot:
    """The modelled time of one optimizer step, a bar per run: computing, and what communication adds; artists made once and then moved."""

    def __init__(self, axes, rows: int):
        self.axes, self.rows = axes, rows  # more of them are cut, the chosen one excepted
        axes.set(xlim=(0, 1), ylim=(rows - 0.4, -0.6))
        axes.axis("off")
        self.bars = [
            [
                axes.add_patch(Rectangle((0, 0), 0, 0.62, facecolor=DOING[what], lw=0))
                for what in ("computing", "averaging")
            ]
            for _ in range(rows)
        ]
        handles = [
            Patch(facecolor=DOING[what], label=label)
            for what, label in (
                ("computing", "computing, measured"),
                ("averaging", "communicating, modelled"),
            )
        ]
        axes.legend(
            handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=2, frameon=False, borderaxespad=0,
            handlelength=1.1, handleheight=0.8, handletextpad=0.5, columnspacing=1.4,
        )  # fmt: skip
        self.names = [
            axes.text(-0.012, 0, "", ha="right", va="center", size=9) for _ in range(rows)
        ]
        self.words = [axes.text(0, 0, "", va="center", size=8.5) for _ in range(rows)]

    @property
    def animated(self) -> list:
        """The artists that `draw` changes."""
        return [*(bar for pair in self.bars for bar in pair), *self.names, *self.words]

    def draw(self, rows: Sequence[tuple], chosen: int | None = None):
        """Show rows of (name, StepTime, words); the one with the index `chosen` is bold."""
        for artist in self.animated:
            artist.set_visible(False)
        if chosen is not None and chosen >= self.rows:
            rows, chosen = [*rows[: self.rows - 1], rows[chosen]], self.rows - 1
        longest = max([time.seconds for _, time, _ in rows], default=1.0)
        for i, (name, time, words) in enumerate(rows[: self.rows]):
            ink, weight = (INK, "bold") if i == chosen else (SOFT, "normal")
            split, end = 0.5 * time.compute / longest, 0.5 * time.seconds / longest
            for bar, left, right in zip(self.bars[i], (0, split), (split, end)):
                bar.set(
                    visible=True,
                    x=left,
                    y=i - 0.31,
                    width=right - left,
                    alpha=1 if i == chosen else 0.55,
                )
            self.names[i].set(visible=True, y=i, text=name, color=ink, weight=weight)
            self.words[i].set(
                visible=True,
                position=(end + 0.012, i),
                text=f"{duration(time.seconds)}: {words}",
                color=ink,
            )


def duration(seconds: float) -> str:
    """A modelled time for people, three digits: `12.3 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * unit:
            return (
                f"{seconds / unit:.3g} {name}"
                if seconds < 999.5 * unit
                else f"{seconds / unit:,.0f} {name}"
            )
    return f"{seconds * 1e6:.3g} µs"
