"""What happens step by step: curves that are compared, and the accumulation window."""

from matplotlib import colormaps
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from trainlean.pictures.labels import spread
from trainlean.pictures.style import INK, LINES, PALE, SOFT, Picture, course_style


def plot_compare(
    curves: dict,
    *,
    x: str = "step",
    y: str = "loss",
    title: str | None = None,
    from_zero: bool = False,
) -> Picture:
    """Small line plot: `curves` maps a name to values or to a pair (x values, y values); lines are named at their ends.

    Later curves are drawn thinner on top of earlier ones, so that curves that coincide can all be seen.
    `from_zero` begins the upright axis at 0, for quantities of which twice as much should look so.
    """
    with course_style():
        picture = Picture(6.6, 3.4, f"{y} by {x}: {', '.join(curves)}")
        axes = picture.subplots()
        names = max([len(name) for name in curves], default=1)
        picture.subplots_adjust(
            left=0.12,
            right=1 - min(0.35, 0.03 + 0.0125 * names),
            bottom=0.16,
            top=0.88 if title else 0.95,
        )
        axes.set(xlabel=x, ylabel=y)
        if title:
            axes.set_title(title)
        ends = []
        for i, (name, values) in enumerate(curves.items()):
            xs, ys = values if isinstance(values, tuple) else (range(1, len(values) + 1), values)
            width = 1.4 + 2.2 * (len(curves) - 1 - i)
            axes.plot(xs, ys, color=LINES[i % len(LINES)], lw=width, solid_capstyle="round")
            ends.append((list(ys)[-1], name, LINES[i % len(LINES)]))
        axes.margins(x=0.02, y=0.08)
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        low, high = axes.get_ylim()
        ends.sort(key=lambda end: end[0])
        for (_, name, colour), height in zip(
            ends, spread([end[0] for end in ends], 0.075 * (high - low), low, high)
        ):
            axes.text(
                1.015,
                height,
                name,
                transform=axes.get_yaxis_transform(),
                color=colour,
                va="center",
                size=9,
                weight="bold",
            )
    return picture


def batch_colours(count: int) -> list:
    """One shade per micro-batch of a window, light to dark; no hue of the memory categories."""
    shades = [0.80 - 0.52 * i / max(1, count - 1) for i in range(count)]
    return [colormaps["magma"](shade) for shade in shades]


def plot_accumulation_window(k: int, micro_batches: int) -> Picture:
    """Schematic of accumulation: micro-batches, gradients adding up, an update per `k`; the last window may be short.

    ValueError when `k` or `micro_batches` is below 1.
    """
    if k < 1 or micro_batches < 1:
        raise ValueError(
            f"plot_accumulation_window needs k and micro_batches of at least 1, not {k} and {micro_batches}."
        )
    windows = [
        list(range(start, min(start + k, micro_batches))) for start in range(0, micro_batches, k)
    ]
    colours = batch_colours(k)
    with course_style():
        width = min(10.5, max(5.6, 1.3 + 0.62 * micro_batches + 0.5 * len(windows)))
        picture = Picture(
            width,
            3.1,
            f"accumulation: {micro_batches} micro-batches, an update after every {k}, {len(windows)} updates",
        )
        axes = picture.add_axes((0, 0, 1, 1))
        axes.axis("off")
        gap, inches = 0.75, 0.95  # between windows; of the words on the left
        right = micro_batches + gap * len(windows) + 0.1
        left = max(1.9, inches * right / (width - inches))
        axes.set_xlim(0, left + right)
        roomy = (min(k, micro_batches) + gap) * width / (left + right) > 1.2
        axes.set_ylim(-1.05, 4.15)
        for y, words in ((3.0, "micro-batch"), (1.35, "gradient\nadds up"), (-0.5, "weights")):
            axes.text(0.12, y, words, va="center", color=SOFT, size=9)
        x = left
        for number, window in enumerate(windows):
            first, of = x, f"window {number + 1}: " if roomy else ""
            for i, batch in enumerate(window):
                axes.add_patch(
                    Rectangle((x + 0.08, 2.65), 0.84, 0.7, facecolor=colours[i], edgecolor="none")
                )
                axes.text(
                    x + 0.5,
                    3.0,
                    str(batch + 1),
                    ha="center",
                    va="center",
                    size=9,
                    weight="bold",
                    color="white" if i >= k / 2 else INK,
                )
                for j in range(i + 1):  # the pile of everything added so far
                    axes.add_patch(
                        Rectangle(
                            (x + 0.2, 0.45 + j * 1.8 / k),
                            0.6,
                            1.8 / k,
                            facecolor=colours[j],
                            edgecolor="white",
                            lw=0.8,
                        )
                    )
                x += 1
            axes.annotate(
                "",
                (x + 0.12, -0.22),
                (x - 0.5, 0.36),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": INK,
                    "lw": 1.3,
                    "connectionstyle": "angle3,angleA=-90,angleB=180",
                },
            )
            axes.text(
                (first + x) / 2,
                3.72,
                f"{number + 1}" if k == 1 else f"{of}{len(window)} of {k}",
                ha="center",
                va="center",
                size=8.5,
                color=INK if len(window) == k else LINES[0],
            )
            axes.plot([first + 0.08, x - 0.08], [3.5, 3.5], color=PALE, lw=1)
            axes.plot(x + 0.28, -0.5, "o", ms=11, color=INK)
            axes.text(
                x + 0.28,
                -0.5,
                str(number + 1),
                ha="center",
                va="center",
                size=8,
                color="white",
                weight="bold",
            )
            x += gap
        axes.add_patch(
            FancyArrowPatch((left, -0.5), (x, -0.5), arrowstyle="-", color=PALE, lw=1.2, zorder=0)
        )
        axes.text(left, -0.85, "each dot is one optimizer step", size=8, color=SOFT, va="center")
    return picture
