"""Memory by category, of runs side by side."""

from collections.abc import Sequence

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from trainlean.costs.runs import CATEGORIES, MiB, Run
from trainlean.pictures.labels import spread
from trainlean.pictures.style import (
    COLOURS,
    FAINT,
    INK,
    SOFT,
    UNDIVIDED,
    Picture,
    count_text,
    course_style,
    listed,
    mib,
    parts,
)


class StackPlot:
    """The memory of one run by category as a stacked bar, on the height scale of the plot beside it."""

    def __init__(self, axes):
        self.axes = axes
        axes.set_xlim(0, 1)
        axes.axis("off")
        most = len(CATEGORIES) + 1
        self.bars = [
            axes.add_patch(Rectangle((0.04, 0), 0.24, 0, edgecolor="white", lw=1))
            for _ in range(most)
        ]
        self.texts = [axes.text(0.37, 0, "", va="center", size=9) for _ in range(most)]
        (self.leaders,) = axes.plot([], [], color=FAINT, lw=0.8)
        self.total = axes.text(0.04, 0, "", va="bottom", weight="bold", size=9.5)

    @property
    def animated(self) -> list:
        """The artists that `draw` changes."""
        return [*self.bars, *self.texts, self.leaders, self.total]

    def draw(self, run: Run | None, *, faded: bool = False):
        """Show one run; `faded` when it only stands in for a point that nobody has measured."""
        low, high = self.axes.get_ylim()
        shown = parts(run) if run else []
        ends = [sum(size for _, size in shown[: i + 1]) / MiB for i in range(len(shown))]
        middles = [end - size / MiB / 2 for end, (_, size) in zip(ends, shown)]
        heights = spread(middles, 0.052 * (high - low), 0.02 * (high - low), 0.97 * high)
        for artist in self.animated:
            artist.set_visible(False)
        for bar, text, (name, size), end, height in zip(
            self.bars, self.texts, shown, ends, heights
        ):
            colour = COLOURS.get(name, UNDIVIDED)
            bar.set(
                visible=True,
                y=end - size / MiB,
                height=size / MiB,
                facecolor=colour,
                alpha=0.45 if faded else 1,
            )
            text.set(
                visible=True, text=f"{name}  {mib(size)}", y=height, color=SOFT if faded else INK
            )
        xs = [x for _ in shown for x in (0.285, 0.355, float("nan"))]
        self.leaders.set(
            visible=True,
            data=(xs, [y for pair in zip(middles, heights) for y in (*pair, float("nan"))]),
        )
        if run:
            top = (ends or [0])[-1] + 0.012 * (high - low)
            self.total.set(
                visible=True, text=mib(run.peak_bytes), y=top, color=SOFT if faded else INK
            )


def category_legend(picture, height, names):
    """Name the colours in one line at the given height of the picture."""
    names = [
        name for name in [*CATEGORIES, *(n for n in names if n not in CATEGORIES)] if name in names
    ]
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=COLOURS.get(name, UNDIVIDED), label=name)
        for name in names
    ]
    picture.legend(
        handles=handles, ncols=max(1, len(names)), frameon=False, borderpad=0, borderaxespad=0,
        loc="center left", bbox_to_anchor=(0.1 / picture.get_figwidth(), height),
        handlelength=0.9, handleheight=0.9, handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip


def _on(colour: str) -> str:
    return "white" if colour in (COLOURS["weights"], COLOURS["optimizer state"], UNDIVIDED) else INK


def plot_memory(runs: Sequence[Run]) -> Picture:
    """Peak memory of each run as a bar, stacked by category, in MiB."""
    runs = listed(runs, "plot_memory")
    with course_style():
        picture = Picture(
            7.8, 1.35 + 0.42 * max(1, len(runs)), f"peak memory by category: {count_text(runs)}"
        )
        axes = picture.subplots()
        longest = max([run.peak_bytes for run in runs], default=MiB) / MiB
        names = max([len(run.name) for run in runs], default=1)
        inches = min(0.085 * names + 0.25, 2.8)
        height = picture.get_figheight()
        picture.subplots_adjust(
            left=inches / 7.8, right=0.97, bottom=0.5 / height, top=1 - 0.72 / height
        )
        for row, run in enumerate(runs):
            left, narrow = 0.0, []
            for category, size in parts(run):
                width, colour = size / MiB, COLOURS.get(category, UNDIVIDED)
                axes.barh(row, width, left=left, height=0.66, color=colour, edgecolor="white", lw=1)
                words = f"{width:,.0f}" if width >= 100 else f"{width:.1f}"
                words = "< 0.1" if words == "0.0" else words  # there is something
                if width > (0.025 + 0.015 * len(words)) * longest:
                    axes.text(
                        left + width / 2,
                        row,
                        words,
                        ha="center",
                        va="center",
                        size=8.5,
                        color=_on(colour),
                    )
                else:
                    narrow.append((left + width / 2, words, colour))
                left += width
            _numbers_below(axes, row, narrow, 0.0105 * longest)
            axes.text(
                left + 0.012 * longest, row, mib(run.peak_bytes), va="center", weight="bold", size=9
            )
        axes.set_yticks(range(len(runs)), [run.name for run in runs])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(runs) - 0.45, -0.55)
        axes.set_xlim(0, 1.17 * longest)
        steps = [1, 2, 2.5, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=steps, integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("MiB")
        picture.text(
            0.1 / 7.8,
            1 - 0.2 / height,
            "Peak memory by category",
            weight="bold",
            size=11,
            va="center",
        )
        category_legend(
            picture,
            1 - 0.48 / height,
            dict.fromkeys(name for run in runs for name, _ in parts(run)),
        )
    return picture


def _numbers_below(axes, row: int, narrow: list[tuple[float, str, str]], letter: float):
    """The numbers of bars too narrow for them, below these and apart; `letter` is the width of one in the axes' units.

    Each has a square of its bar's colour before it: moved apart, it may stand below another bar.
    """
    apart = letter * (2.5 + max([len(words) for _, words, _ in narrow], default=0))
    places = spread([middle for middle, *_ in narrow], apart, apart / 2, float("inf"))
    for place, (_, words, colour) in zip(places, narrow, strict=True):
        before = place - letter * (0.9 + len(words) / 2)
        axes.plot([before], [row + 0.46], "s", ms=3.6, color=colour, clip_on=False)
        axes.text(place, row + 0.46, words, ha="center", va="center", size=7, color=SOFT)
