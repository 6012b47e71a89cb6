"""Matplotlib figures of runs, memory and steps; every `plot_...` returns a figure that a notebook shows once."""

import base64
import io
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from itertools import groupby

import matplotlib as mpl
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from PIL import Image

from trainlean.costs.runs import CATEGORIES, MiB, Run

# Okabe and Ito's palette: the five can be told apart with every common kind of colour blindness, and in grey.
COLOURS = dict(zip(CATEGORIES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#BDBDBD"), strict=True))
UNDIVIDED = "#7D8590"  # memory that a published run reports as one number
INK, SOFT, PALE, ALARM = "#24292F", "#6B7280", "#D0D4DA", "#B3261E"
LINES = ("#882255", "#44AA99", "#332288", "#999933", "#AA4499", "#117733")  # for curves that are no category
MARKERS = {"measured": "o", "predicted": "D", "published": "s"}
ORIGINS = tuple(MARKERS)

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": "#9AA0A8",
    "axes.labelcolor": SOFT,
    "axes.labelpad": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "figure.facecolor": "white",
    "path.simplify": True,
}


@contextmanager
def course_style():
    """The course's style over matplotlib's defaults, whatever the notebook has set, and only for this block."""
    with mpl.rc_context(_DEFAULTS | STYLE):
        yield


_LOOKS = set("font text axes xtick ytick figure legend lines patch path hatch mathtext".split())
_DEFAULTS = {key: value for key, value in mpl.rcParamsDefault.items() if key.split(".")[0] in _LOOKS}


class Picture(Figure):
    """A figure that pyplot does not know, so that a notebook shows it once, with a fixed text beside the picture."""

    def __init__(self, width: float, height: float, words: str, dpi: int = 144):
        super().__init__(figsize=(width, height), dpi=dpi)
        FigureCanvasAgg(self)
        self.words = words
        self._still = None

    def __repr__(self) -> str:
        return self.words

    __str__ = __repr__

    def png(self, moving: Sequence = (), still=None) -> bytes:
        """The picture as a PNG file.

        With `moving` artists, everything else is drawn once and kept until `still` compares unequal to what it was:
        a redraw then costs only the artists that move.
        """
        for artist in moving:
            artist.set_animated(True)
        with course_style():
            if not moving or self._still is None or self._still[0] != still:
                self.canvas.draw()
                self._still = (still, self.canvas.copy_from_bbox(self.bbox))
            if moving:
                self.canvas.restore_region(self._still[1])
                for artist in sorted(moving, key=lambda artist: artist.zorder):
                    artist.draw(self.canvas.get_renderer())
            pixels = Image.frombuffer("RGBA", self.canvas.get_width_height(), self.canvas.buffer_rgba())
        buffer = io.BytesIO()
        # A palette makes the file a third as large and is written faster; these pictures have few colours.
        pixels = pixels.convert("RGB").quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        palette = pixels.getpalette()
        whites = (i for i in range(0, len(palette), 3) if min(palette[i : i + 3]) >= 250)
        for i in whites:  # the palette's white is an average with the edges of letters
            palette[i : i + 3] = (255, 255, 255)
        pixels.putpalette(palette)
        pixels.save(buffer, "png")
        return buffer.getvalue()

    def _ipython_display_(self):
        # Not left to IPython's formatters: pyplot registers its own for every Figure, with another size and text.
        from IPython.display import display

        bundle = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": self.words}
        display(bundle, metadata={"image/png": {"width": round(96 * self.get_figwidth())}}, raw=True)


# Words for runs


def point_label(run: Run) -> str:
    """The short label of a run: micro-batch x accumulation steps, and what differs from the usual; else its name."""
    settings = run.settings
    if "micro_batch" not in settings:
        return run.name
    label = f"{settings['micro_batch']}×{settings.get('accumulation_steps', 1)}"
    if (settings.get("devices") or 1) > 1:
        label += f" H={settings['local_steps']}" if settings.get("local_steps") else " DDP"
    return label + (" ckpt" if settings.get("checkpointing", "off") not in ("off", False, None) else "")


def effective_batch(settings: dict) -> int | None:
    """Samples per update: micro-batch times accumulation steps times devices; None without a micro-batch."""
    if "micro_batch" not in settings:
        return None
    return settings["micro_batch"] * settings.get("accumulation_steps", 1) * (settings.get("devices") or 1)


def count_text(runs: Sequence[Run]) -> str:
    """How many runs of which origin: '9 runs (6 measured, 3 published)'."""
    counts = [(sum(run.origin == origin for run in runs), origin) for origin in ORIGINS]
    parts = ", ".join(f"{count} {origin}" for count, origin in counts if count)
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}" + (f" ({parts})" if parts else "")


def parts(run: Run) -> list[tuple[str, int]]:
    """The memory of a run as (category, bytes): CATEGORIES in their order, then other names; nothing empty."""
    order = [*CATEGORIES, *(name for name in run.peak if name not in CATEGORIES)]
    return [(name, run.peak[name]) for name in order if run.peak.get(name)]


def mib(size: float) -> str:
    """Bytes as MiB, the unit of the axes, with thousands separators; one decimal below 100 where there is one."""
    return (f"{size / MiB:,.0f}" if size >= 99.95 * MiB else f"{size / MiB:.1f}".removesuffix(".0")) + " MiB"


# The Pareto front


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the points (speed, bytes) that no other point beats, slowest first.

    A point is beaten by one that is at least as fast and needs no more memory, and is better in one of the two.
    """
    front, least = [], float("inf")
    fastest_first = sorted(range(len(points)), key=lambda i: (-points[i][0], points[i][1]))
    for i in fastest_first:
        speed, size = points[i]
        twin = bool(front) and points[front[-1]] == (speed, size)
        if size < least or twin:
            front.append(i)
            least = size
    return front[::-1]


def place_labels(points, labels, box, size=9.0, obstacles=(), radii=None) -> list[tuple[float, float] | None]:
    """Where labels can stand beside their points without overlapping: (left, bottom), or None where there is no room.

    `points` are (x, y), `box` and `obstacles` are (left, bottom, right, top), all in the same unit as the font `size`;
    `radii` are those of the points' marks, half the font size without them. Labels are placed in the order given, so
    the important ones come first.
    """
    radii = radii or [size / 2] * len(points)
    marks = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(points, radii, strict=True)]
    taken, places = list(obstacles), []
    for i, ((x, y), label) in enumerate(zip(points, labels, strict=True)):
        wide, high = 0.62 * size * len(label), 1.1 * size
        gap = radii[i] + 0.25 * size
        others = marks[:i] + marks[i + 1 :]
        for left, bottom in (
            (x + gap, y - high / 2), (x - wide / 2, y + gap),
            (x - gap - wide, y - high / 2), (x - wide / 2, y - gap - high),
            (x + gap * 0.7, y + gap * 0.7), (x - gap * 0.7 - wide, y + gap * 0.7),
            (x + gap * 0.7, y - gap * 0.7 - high), (x - gap * 0.7 - wide, y - gap * 0.7 - high),
        ):  # fmt: skip
            area = (left - 2, bottom, left + wide + 2, bottom + high)
            inside = area[0] >= box[0] and area[1] >= box[1] and area[2] <= box[2] and area[3] <= box[3]
            if label and inside and not any(_overlap(area, other) for other in taken + others):
                taken.append(area)
                places.append((left, bottom))
                break
        else:
            places.append(None)
    return places


def _label_boxes(points, labels, places, size=8.5):
    """The areas that points and their placed labels cover."""
    marks = [(x - size / 2, y - size / 2, x + size / 2, y + size / 2) for x, y in points]
    texts = [(p[0], p[1], p[0] + 0.62 * size * len(label), p[1] + 1.1 * size) for p, label in zip(places, labels) if p]
    return marks + texts


def _overlap(a, b) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def spread(wanted: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The heights nearest to `wanted` (ascending) that are `distance` apart and lie between `low` and `high`."""
    heights = list(wanted)
    for i, height in enumerate(heights):
        heights[i] = max(height, low if i == 0 else heights[i - 1] + distance)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], high if i == len(heights) - 1 else heights[i + 1] - distance)
    return heights


class FrontPlot:
    """Runs as points of memory against speed, with budget and Pareto front: artists made once and then moved."""

    FRONT = "Pareto front"
    MOST_LABELS = 10  # of runs that are neither chosen nor on the front: more of them would be a cloud of words

    def __init__(self, axes):
        self.axes = axes
        axes.set_xlabel("samples/second")
        axes.set_ylabel("peak memory (MiB)")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        self.beyond = axes.add_patch(
            Rectangle((0.003, 0), 1, 1, transform=axes.get_yaxis_transform(), facecolor="#F3EBE8", zorder=0)
        )
        (self.budget_line,) = axes.plot([], [], color=ALARM, lw=1.3, zorder=2, transform=axes.get_yaxis_transform())
        self.budget_text = axes.text(
            1, 0, "", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=ALARM, size=8.5
        )
        (self.front_line,) = axes.plot([], [], color=INK, lw=1.4, zorder=3, solid_joinstyle="round")
        self.points = {}
        for origin, marker in MARKERS.items():
            common = {"ls": "", "marker": marker, "ms": 7 if marker == "o" else 6}
            hollow = {"mfc": "white"} if origin == "predicted" else {}
            (self.points[origin, "others"],) = axes.plot([], [], color=PALE, zorder=4, **{**common, "ms": 4})
            (self.points[origin, "out"],) = axes.plot([], [], color="#A8ADB4", zorder=4, **common, **hollow)
            (self.points[origin, "fits"],) = axes.plot([], [], color=INK, zorder=5, **common, **hollow)
        (self.crosses,) = axes.plot([], [], ls="", marker="x", ms=9, mew=1.4, color=ALARM, zorder=6)
        (self.guide,) = axes.plot([], [], color=LINES[0], lw=0.8, ls=(0, (1, 3)), zorder=1)
        (self.ring,) = axes.plot([], [], ls="", marker="o", ms=15, mew=1.8, mfc="none", color=LINES[0], zorder=7)
        self.note = axes.text(0.5, 0.5, "", transform=axes.transAxes, ha="center", va="center", color=SOFT)
        self.front_text = axes.text(0, 0, self.FRONT, size=8.5, va="bottom", style="italic", color=SOFT, transform=None)
        self.texts = []

    @property
    def moving(self) -> list:
        """The artists that `draw` changes."""
        fixed = [
            self.beyond,
            self.budget_line,
            self.budget_text,
            self.front_line,
            self.crosses,
            self.guide,
            self.ring,
            self.note,
            self.front_text,
        ]
        return [*fixed, *self.points.values(), *self.texts]

    def frame(self, runs: Sequence[Run], budget: float | None = None):
        """Set the limits, from all runs that may be shown, so that the picture stands still while controls move."""
        timed = any(run.samples_per_second for run in runs)
        self.axes.yaxis.set_visible(bool(runs))
        self.axes.xaxis.set_visible(timed)
        tops = [run.peak_bytes for run in runs] + [budget or 0, MiB]
        self.axes.set_ylim(0, 1.12 * max(tops) / MiB)
        speeds = [run.samples_per_second for run in runs if run.samples_per_second] or [0, 1]
        width = max(speeds) - min(speeds) or max(speeds)
        untimed = any(speed is None for _, speed in placed(runs))
        left = max(0, min(speeds) - width * (0.6 if untimed else 0.2))
        self.untimed_at = left + 0.03 * (max(speeds) + 0.14 * width - left)
        self.axes.set_xlim(left, max(speeds) + 0.14 * width)

    def draw(
        self, runs: Sequence[Run], *, budget: float | None = None, others: Sequence[Run] = (), chosen: Run | None = None
    ):
        """Show `runs` against the budget (bytes), `others` pale behind them, and a ring around the chosen run."""
        axes = self.axes
        spots = {"fits": [], "out": [], "others": []}
        for run, speed in placed(list(runs) + list(others)):
            x = self.untimed_at if speed is None else speed
            state = "others" if run in others else "out" if budget is not None and run.peak_bytes > budget else "fits"
            spots[state].append((run, x, run.peak_bytes / MiB))
        for origin, state in self.points:
            chosen_spots = [spot for spot in spots[state] if spot[0].origin == origin]
            self.points[origin, state].set_data([x for _, x, _ in chosen_spots], [y for _, _, y in chosen_spots])
        self.crosses.set_data([x for _, x, _ in spots["out"]], [y for _, _, y in spots["out"]])

        timed = [(run, x, y) for run, x, y in spots["fits"] if run.samples_per_second]
        front = [timed[i] for i in pareto_front([(x, y) for _, x, y in timed])]
        self.front_line.set_data(*_stairs([(x, y) for _, x, y in front]))

        low, high = axes.get_ylim()
        line = high if budget is None else min(budget / MiB, high)
        self.budget_line.set_data([0, 1] if budget is not None else [], [line, line] if budget is not None else [])
        self.beyond.set_y(line)
        self.beyond.set_height(high - line)
        self.budget_text.set_text(
            "" if budget is None else f"budget {mib(budget)}" + (", above it: out of memory" if spots["out"] else "")
        )
        above = line < high  # else it would stand in the legend
        self.budget_text.set(y=line + (0.008 if above else -0.012) * (high - low), va="bottom" if above else "top")
        self._choose_side(spots, line)

        ring = [(x, y) for spot in spots.values() for run, x, y in spot if run is chosen]
        self.ring.set_data([x for x, _ in ring], [y for _, y in ring])
        self.guide.set_data(*([ring[0][0], axes.get_xlim()[1]], [ring[0][1]] * 2) if ring else ([], []))
        self._label(spots, front, chosen, line if budget is not None else None)
        shown = [*runs, *others]
        timed = any(run.samples_per_second for run in shown)
        self.note.set_text(
            "" if timed else "No run here has been timed." if shown else "No runs yet: measure one first."
        )
        return [run for run, _, _ in front]

    def _choose_side(self, spots, line):
        """Put the words of the budget on the right, or on the left when points stand there."""
        (left, right), (low, high) = self.axes.get_xlim(), self.axes.get_ylim()
        share = len(self.budget_text.get_text()) * 0.6 * 8.5 / (self.axes.bbox.width * 72 / self.axes.figure.dpi)
        strip = line - 0.03 * (high - low), line + 0.09 * (high - low)
        taken = [(x - left) / (right - left) for spot in spots.values() for _, x, y in spot if strip[0] < y < strip[1]]
        on_left = any(x > 0.98 - share for x in taken) and not any(x < share for x in taken)
        self.budget_text.set(x=0.012 if on_left else 1, ha="left" if on_left else "right")

    def _label(self, spots, front, chosen, line):
        """Name the chosen run, then the front, then the rest, as far as there is room."""
        ranked = [spot for spot in spots["fits"] + spots["out"] + spots["others"] if spot[0] is chosen]
        ranked += [spot for spot in front if spot not in ranked]
        rest = [spot for spot in spots["fits"] + spots["out"] if spot not in ranked]
        ranked += rest if len(rest) <= self.MOST_LABELS else []
        pixels = 72 / self.axes.figure.dpi  # into points, the unit of font sizes
        to_points = lambda x, y: tuple(self.axes.transData.transform((x, y)) * pixels)
        box = self.axes.bbox.extents * pixels
        unnamed = [to_points(*spot[1:]) for state in spots.values() for spot in state if spot not in ranked]
        obstacles = [(x - 4, y - 4, x + 4, y + 4) for x, y in unnamed]
        obstacles += _segments([to_points(*corner) for corner in zip(*self.guide.get_data())])
        obstacles += _segments([to_points(*corner) for corner in zip(*_stairs([(x, y) for _, x, y in front]))])
        if line is not None:
            wide, y = 0.56 * 8.5 * len(self.budget_text.get_text()), to_points(self.axes.get_xlim()[0], line)[1]
            left = box[0] if self.budget_text.get_ha() == "left" else box[2] - wide
            obstacles += [(box[0], y - 1, box[2], y + 1), (left, y, left + wide, y + 13)]
        labels = self.names([run for run, _, _ in ranked])
        spots = [to_points(x, y) for _, x, y in ranked]
        radii = [8.5 if run is chosen else 4.25 for run, _, _ in ranked]
        places = place_labels(spots, labels, box, 8.5, obstacles, radii)
        corners = [to_points(*corner) for corner in zip(*self.front_line.get_data())]
        self._name_front(corners, [*obstacles, *_label_boxes(spots, labels, places)], box, pixels)
        while len(self.texts) < len(ranked):
            self.texts.append(self.axes.text(0, 0, "", size=8.5, va="bottom", transform=None, zorder=8))
        for text in self.texts:
            text.set_visible(False)
        for text, (run, _, _), label, place in zip(self.texts, ranked, labels, places):
            if place is None:
                continue
            text.set(visible=True, text=label, position=(place[0] / pixels, place[1] / pixels))
            text.set(
                color=INK if run is chosen or any(run is spot[0] for spot in front) else SOFT,
                weight="bold" if run is chosen else "normal",
            )

    def _name_front(self, corners, obstacles, box, pixels):
        """Write the name of the line below its longest level stretch that has room."""
        levels = sorted(zip(corners, corners[1:]), key=lambda pair: pair[0][0] - pair[1][0])
        wide = 0.58 * 8.5 * len(self.FRONT)
        self.front_text.set_visible(False)
        for (x0, y0), (x1, y1) in levels:
            for bottom in (y0 - 14, y0 + 3):
                area = ((x0 + x1 - wide) / 2, bottom, (x0 + x1 + wide) / 2, bottom + 11)
                inside = area[0] > box[0] and area[1] > box[1] and area[2] < box[2]
                if y0 == y1 and inside and not any(_overlap(area, other) for other in obstacles):
                    self.front_text.set(visible=True, position=(area[0] / pixels, area[1] / pixels))
                    return

    @staticmethod
    def names(runs: Sequence[Run]) -> list[str]:
        """Short labels; runs of one origin that would share a label are called by their names."""
        short = [(run.origin, point_label(run)) for run in runs]
        return [run.name if short.count(key) > 1 else key[1] for run, key in zip(runs, short)]


def placed(runs: Sequence[Run]) -> list[tuple[Run, float | None]]:
    """Runs with the speed they are drawn at: a run that was not timed stands at the speed of its timed twin, if any."""
    timed = [run for run in runs if run.samples_per_second]

    def speed(run):
        twins = [other for other in timed if _twin_key(other) == _twin_key(run)]
        likeness = lambda other: len(other.settings.items() & run.settings.items())
        return max(twins, key=likeness).samples_per_second if twins else None

    return [(run, run.samples_per_second or speed(run)) for run in runs]


def _twin_key(run: Run):
    return run.settings.get("model"), run.settings.get("devices"), point_label(run)


def _stairs(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The corners of the front: from each point at its height to the left until the next slower one."""
    xs, ys = [], []
    for (x, y), slower in zip(points, [None, *points]):
        if slower is not None:
            xs, ys = [*xs, slower[0]], [*ys, y]
        xs, ys = [*xs, x], [*ys, y]
    return xs, ys


def _segments(corners) -> list[tuple[float, float, float, float]]:
    return [
        (min(a[0], b[0]) - 1, min(a[1], b[1]) - 1, max(a[0], b[0]) + 1, max(a[1], b[1]) + 1)
        for a, b in zip(corners, corners[1:])
    ]


class StackPlot:
    """The memory of one run by category as a stacked bar, on the height scale of the plot beside it."""

    def __init__(self, axes):
        self.axes = axes
        axes.set_xlim(0, 1)
        axes.axis("off")
        most = len(CATEGORIES) + 1
        self.bars = [axes.add_patch(Rectangle((0.04, 0), 0.24, 0, edgecolor="white", lw=1)) for _ in range(most)]
        self.texts = [axes.text(0.37, 0, "", va="center", size=9) for _ in range(most)]
        (self.leaders,) = axes.plot([], [], color="#A8ADB4", lw=0.8)
        self.total = axes.text(0.04, 0, "", va="bottom", weight="bold", size=9.5)

    @property
    def moving(self) -> list:
        """The artists that `draw` changes."""
        return [*self.bars, *self.texts, self.leaders, self.total]

    def draw(self, run: Run | None, *, faded: bool = False):
        """Show one run; `faded` when it only stands in for a point that nobody has measured."""
        low, high = self.axes.get_ylim()
        shown = parts(run) if run else []
        ends = [sum(size for _, size in shown[: i + 1]) / MiB for i in range(len(shown))]
        middles = [end - size / MiB / 2 for end, (_, size) in zip(ends, shown)]
        heights = spread(middles, 0.052 * (high - low), 0.02 * (high - low), 0.97 * high)
        for artist in self.moving:
            artist.set_visible(False)
        for bar, text, (name, size), end, height in zip(self.bars, self.texts, shown, ends, heights):
            colour = COLOURS.get(name, UNDIVIDED)
            bar.set(visible=True, y=end - size / MiB, height=size / MiB, facecolor=colour, alpha=0.45 if faded else 1)
            text.set(visible=True, text=f"{name}  {mib(size)}", y=height, color=SOFT if faded else INK)
        xs = [x for _ in shown for x in (0.285, 0.355, float("nan"))]
        self.leaders.set(visible=True, data=(xs, [y for pair in zip(middles, heights) for y in (*pair, float("nan"))]))
        if run:
            top = (ends or [0])[-1] + 0.012 * (high - low)
            self.total.set(visible=True, text=mib(run.peak_bytes), y=top, color=SOFT if faded else INK)


# Figures that stand alone


def plot_front(runs: Sequence[Run], budget: float | None = None) -> Picture:
    """Memory against speed: a point per run, the Pareto front of what fits into `budget` (bytes), the rest crossed."""
    runs = list(runs)
    text = f"memory against speed: {count_text(runs)}"
    if budget is not None:
        text += f"; {sum(run.peak_bytes <= budget for run in runs)} fit into {mib(budget)}"
    with course_style():
        picture = Picture(7.4, 4.2, text)
        axes = picture.subplots()
        picture.subplots_adjust(left=0.125, right=0.97, bottom=0.14, top=0.88)
        axes.set_title("Memory against speed")
        plot = FrontPlot(axes)
        plot.frame(runs, budget)
        plot.draw(runs, budget=budget)
        origin_key(axes, runs)
    return picture


def origin_key(axes, runs: Iterable[Run]):
    """Say which marker is which origin, above the axes on the right, when there is more than one."""
    origins = [origin for origin in ORIGINS if any(run.origin == origin for run in runs)]
    if len(origins) < 2:
        return
    handles = [
        axes.plot(
            [], [], ls="", marker=MARKERS[o], ms=6, color=INK, label=o, **({"mfc": "white"} if o == "predicted" else {})
        )[0]
        for o in origins
    ]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=len(origins),
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def _category_key(picture, height, names):
    """Name the colours in one line at the given height of the picture."""
    names = [name for name in [*CATEGORIES, *(n for n in names if n not in CATEGORIES)] if name in names]
    handles = [Rectangle((0, 0), 1, 1, facecolor=COLOURS.get(name, UNDIVIDED), label=name) for name in names]
    picture.legend(
        handles=handles, ncols=max(1, len(names)), frameon=False, borderpad=0, borderaxespad=0,
        loc="center left", bbox_to_anchor=(0.1 / picture.get_figwidth(), height),
        handlelength=0.9, handleheight=0.9, handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip


def _on(colour: str) -> str:
    return "white" if colour in (COLOURS["weights"], COLOURS["optimizer state"], UNDIVIDED) else INK


def plot_memory(runs: Sequence[Run]) -> Picture:
    """Peak memory of each run as a bar, stacked by category, in MiB."""
    runs = list(runs)
    with course_style():
        picture = Picture(7.8, 1.35 + 0.42 * max(1, len(runs)), f"peak memory by category: {count_text(runs)}")
        axes = picture.subplots()
        longest = max([run.peak_bytes for run in runs], default=MiB) / MiB
        names = max([len(run.name) for run in runs], default=1)
        inches = min(0.085 * names + 0.25, 2.8)
        height = picture.get_figheight()
        picture.subplots_adjust(left=inches / 7.8, right=0.97, bottom=0.5 / height, top=1 - 0.72 / height)
        for row, run in enumerate(runs):
            left = 0.0
            for category, size in parts(run):
                width, colour = size / MiB, COLOURS.get(category, UNDIVIDED)
                axes.barh(row, width, left=left, height=0.66, color=colour, edgecolor="white", lw=1)
                words = f"{width:,.0f}" if width >= 100 else f"{width:.1f}"
                if width > (0.025 + 0.015 * len(words)) * longest:
                    axes.text(left + width / 2, row, words, ha="center", va="center", size=8.5, color=_on(colour))
                left += width
            axes.text(left + 0.012 * longest, row, mib(run.peak_bytes), va="center", weight="bold", size=9)
        axes.set_yticks(range(len(runs)), [run.name for run in runs])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(runs) - 0.45, -0.55)
        axes.set_xlim(0, 1.17 * longest)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("MiB")
        picture.text(0.1 / 7.8, 1 - 0.2 / height, "Peak memory by category", weight="bold", size=11, va="center")
        _category_key(picture, 1 - 0.48 / height, dict.fromkeys(name for run in runs for name, _ in parts(run)))
    return picture


def plot_timeline(timeline) -> Picture:
    """Memory by category against the operation index, with forward, backward and step marked.

    `timeline` is a `Meter`, or its timeline: a list of (phase, bytes by category), one entry per operation or per
    group of operations.
    """
    timeline = list(getattr(timeline, "timeline", timeline))
    phases = [(name, len(list(entries))) for name, entries in groupby(name for name, _ in timeline)]
    with course_style():
        picture = Picture(7.8, 3.7, f"memory over time: {len(timeline)} moments in {len(phases)} phases")
        axes = picture.subplots()
        picture.subplots_adjust(left=0.1, right=0.97, bottom=0.14, top=0.76)
        picture.text(0.1 / 7.8, 0.95, "Memory over one run, by category", weight="bold", size=11, va="center")
        axes.set_xlabel("recorded moment, in the order of the operations")
        axes.set_ylabel("memory (MiB)")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if not timeline:
            axes.text(0.5, 0.5, "Nothing recorded.", transform=axes.transAxes, ha="center", color=SOFT)
            return picture
        steps = range(len(timeline) + 1)
        layers = [[sizes.get(c, 0) / MiB for _, sizes in timeline] for c in CATEGORIES]
        totals = [sum(column) for column in zip(*layers)]
        axes.stackplot(
            steps, [layer + layer[-1:] for layer in layers], colors=list(COLOURS.values()), step="post", lw=0
        )
        axes.set_xlim(0, len(timeline))
        axes.set_ylim(0, 1.16 * max(totals) or 1)

        at = totals.index(max(totals))
        side = "right" if at > 0.7 * len(timeline) else "left"
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
        _phase_strip(axes, phases, len(timeline))
        _category_key(picture, 0.875, [c for c, layer in zip(CATEGORIES, layers) if any(layer)])
    return picture


def _phase_strip(axes, phases, length):
    """A strip above the axes that names the phases; one too narrow for its name keeps only its shade."""
    start, shades = 0, {"forward": "#E9EBEE", "backward": "#C9CED5", "optimizer step": "#7D8590"}
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
                facecolor=shades.get(name, "#DCDFE4"),
                edgecolor="white",
                lw=1,
            )
        )
        if start:
            axes.axvline(start, color="white", lw=0.8, alpha=0.6)
        for text in (name, name.split()[-1]):
            if len(text) * 5.2 + 4 < room * count / length:
                colour = "white" if name == "optimizer step" else INK
                axes.text(
                    start + count / 2, 1.052, text, transform=across, ha="center", va="center", size=8, color=colour
                )
                break
        start += count


def plot_compare(curves: dict, *, x: str = "step", y: str = "loss", title: str | None = None) -> Picture:
    """Small line plot: `curves` maps a name to values or to a pair (x values, y values); lines are named at their ends.

    Later curves are drawn thinner on top of earlier ones, so that curves that coincide can all be seen.
    """
    with course_style():
        picture = Picture(6.6, 3.4, f"{y} by {x}: {', '.join(curves)}")
        axes = picture.subplots()
        names = max([len(name) for name in curves], default=1)
        picture.subplots_adjust(
            left=0.12, right=1 - min(0.35, 0.03 + 0.0125 * names), bottom=0.16, top=0.88 if title else 0.95
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
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        low, high = axes.get_ylim()
        ends.sort(key=lambda end: end[0])
        for (_, name, colour), height in zip(ends, spread([end[0] for end in ends], 0.075 * (high - low), low, high)):
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
    windows = [list(range(start, min(start + k, micro_batches))) for start in range(0, micro_batches, k)]
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
        gap, left = 0.75, 1.9
        axes.set_xlim(0, left + micro_batches + gap * len(windows) + 0.1)
        axes.set_ylim(-1.05, 4.15)
        for y, words in ((3.0, "micro-batch"), (1.35, "gradient\nadds up"), (-0.5, "weights")):
            axes.text(0.12, y, words, va="center", color=SOFT, size=9)
        x = left
        for number, window in enumerate(windows):
            first = x
            for i, batch in enumerate(window):
                axes.add_patch(Rectangle((x + 0.08, 2.65), 0.84, 0.7, facecolor=colours[i], edgecolor="none"))
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
                            (x + 0.2, 0.45 + j * 1.8 / k), 0.6, 1.8 / k, facecolor=colours[j], edgecolor="white", lw=0.8
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
                f"window {number + 1}: {len(window)} of {k}" if k > 1 else f"{number + 1}",
                ha="center",
                va="center",
                size=8.5,
                color=INK if len(window) == k else LINES[0],
            )
            axes.plot([first + 0.08, x - 0.08], [3.5, 3.5], color=PALE, lw=1)
            axes.plot(x + 0.28, -0.5, "o", ms=11, color=INK)
            axes.text(x + 0.28, -0.5, str(number + 1), ha="center", va="center", size=8, color="white", weight="bold")
            x += gap
        axes.add_patch(FancyArrowPatch((left, -0.5), (x, -0.5), arrowstyle="-", color=PALE, lw=1.2, zorder=0))
        axes.text(left, -0.85, "each dot is one optimizer step", size=8, color=SOFT, va="center")
    return picture
